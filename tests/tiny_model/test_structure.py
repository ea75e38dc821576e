"""A tiny checkpoint is built like the real one: names, dtypes, quantisation config, shards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sglang_mi300a.tiny_model import DENSE, MOE_BF16, MOE_MXFP4, TinySizes, make_tiny_model
from sglang_mi300a.tiny_model.checkpoint import read_tensors
from sglang_mi300a.tiny_model.configs import excluded_modules

if TYPE_CHECKING:
    import torch

# The names of amd/Qwen3.5-397B-A17B-MXFP4, with N and E for layer and expert.
MLP = """
mlp.gate.weight
mlp.shared_expert.gate_proj.weight
mlp.shared_expert.up_proj.weight
mlp.shared_expert.down_proj.weight
mlp.shared_expert_gate.weight
input_layernorm.weight
post_attention_layernorm.weight
""".split()
FULL_ATTENTION = """
self_attn.q_proj.weight
self_attn.k_proj.weight
self_attn.v_proj.weight
self_attn.o_proj.weight
self_attn.q_norm.weight
self_attn.k_norm.weight
""".split()
DELTA_NET = """
linear_attn.A_log
linear_attn.dt_bias
linear_attn.conv1d.weight
linear_attn.in_proj_qkv.weight
linear_attn.in_proj_z.weight
linear_attn.in_proj_b.weight
linear_attn.in_proj_a.weight
linear_attn.norm.weight
linear_attn.out_proj.weight
""".split()
PACKED_EXPERT = """
mlp.experts.E.gate_proj.weight
mlp.experts.E.gate_proj.weight_scale
mlp.experts.E.up_proj.weight
mlp.experts.E.up_proj.weight_scale
mlp.experts.E.down_proj.weight
mlp.experts.E.down_proj.weight_scale
""".split()
PLAIN_EXPERT = [name for name in PACKED_EXPERT if name.endswith(".weight")]
MTP = """
mtp.fc.weight
mtp.norm.weight
mtp.pre_fc_norm_embedding.weight
mtp.pre_fc_norm_hidden.weight
""".split()
OUTSIDE_LAYERS = """
lm_head.weight
model.language_model.embed_tokens.weight
model.language_model.norm.weight
""".split()


def config(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return loaded


def of_each(names: list[str], prefix: str, num_experts: int) -> set[str]:
    return {
        f"{prefix}{name.replace('.E.', f'.{expert}.')}"
        for name in names
        for expert in range(num_experts)
    }


def test_the_mxfp4_names_are_those_of_the_real_checkpoint(models: dict[str, Path]) -> None:
    expected = {*OUTSIDE_LAYERS, *MTP, *of_each(PLAIN_EXPERT, "mtp.layers.0.", 16)}
    expected |= {f"mtp.layers.0.{name}" for name in (*MLP, *FULL_ATTENTION)}
    for layer, mixer in enumerate((DELTA_NET, DELTA_NET, DELTA_NET, FULL_ATTENTION)):
        at = f"model.language_model.layers.{layer}."
        expected |= {f"{at}{name}" for name in (*MLP, *mixer)}
        expected |= of_each(PACKED_EXPERT, at, 16)
    assert set(read_tensors(models[MOE_MXFP4])) == expected


def test_the_bf16_names_differ_in_stacked_experts_only(models: dict[str, Path]) -> None:
    packed = set(read_tensors(models[MOE_MXFP4]))
    plain = set(read_tensors(models[MOE_BF16]))
    assert packed - plain == {
        name for name in packed if name.startswith("model.") and ".experts." in name
    }
    assert plain - packed == {
        f"model.language_model.layers.{layer}.mlp.experts.{part}"
        for layer in range(4)
        for part in ("gate_up_proj", "down_proj")
    }


def test_packed_experts_are_bytes_of_the_right_shape(models: dict[str, Path]) -> None:
    import torch

    sizes = TinySizes()
    tensors = read_tensors(models[MOE_MXFP4])
    at = "model.language_model.layers.2.mlp.experts.15"
    for part, rows, k in (
        ("gate_proj", sizes.moe_intermediate, sizes.hidden),
        ("up_proj", sizes.moe_intermediate, sizes.hidden),
        ("down_proj", sizes.hidden, sizes.moe_intermediate),
    ):
        packed, scale = tensors[f"{at}.{part}.weight"], tensors[f"{at}.{part}.weight_scale"]
        assert packed.dtype == scale.dtype == torch.uint8
        assert (packed.shape, scale.shape) == ((rows, k // 2), (rows, k // 32))


def test_what_is_excluded_is_bf16_and_the_rest_is_packed(models: dict[str, Path]) -> None:
    import torch

    for name in (MOE_MXFP4, "visual"):
        tensors = read_tensors(models[name])
        excluded = set(config(models[name])["quantization_config"]["exclude"])
        assert excluded <= {tensor.rpartition(".")[0] for tensor in tensors}
        packed = {name for name, tensor in tensors.items() if tensor.dtype == torch.uint8}
        assert packed
        for tensor_name, tensor in tensors.items():
            module = tensor_name.rpartition(".")[0]
            if module in excluded:
                assert tensor.dtype == torch.bfloat16, tensor_name
            elif re.search(r"^model\..*\.mlp\.experts\.\d+\.", tensor_name):
                assert tensor_name in packed
            else:
                assert tensor_name not in packed
        # No matrix of a linear layer is left that is neither packed nor excluded.
        linear = {
            tensor_name.rpartition(".")[0]
            for tensor_name, tensor in tensors.items()
            if tensor.ndim == 2 and not re.search("embed", tensor_name)
        }
        assert {module for module in linear - excluded if ".mlp.experts." not in module} == set()


def test_with_the_real_sizes_as_many_modules_are_excluded_as_in_the_real_config() -> None:
    real = TinySizes(layers=60, experts=512)
    modules = excluded_modules(real, mtp=True, visual=True, vision_depth=27)
    assert len(modules) == len(set(modules)) == 2287


def test_the_quantisation_is_declared_as_quark_mxfp4(models: dict[str, Path]) -> None:
    quantisation = config(models[MOE_MXFP4])["quantization_config"]
    assert quantisation["quant_method"] == "quark"
    assert quantisation["export"] == {**quantisation["export"], "kv_cache_group": []}
    assert quantisation["layer_quant_config"] == {}
    for tensors, is_dynamic in (("weight", False), ("input_tensors", True)):
        spec = quantisation["global_quant_config"][tensors]
        assert (spec["dtype"], spec["qscheme"], spec["group_size"]) == ("fp4", "per_group", 32)
        assert (spec["scale_format"], spec["is_dynamic"]) == ("e8m0", is_dynamic)
    for kind in (DENSE, MOE_BF16, "twin"):
        assert "quantization_config" not in config(models[kind])


def test_the_text_only_model_says_so_and_the_visual_one_has_a_tower(
    models: dict[str, Path],
) -> None:
    text, visual = config(models[MOE_MXFP4]), config(models["visual"])
    assert text["language_model_only"] is True
    assert "vision_config" not in text
    assert not any("visual" in name for name in read_tensors(models[MOE_MXFP4]))
    assert "language_model_only" not in visual
    assert visual["vision_config"]["out_hidden_size"] == visual["text_config"]["hidden_size"]
    assert any(name.startswith("model.visual.") for name in read_tensors(models["visual"]))
    assert (models["visual"] / "preprocessor_config.json").is_file()


def test_the_architecture_keeps_its_proportions(models: dict[str, Path]) -> None:
    text = config(models[MOE_MXFP4])["text_config"]
    tensors = read_tensors(models[MOE_MXFP4])
    layers = "model.language_model.layers"
    assert text["layer_types"] == ["linear_attention"] * 3 + ["full_attention"]
    assert text["linear_num_value_heads"] == 4 * text["linear_num_key_heads"]
    # The query projection carries the output gate: twice the rows.
    rows = 2 * text["num_attention_heads"] * text["head_dim"]
    assert tensors[f"{layers}.3.self_attn.q_proj.weight"].shape[0] == rows
    conv_rows = text["linear_key_head_dim"] * (
        2 * text["linear_num_key_heads"] + text["linear_num_value_heads"]
    )
    assert tensors[f"{layers}.0.linear_attn.conv1d.weight"].shape == (conv_rows, 1, 4)
    assert tensors[f"{layers}.0.mlp.shared_expert_gate.weight"].shape == (1, text["hidden_size"])
    rope = text["rope_parameters"]
    assert 2 * sum(rope["mrope_section"]) == text["head_dim"] * rope["partial_rotary_factor"]
    assert rope["mrope_interleaved"] is True


def test_the_real_models_rotary_split_comes_out_of_the_real_head() -> None:
    assert TinySizes(head_dim=256).mrope_section == [11, 11, 10]


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_it_can_be_cut_over_1_2_and_4_ranks(tp: int) -> None:
    sizes = TinySizes()
    for ep in (1, 2, 4):
        if ep <= tp:
            assert sizes.serves_on(tp=tp, ep=ep) == ""
    # A block of 32 along K of the down projection must stay whole.
    assert sizes.moe_intermediate // tp % 32 == 0
    assert sizes.vocab % (64 * tp) != 0


def test_it_cannot_be_cut_over_8_ranks() -> None:
    assert TinySizes().serves_on(tp=8) == "gdn_key_heads = 4 is no multiple of 8"
    wide = TinySizes(gdn_key_heads=8, gdn_value_heads=32)
    assert wide.serves_on(tp=8) == "moe_intermediate = 128 is no multiple of 256"
    assert wide.serves_on(tp=8, ep=8) == ""


def test_shards_and_index_agree(models: dict[str, Path]) -> None:
    from safetensors import safe_open

    folder = models[MOE_MXFP4]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == files
    total_bytes = 0
    for file_name in files:
        with safe_open(folder / file_name, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
            for name in file.keys():  # noqa: SIM118 - not a mapping
                assert index["weight_map"].pop(name) == file_name
                total_bytes += file.get_tensor(name).nbytes
    assert index["weight_map"] == {}
    assert index["metadata"]["total_size"] == total_bytes


def test_tensors_keep_their_values_whatever_else_is_in_the_model(
    models: dict[str, Path], tmp_path: Path
) -> None:
    lean = make_tiny_model(tmp_path / "m", kind=MOE_MXFP4, mtp=False)
    tensors = read_tensors(lean.path)
    full = read_tensors(models["visual"])
    assert config(lean.path)["text_config"]["mtp_num_hidden_layers"] == 0
    assert not any(name.startswith("mtp.") for name in [*tensors, *excluded(lean.path)])
    assert all(same(tensor, full[name]) for name, tensor in tensors.items())


def excluded(folder: Path) -> list[str]:
    modules: list[str] = config(folder)["quantization_config"]["exclude"]
    return modules


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and bool((left == right).all())
