"""The MXFP4 model is the quantised bf16 one, and its twin says exactly the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_mi300a import mxfp4
from sglang_mi300a.errors import UserError
from sglang_mi300a.tiny_model import MOE_BF16, MOE_MXFP4, dequantised_twin
from sglang_mi300a.tiny_model.checkpoint import read_tensors

EXPERTS = "model.language_model.layers.{layer}.mlp.experts"


def bf16_expert(tensors: dict[str, torch.Tensor], layer: int, expert: int, part: str) -> np.ndarray:
    at = EXPERTS.format(layer=layer)
    if part == "down_proj":
        return tensors[f"{at}.down_proj"][expert].float().numpy()
    gate, up = tensors[f"{at}.gate_up_proj"][expert].float().chunk(2)
    return (gate if part == "gate_proj" else up).numpy()


@pytest.mark.parametrize("part", ["gate_proj", "up_proj", "down_proj"])
@pytest.mark.parametrize(("layer", "expert"), [(0, 0), (3, 15)])
def test_each_packed_expert_is_the_quantised_bf16_one(
    models: dict[str, Path], layer: int, expert: int, part: str
) -> None:
    plain, packed = read_tensors(models[MOE_BF16]), read_tensors(models[MOE_MXFP4])
    values = bf16_expert(plain, layer, expert, part)
    name = f"{EXPERTS.format(layer=layer)}.{expert}.{part}.weight"
    codes, scales = mxfp4.quantise(values)
    assert np.array_equal(packed[name].numpy(), codes)
    assert np.array_equal(packed[f"{name}_scale"].numpy(), scales)


def test_the_low_nibble_is_the_even_element_of_its_own_block(models: dict[str, Path]) -> None:
    # Written out element by element, with nothing of the codec.
    plain, packed = read_tensors(models[MOE_BF16]), read_tensors(models[MOE_MXFP4])
    values = bf16_expert(plain, 1, 4, "down_proj")[5]
    name = f"{EXPERTS.format(layer=1)}.4.down_proj.weight"
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    for k, value in enumerate(values.tolist()):
        byte = int(packed[name][5, k // 2])
        code = byte & 15 if k % 2 == 0 else byte >> 4
        scale = 2.0 ** (int(packed[f"{name}_scale"][5, k // 32]) - 127)
        decoded = magnitudes[code & 7] * scale * (-1 if code & 8 else 1)
        # Half of E2M1's widest gap (4 to 6), or what saturating 8 to 6 loses.
        assert abs(decoded - value) <= 2 * scale


def test_the_rest_of_the_two_models_is_the_same(models: dict[str, Path]) -> None:
    plain, packed = read_tensors(models[MOE_BF16]), read_tensors(models[MOE_MXFP4])
    for name in plain.keys() & packed.keys():
        assert torch.equal(plain[name], packed[name]), name


def test_the_twin_holds_exactly_the_values_of_the_packed_model(models: dict[str, Path]) -> None:
    packed, twin = read_tensors(models[MOE_MXFP4]), read_tensors(models["twin"])
    assert twin.keys() == {name for name in packed if not name.endswith("_scale")}
    num_dequantised = 0
    for name, tensor in twin.items():
        if packed[name].dtype == torch.uint8:
            scales = packed[f"{name}_scale"].numpy()
            values = torch.from_numpy(mxfp4.dequantise(packed[name].numpy(), scales))
            assert tensor.dtype == torch.bfloat16
            assert torch.equal(tensor.float(), values)
            num_dequantised += 1
        else:
            assert torch.equal(tensor, packed[name])
    assert num_dequantised == 4 * 16 * 3


def test_the_twin_is_quantised_to_itself(models: dict[str, Path]) -> None:
    packed, twin = read_tensors(models[MOE_MXFP4]), read_tensors(models["twin"])
    name = f"{EXPERTS.format(layer=2)}.7.gate_proj.weight"
    again = mxfp4.dequantise(*mxfp4.quantise(twin[name].float().numpy()))
    assert np.array_equal(again, twin[name].float().numpy())
    assert packed[name].shape[-1] * 2 == twin[name].shape[-1]


def test_the_twin_has_the_same_tokenizer_and_can_be_made_again(models: dict[str, Path]) -> None:
    source, twin = models[MOE_MXFP4], models["twin"]
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (twin / name).read_bytes() == (source / name).read_bytes()
    dequantised_twin(source, twin)


def test_a_scale_that_is_nan_has_no_twin(models: dict[str, Path], tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(models[MOE_MXFP4], source)
    name = f"{EXPERTS.format(layer=0)}.0.up_proj.weight"
    for path in source.glob("*.safetensors"):
        tensors = load_file(path)
        if f"{name}_scale" in tensors:
            tensors[f"{name}_scale"][0, 0] = 255
            save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"{name}: found 1 blocks with scale byte 0xff"):
        dequantised_twin(source, tmp_path / "twin")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
