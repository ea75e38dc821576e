"""`sglang-mi300a golden`: recorded once from the checkpoint, bound to it, shown again."""

import json
import os
import shutil

import pytest

from sglang_mi300a import golden
from sglang_mi300a.accuracy import golden_texts
from sglang_mi300a.accuracy.streamed_reference import StreamedReference
from sglang_mi300a.cli.main import main
from sglang_mi300a.tiny_model import DENSE, MOE_MXFP4, make_tiny_model
from sglang_mi300a.weights.shard import shard_weights


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny checkpoint, its artifact with golden logits, and an artifact of another seed."""
    folder = tmp_path_factory.mktemp("golden [1]")
    model = make_tiny_model(folder / "model", kind=MOE_MXFP4).path
    other = make_tiny_model(folder / "other", kind=MOE_MXFP4, mtp=False).path
    for name, source in (("artifact", model), ("other-artifact", other)):
        shard_weights(source, folder / name, tp=2)
    assert main(["golden", "--model", str(model), "--out", str(folder / "artifact")]) == 0
    return folder


def test_what_is_recorded_are_the_references_own_likeliest_tokens(tiny):
    import torch

    from sglang_mi300a.accuracy.transformers_reference import TransformersReference

    values = golden.read(tiny / "artifact")
    assert len(values.rows) == len(golden_texts.TEXTS)
    reference = TransformersReference(tiny / "model")
    for row in values.rows:
        assert len(row.token_ids) == golden_texts.PROMPT_TOKENS
        logprobs = torch.log_softmax(reference.logits(row.token_ids)[-1].double(), -1)
        assert list(row.top_logprobs) == pytest.approx(logprobs[list(row.top_ids)], abs=1e-4)
        assert row.top_logprobs[0] == pytest.approx(float(logprobs.max()), abs=1e-4)
        greedy = reference.continue_greedily(row.token_ids, len(row.next_ids))
        assert row.next_ids == greedy.tokens
        assert 1 <= len(row.next_ids) <= golden_texts.NEXT_TOKENS


def test_recorded_twice_it_is_the_same_file(tiny, tmp_path):
    command = ["golden", "--model", str(tiny / "model"), "--out", str(tmp_path), "--threads", "1"]
    assert main(command) == 0
    assert golden.read(tmp_path) == golden.read(tiny / "artifact")


def test_it_can_be_shown_for_people_and_machines(tiny, capsys, tmp_path):
    assert main(["golden", "--show", str(tiny / "artifact")]) == 0
    assert "8 prompts by transformers" in capsys.readouterr().out
    assert main(["golden", "--show", str(tiny / "artifact"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_prompts"] == 8
    assert main(["golden", "--show", str(tmp_path)]) == 2
    assert "make it with" in capsys.readouterr().out


def test_an_artifact_of_another_checkpoint_is_refused(tiny, capsys):
    out = tiny / "other-artifact"
    assert main(["golden", "--model", str(tiny / "model"), "--out", str(out)]) == 2
    assert "an artifact of checkpoint" in capsys.readouterr().err
    assert golden.read(out) is None


def test_an_artifact_is_no_checkpoint_to_compute_with(tiny, capsys):
    assert main(["golden", "--model", str(tiny / "artifact")]) == 2
    assert "pass --model HF_DIR --out" in capsys.readouterr().err


def test_without_a_model_it_says_what_it_wants(capsys):
    assert main(["golden"]) == 2
    assert "--show DIR" in capsys.readouterr().err


def test_own_texts_must_be_there_and_long_enough(tiny, capsys, tmp_path):
    command = ["golden", "--model", str(tiny / "model"), "--out", str(tmp_path), "--texts"]
    texts = tmp_path / "texts"
    assert main([*command, str(texts)]) == 2
    assert "not readable" in capsys.readouterr().err
    texts.write_text("\n\n")
    assert main([*command, str(texts)]) == 2
    assert "no text" in capsys.readouterr().err
    texts.write_text("too short\n")
    assert main([*command, str(texts)]) == 2
    assert "40 or more" in capsys.readouterr().err
    texts.write_text(golden_texts.TEXTS[4] + "\n")
    assert main([*command, str(texts)]) == 0
    assert len(golden.read(tmp_path).rows) == 1


def test_verify_and_inspect_know_of_it(tiny, capsys):
    artifact = tiny / "artifact"
    assert main(["artifact", "verify", str(artifact)]) == 0
    assert main(["artifact", "inspect", str(artifact)]) == 0
    assert "golden logits" in capsys.readouterr().out
    other = tiny / "other-artifact"
    golden.write(other, golden.read(artifact))
    try:
        assert main(["artifact", "verify", str(other)]) == 1
        assert "values of checkpoint" in capsys.readouterr().out
    finally:
        (other / golden.NAME).unlink()


def nothing_is_computed(*_, **__):
    raise AssertionError("weights were read")


def test_where_it_cannot_be_written_nothing_is_computed(tiny, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(StreamedReference, "logits", nothing_is_computed)
    command = ["golden", "--model", str(tiny / "model"), "--out", str(tmp_path / "none")]
    assert main(command) == 2
    assert "no such directory" in capsys.readouterr().err
    monkeypatch.setattr(golden.os, "access", lambda *_: False)
    assert main([*command[:-1], str(tmp_path)]) == 2
    assert "not writable" in capsys.readouterr().err


def test_bad_input_is_refused_by_name_before_weights_are_read(tiny, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(StreamedReference, "logits", nothing_is_computed)
    model = tmp_path / "model"
    shutil.copytree(tiny / "model", model)
    command = ["golden", "--model", str(model)]
    assert main([*command, "--threads", "0"]) == 2
    assert "--threads: found 0" in capsys.readouterr().err
    for file in model.glob("tokenizer*"):
        file.rename(file.with_name(f"was-{file.name}"))
    assert main(command) == 2
    assert "no tokenizer" in capsys.readouterr().err
    weights = sorted(model.glob("*.safetensors"))[0]
    os.truncate(weights, weights.stat().st_size - 1)
    assert main(command) == 2
    assert weights.name in capsys.readouterr().err
    weights.unlink()
    assert main(command) == 2
    assert weights.name in capsys.readouterr().err
    dense = make_tiny_model(tmp_path / "dense", kind=DENSE).path
    assert main(["golden", "--model", str(dense)]) == 2
    assert "architectures ['Qwen3ForCausalLM']" in capsys.readouterr().err


def test_logits_that_are_no_numbers_are_not_recorded(tiny, capsys, tmp_path, monkeypatch):
    import torch

    lost = torch.full((len(golden_texts.TEXTS), golden_texts.NEXT_TOKENS, 9), torch.nan)
    monkeypatch.setattr(StreamedReference, "logits", lambda *_: lost)
    assert main(["golden", "--model", str(tiny / "model"), "--out", str(tmp_path)]) == 2
    assert "no numbers" in capsys.readouterr().err
    assert golden.read(tmp_path) is None
