"""``sglang-mi300a artifact``: what it prints, and what its exit codes say."""

import json
import shutil

import pytest

from sglang_mi300a.cli import main as program
from tests.weights import checkpoints
from tests.weights.checkpoints import SMALL_TEXT
from tests.weights.conftest import make_checkpoint, shard
from tests.weights.test_requantising import finite


@pytest.fixture
def run(capsys):
    """Run a command; return exit code and both outputs."""

    def command(*arguments):
        code = program.main([*map(str, arguments)])
        return (code, *capsys.readouterr())

    return command


@pytest.fixture
def copy(small_tp2, tmp_path):
    return shutil.copytree(small_tp2, tmp_path / "an artifact [v 1]")


def damage(directory, name="rank-1/target-part-00001.safetensors"):
    path = directory / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return path


# -- inspect --------------------------------------------------------------------------------------


def test_inspect_says_what_is_inside(run, copy):
    code, out, err = run("artifact", "inspect", copy)
    assert (code, err) == (0, "")
    first, *lines = out.splitlines()
    assert first == f"{copy}: Qwen3_5MoeForConditionalGeneration for TP 2, EP 1"
    facts = {line.split("  ")[1].strip(): line for line in lines}
    assert "plain/1" in facts["expert layout"]
    assert "left out" in facts["visual tower"]
    assert "inside, experts BF16" in facts["draft (MTP)"]
    assert "GB in" in facts["rank 0"]
    assert "draft" in facts["rank 1"]
    assert "config.json, tokenizer.json" in facts["files"]
    assert "3 files" in facts["source"]


def test_inspect_gives_the_same_to_machines(run, copy):
    code, out, _ = run("artifact", "inspect", copy, "--json")
    data = json.loads(out)
    assert code == 0
    assert (data["tp"], data["ep"], data["layout"]) == (2, 1, "plain/1")
    assert data["experts"] == {"target": ["U8"], "draft": ["BF16"]}
    assert [set(rank) for rank in data["ranks"]] == [{"target", "draft"}] * 2
    assert data["ranks"][0]["target"]["num_bytes"] > 100_000
    assert "probe" not in data


def test_inspect_reads_no_weights_unless_asked(run, copy):
    shutil.rmtree(copy / "rank-0")
    assert run("artifact", "inspect", copy)[0] == 0
    code, _, err = run("artifact", "inspect", copy, "--probe")
    assert code == 2
    assert "rank-0" in err


def test_inspect_with_a_probe_says_what_to_expect(run, copy):
    code, out, _ = run("artifact", "inspect", copy, "--probe")
    assert code == 0
    assert "read probe" in out
    assert "s for one rank alone, " in out
    _, out, _ = run("artifact", "inspect", copy, "--probe", "--json")
    probe = json.loads(out)["probe"]
    assert probe["gb_per_s"] > 0
    assert probe["node_bytes"] > probe["rank_bytes"] > 0


def test_inspect_tells_a_requantised_draft(run, tmp_path, monkeypatch):
    finite(monkeypatch)
    model = make_checkpoint(tmp_path / "m")
    out = tmp_path / "out"
    code, said, _ = run(
        "shard-weights", "--model", model, "--out", out, "--tp", 1, "--draft-experts", "mxfp4",
        "--json",
    )  # fmt: skip
    assert (code, json.loads(said)["has_draft"]) == (0, True)
    _, said, _ = run("artifact", "inspect", out)
    assert "inside, experts MXFP4, re-quantised from the checkpoint's floats" in said


# -- verify ---------------------------------------------------------------------------------------


def test_verify_of_an_intact_artifact_ends_with_zero(run, copy):
    code, out, err = run("artifact", "verify", copy)
    assert (code, err) == (0, "")
    assert out.startswith(f"{copy}: intact; ")


def test_verify_of_a_damaged_artifact_ends_with_one_and_names_the_tensor(run, copy):
    path = damage(copy)
    code, out, _ = run("artifact", "verify", copy)
    assert code == 1
    assert f"{path}: model." in out
    assert f"{copy}: 1 problems; " in out
    code, out, _ = run("artifact", "verify", copy, "--json")
    data = json.loads(out)
    assert code == 1
    assert data["problems"][0]["where"].startswith(f"{path}: model.")
    assert set(data["problems"][0]) == {"where", "found", "allowed", "do"}
    assert run("artifact", "verify", copy, "--ranks", "0")[0] == 0


