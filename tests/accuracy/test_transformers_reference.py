"""The reference gives transformers' own tokens, for plain and for MXFP4 checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_mi300a.accuracy.agreement import compare
from sglang_mi300a.accuracy.transformers_reference import (
    TransformersReference,
    greedy_continuations,
    greedy_tokens,
    let_transformers_import,
)
from sglang_mi300a.errors import UserError
from sglang_mi300a.tiny_model import DENSE, MOE_BF16, MOE_MXFP4

PROMPTS = [[260, 300, 17, 900], [1000, 41, 41, 612, 88, 700, 1150], [5]]
LONG = [(37 * position) % 1200 for position in range(80)]
EXPERT = "model.language_model.layers.{layer}.mlp.experts.{expert}.{part}"


@pytest.mark.parametrize("name", [DENSE, MOE_BF16, "twin"])
def test_it_agrees_with_transformers_own_loading_and_generating(
    checkpoints: dict[str, Path], name: str
) -> None:
    let_transformers_import()
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(checkpoints[name], dtype="float32")
    found = greedy_continuations(checkpoints[name], PROMPTS, 16)
    for prompt, continuation in zip(PROMPTS, found, strict=True):
        generated = model.generate(
            torch.tensor([prompt]), do_sample=False, min_new_tokens=16, max_new_tokens=16
        )
        assert generated[0, len(prompt) :].tolist() == list(continuation.tokens)


def test_an_mxfp4_model_gives_the_tokens_of_its_dequantised_twin(
    checkpoints: dict[str, Path],
) -> None:
    packed = greedy_continuations(checkpoints[MOE_MXFP4], PROMPTS, 16)
    twin = greedy_continuations(checkpoints["twin"], PROMPTS, 16)
    assert packed == twin
    assert all(gap >= 0 for continuation in packed for gap in continuation.gaps)


def test_quantising_does_change_the_tokens(checkpoints: dict[str, Path]) -> None:
    packed = greedy_tokens(checkpoints[MOE_MXFP4], PROMPTS, 16)
    plain = greedy_tokens(checkpoints[MOE_BF16], PROMPTS, 16)
    assert not compare(packed, plain).equal


def test_step_by_step_and_all_at_once_agree(checkpoints: dict[str, Path]) -> None:
    reference = TransformersReference(checkpoints[MOE_MXFP4])
    continuation = reference.continue_greedily(LONG, 12)
    logits = reference.logits([*LONG, *continuation.tokens])
    best = logits[len(LONG) - 1 : -1].topk(2)
    assert best.indices[:, 0].tolist() == list(continuation.tokens)
    gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
    # float32 rounding of logits near 10 through four layers; gaps are near 1.
    assert gaps == pytest.approx(continuation.gaps, abs=1e-3)


def test_every_token_of_the_context_counts(checkpoints: dict[str, Path]) -> None:
    reference = TransformersReference(checkpoints[MOE_MXFP4])
    other = [LONG[0] + 1, *LONG[1:]]
    change = (reference.logits(LONG)[-1] - reference.logits(other)[-1]).abs().max()
    # 79 tokens later: far above float32 rounding, so that a lost or mixed-up state is seen.
    assert change > 1e-2


@pytest.mark.parametrize("part", ["gate_proj", "up_proj", "down_proj"])
@pytest.mark.parametrize("suffix", ["weight", "weight_scale"])
def test_one_flipped_weight_byte_shows(
    checkpoints: dict[str, Path], tmp_path: Path, part: str, suffix: str
) -> None:
    name = EXPERT.format(layer=1, expert=3, part=f"{part}.{suffix}")
    damaged = changed(
        checkpoints[MOE_MXFP4], tmp_path, name, lambda tensor: tensor[0].bitwise_xor_(1)
    )
    before = TransformersReference(checkpoints[MOE_MXFP4]).logits(LONG)
    after = TransformersReference(damaged).logits(LONG)
    assert (before - after).abs().max() > 1e-4


def test_bf16_is_close_to_float32(checkpoints: dict[str, Path]) -> None:
    exact = TransformersReference(checkpoints[DENSE]).logits(LONG)
    rounded = TransformersReference(checkpoints[DENSE], "bfloat16").logits(LONG)
    # Logits have a spread of 4; bf16 carries 8 bits through four layers.
    assert 0 < (exact - rounded).abs().max() < 0.5


def test_what_is_no_checkpoint_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dtype: found float8"):
        TransformersReference(checkpoints[DENSE], "float8")
    with pytest.raises(UserError, match=r"no config\.json"):
        TransformersReference(tmp_path)
    shutil.copy(checkpoints[DENSE] / "config.json", tmp_path)
    with pytest.raises(UserError, match="no safetensors file"):
        TransformersReference(tmp_path)


def test_tensors_of_another_model_are_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    mixed = tmp_path / "m"
    shutil.copytree(checkpoints[MOE_BF16], mixed)
    shutil.copy(checkpoints[DENSE] / "config.json", mixed)
    with pytest.raises(UserError, match="supported: the tensors of Qwen3ForCausalLM"):
        TransformersReference(mixed)


def test_an_expert_without_one_of_its_matrices_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    name = EXPERT.format(layer=0, expert=2, part="up_proj.weight")
    damaged = changed(checkpoints["twin"], tmp_path, name, None)
    with pytest.raises(UserError, match=r"experts\.2: found no up_proj\.weight"):
        TransformersReference(damaged)


def test_a_scale_outside_the_exact_range_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    name = EXPERT.format(layer=0, expert=2, part="up_proj.weight_scale")
    damaged = changed(
        checkpoints[MOE_MXFP4], tmp_path, name, lambda tensor: tensor[0, 0].fill_(255)
    )
    with pytest.raises(UserError, match="1 NaN scales"):
        TransformersReference(damaged)


def changed(source: Path, tmp_path: Path, name: str, change: Any) -> Path:
    """Copy a checkpoint with one tensor changed in place, or left out if ``change`` is None."""
    copy = tmp_path / "changed"
    shutil.copytree(source, copy)
    for path in copy.glob("*.safetensors"):
        tensors = load_file(path)
        if name in tensors:
            if change is None:
                del tensors[name]
            else:
                change(tensors[name])
            save_file(tensors, path, metadata={"format": "pt"})
            return copy
    raise KeyError(name)
