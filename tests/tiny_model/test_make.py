"""Making a tiny model: repeatable, whole or not at all, refusing what it must."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.tiny_model import (
    DENSE,
    MOE_BF16,
    MOE_MXFP4,
    TinySizes,
    dequantised_twin,
    make_tiny_model,
    tokenizer,
)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", [MOE_MXFP4, DENSE])
def test_another_process_makes_the_same_bytes(
    models: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    code = (
        "from pathlib import Path; from sglang_mi300a.tiny_model import make_tiny_model;"
        f"make_tiny_model(Path({str(tmp_path / 'm')!r}), kind={kind!r})"
    )
    # Whatever could order things differently from one process to the next.
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TOKENIZERS_PARALLELISM": "true"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert contents(tmp_path / "m") == contents(models[kind])


def test_another_seed_gives_other_weights_and_the_same_rest(
    models: dict[str, Path], tmp_path: Path
) -> None:
    other = contents(make_tiny_model(tmp_path / "m", kind=MOE_MXFP4, seed=1).path)
    first = contents(models[MOE_MXFP4])
    assert other.keys() == first.keys()
    differing = {name for name in first if other[name] != first[name]}
    assert differing == {name for name in first if name.endswith(".safetensors")}


def test_what_was_made_is_told(tmp_path: Path) -> None:
    made = make_tiny_model(tmp_path / "m", kind=DENSE)
    files = sorted(path.name for path in made.path.glob("*.safetensors"))
    assert made.num_files == len(files) > 1
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    on_disk = sum(path.stat().st_size for path in made.path.glob("*.safetensors"))
    assert made.weight_bytes <= on_disk < made.weight_bytes + 100_000
    assert made.num_tokens <= made.sizes.vocab


def test_making_it_again_in_place_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "m"
    make_tiny_model(out, kind=DENSE)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    make_tiny_model(out, kind=DENSE)
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert (make_tiny_model(tmp_path / "m", kind=DENSE).path / "config.json").is_file()


def test_a_folder_with_anything_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "m"
    make_tiny_model(out, kind=DENSE)
    weights = next(out.glob("*.safetensors"))
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    before = contents(out)
    with pytest.raises(UserError, match=weights.name):
        make_tiny_model(out, kind=DENSE)
    with pytest.raises(UserError, match="a new or empty folder"):
        make_tiny_model(out, kind=DENSE, seed=1)
    assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_foreign_file_or_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "m"
    make_tiny_model(out, kind=DENSE)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"notes\.txt, which does not belong"):
        make_tiny_model(out, kind=DENSE)
    with pytest.raises(UserError, match="found a file"):
        make_tiny_model(out / "notes.txt", kind=DENSE)


def test_an_interruption_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenizer, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_tiny_model(tmp_path / "m", kind=DENSE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "qwen3_5"}, "kind: found qwen3_5; supported: dense, "),
        ({"kind": DENSE, "visual": True}, "no echo and no visual"),
        ({"kind": MOE_BF16, "echo": True, "mtp": False}, "echo: found mtp off"),
        ({"kind": DENSE, "sizes": TinySizes(vocab=512)}, "vocab: found 512"),
    ],
)
def test_what_no_model_can_be_made_of_is_refused(
    tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_tiny_model(tmp_path / "m", **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"layers": 6}, "layers: found 6; supported: a multiple of 4; do: use 8"),
        ({"moe_intermediate": 48}, "moe_intermediate: found 48; supported: a multiple of 32"),
        ({"experts": 2}, "experts_per_token: found 4; supported: at most experts = 2"),
        ({"kv_heads": 3}, "attention_heads: found 8; supported: a multiple of 3"),
        ({"hidden": 0}, "hidden: found 0; supported: a positive number"),
    ],
)
def test_sizes_that_no_checkpoint_could_have_are_refused(
    sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        TinySizes(**sizes)


def test_only_a_quark_checkpoint_has_a_twin(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="quant_method None; supported: quark"):
        dequantised_twin(models[MOE_BF16], tmp_path / "twin")
    assert list(tmp_path.iterdir()) == []


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, sglang_mi300a.tiny_model;"
        "print({'torch', 'transformers', 'tokenizers', 'safetensors', 'sglang'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