def test_verify_of_an_edited_manifest_ends_with_one(run, copy):
    path = copy / "manifest.json"
    path.write_text(path.read_text().replace('"tp": 2', '"tp": 1'))
    code, out, _ = run("artifact", "verify", copy)
    assert code == 1
    assert "manifest.json: found a checksum that does not match the rest" in out


@pytest.mark.parametrize("verb", ["inspect", "verify", "diff"])
def test_what_is_no_artifact_is_bad_input(run, small, tmp_path, verb):
    for directory in (small, tmp_path / "absent"):
        more = (directory,) if verb == "diff" else ()
        code, out, err = run("artifact", verb, directory, *more)
        assert (code, out) == (2, "")
        assert "supported: a directory made by shard-weights" in err


@pytest.mark.parametrize("arguments", [(), ("look", "x"), ("diff", "x"), ("verify", "x", "--fast")])
def test_wrong_usage_is_bad_input(run, arguments):
    with pytest.raises(SystemExit) as ended:
        run("artifact", *arguments)
    assert ended.value.code == 2


def test_ranks_that_are_not_there_are_bad_input(run, copy):
    code, _, err = run("artifact", "verify", copy, "--ranks", "0,2")
    assert code == 2
    assert "--ranks: found 0,2; supported: ranks 0 to 1" in err


# -- diff -----------------------------------------------------------------------------------------


def test_diff_of_two_runs_finds_nothing(run, small, copy, tmp_path):
    shard(small, tmp_path / "again", tp=2, part_bytes=200_000)
    code, out, _ = run("artifact", "diff", copy, tmp_path / "again")
    assert (code, out) == (0, "the same artifact\n")


def test_diff_tells_the_same_weights_in_other_files(run, small, copy, tmp_path):
    shard(small, tmp_path / "whole", tp=2)
    code, out, _ = run("artifact", "diff", copy, tmp_path / "whole")
    assert code == 1
    assert out.endswith("the same weights\n")
    assert "equal, but in another place" in out


def test_diff_tells_every_kind_of_difference(run, copy, tmp_path):
    other = make_checkpoint(tmp_path / "m", seed=1, mtp=False)
    shard(other, tmp_path / "other", tp=1)
    code, out, _ = run("artifact", "diff", copy, tmp_path / "other", "--json")
    data = json.loads(out)
    assert code == 1
    changed = {change["what"] for change in data["facts"]}
    assert {"tp", "has_draft", "source_data_xxh3_128"} <= changed
    assert any(what.startswith("source model-") for what in changed)
    assert "layout" not in changed
    assert "rank 0 draft fc.weight" in data["only_left"]
    assert data["only_right"] == []
    kinds = {change["what"]: (change["left"], change["right"]) for change in data["other_kind"]}
    assert kinds["rank 0 target lm_head.weight"] == ("BF16 [128, 128]", "BF16 [256, 128]")
    assert "rank 0 target model.norm.weight" in data["other_content"]
    assert (data["same_weights"], data["is_equal"]) == (False, False)
    words = run("artifact", "diff", copy, tmp_path / "other")[1]
    assert "tp: 2 | 1" in words
    assert "tensors only in the first: rank 0 draft" in words
    assert words.endswith("other weights\n")


def test_diff_of_a_damaged_manifest_is_bad_input(run, copy, small_tp2):
    (copy / "manifest.json").write_text("{}")
    assert run("artifact", "diff", small_tp2, copy)[0] == 2


# -- shard-weights --------------------------------------------------------------------------------


def test_the_option_that_the_error_names_is_there(run, tmp_path):
    tensors = {**checkpoints.shapes(SMALL_TEXT), "model.extra.bias": ("BF16", (4,))}
    model = checkpoints.write(tmp_path / "m", checkpoints.config(SMALL_TEXT), tensors)
    command = ("shard-weights", "--model", model, "--out", tmp_path / "out", "--tp", 1)
    code, _, err = run(*command)
    assert code == 2
    assert "pass --ignore-tensor 'model.extra.bias' (a pattern)" in err
    assert run(*command, "--ignore-tensor", "*.none", "--ignore-tensor", "*.extra.*")[0] == 0


def test_other_draft_precisions_are_bad_usage(run, small, tmp_path):
    with pytest.raises(SystemExit) as ended:
        run(
            "shard-weights", "--model", small, "--out", tmp_path / "out", "--tp", 1,
            "--draft-experts", "fp8",
        )  # fmt: skip
    assert ended.value.code == 2
