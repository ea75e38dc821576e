"""config.json, generation_config.json and the image processor's files of a tiny model."""

from __future__ import annotations

from typing import Any

from sglang_mi300a.mxfp4 import BLOCK
from sglang_mi300a.tiny_model import tokenizer
from sglang_mi300a.tiny_model.sizes import (
    FULL_ATTENTION_INTERVAL,
    PARTIAL_ROTARY_FACTOR,
    TinySizes,
)

RMS_EPS = 1e-6
ROPE_THETA = 10_000_000

VISION_DEPTH = 2
VISION_HIDDEN = 64
VISION_INTERMEDIATE = 128
VISION_HEADS = 4
VISION_PATCH = 16
VISION_MERGE = 2
VISION_FRAMES = 2
VISION_POSITIONS = 64
VISION_CHANNELS = 3


def dense(sizes: TinySizes, ids: dict[str, int]) -> dict[str, Any]:
    """Return config.json of the dense kind, a Qwen3 model."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": ids[tokenizer.ENDOFTEXT],
        "dtype": "bfloat16",
        "eos_token_id": ids[tokenizer.IM_END],
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "initializer_range": 0.02,
        "intermediate_size": sizes.dense_intermediate,
        "max_position_embeddings": sizes.max_positions,
        "model_type": "qwen3",
        "num_attention_heads": sizes.attention_heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads,
        "pad_token_id": ids[tokenizer.ENDOFTEXT],
        "rms_norm_eps": RMS_EPS,
        "rope_parameters": {"rope_theta": 1_000_000, "rope_type": "default"},
        "rope_theta": 1_000_000,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": sizes.vocab,
    }


def qwen3_5_moe(
    sizes: TinySizes, ids: dict[str, int], *, mtp: bool, visual: bool, mxfp4: bool
) -> dict[str, Any]:
    """Return config.json of the Qwen3.5-MoE kinds.

    Without the vision tower the model is marked ``language_model_only``, which SGLang reads.
    """
    config: dict[str, Any] = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "image_token_id": ids[tokenizer.IMAGE_PAD],
        "model_type": "qwen3_5_moe",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "dtype": "bfloat16",
            "eos_token_id": ids[tokenizer.ENDOFTEXT],
            "full_attention_interval": FULL_ATTENTION_INTERVAL,
            "head_dim": sizes.head_dim,
            "hidden_act": "silu",
            "hidden_size": sizes.hidden,
            "initializer_range": 0.02,
            "layer_types": sizes.layer_types,
            "linear_conv_kernel_dim": sizes.gdn_conv_taps,
            "linear_key_head_dim": sizes.gdn_head_dim,
            "linear_num_key_heads": sizes.gdn_key_heads,
            "linear_num_value_heads": sizes.gdn_value_heads,
            "linear_value_head_dim": sizes.gdn_head_dim,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": sizes.max_positions,
            "mlp_only_layers": [],
            "model_type": "qwen3_5_moe_text",
            "moe_intermediate_size": sizes.moe_intermediate,
            "mtp_num_hidden_layers": 1 if mtp else 0,
            "mtp_use_dedicated_embeddings": False,
            "num_attention_heads": sizes.attention_heads,
            "num_experts": sizes.experts,
            "num_experts_per_tok": sizes.experts_per_token,
            "num_hidden_layers": sizes.layers,
            "num_key_value_heads": sizes.kv_heads,
            "output_router_logits": False,
            "partial_rotary_factor": PARTIAL_ROTARY_FACTOR,
            "rms_norm_eps": RMS_EPS,
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": sizes.mrope_section,
                "partial_rotary_factor": PARTIAL_ROTARY_FACTOR,
                "rope_theta": ROPE_THETA,
                "rope_type": "default",
            },
            "router_aux_loss_coef": 0.001,
            "shared_expert_intermediate_size": sizes.shared_intermediate,
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": sizes.vocab,
        },
        "tie_word_embeddings": False,
        "video_token_id": ids[tokenizer.VIDEO_PAD],
        "vision_end_token_id": ids[tokenizer.VISION_END],
        "vision_start_token_id": ids[tokenizer.VISION_START],
    }
    if visual:
        config["vision_config"] = {
            "deepstack_visual_indexes": [],
            "depth": VISION_DEPTH,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": VISION_HIDDEN,
            "in_channels": VISION_CHANNELS,
            "initializer_range": 0.02,
            "intermediate_size": VISION_INTERMEDIATE,
            "model_type": "qwen3_5_moe",
            "num_heads": VISION_HEADS,
            "num_position_embeddings": VISION_POSITIONS,
            "out_hidden_size": sizes.hidden,
            "patch_size": VISION_PATCH,
            "spatial_merge_size": VISION_MERGE,
            "temporal_patch_size": VISION_FRAMES,
        }
    else:
        config["language_model_only"] = True
    if mxfp4:
        config["quantization_config"] = quark_mxfp4(excluded_modules(sizes, mtp=mtp, visual=visual))
    return config


def excluded_modules(
    sizes: TinySizes, *, mtp: bool, visual: bool, vision_depth: int = VISION_DEPTH
) -> list[str]:
    """Return the modules that stay bf16, each by its full name, as Quark lists them.

    With the real model's sizes (60 layers, 512 experts, 27 vision blocks) these are 2,287, the
    number in the config.json of amd/Qwen3.5-397B-A17B-MXFP4.
    """
    shared = [f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")]
    mlp = ["mlp.gate", "mlp.shared_expert_gate", *shared]
    attention = [f"self_attn.{part}_proj" for part in "qkvo"]
    linear = [
        *(f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "b", "a")),
        "linear_attn.conv1d",
        "linear_attn.out_proj",
    ]
    modules = ["lm_head"]
    if visual:
        for block in range(vision_depth):
            for part in ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2"):
                modules.append(f"model.visual.blocks.{block}.{part}")
        modules += ["model.visual.merger.linear_fc1", "model.visual.merger.linear_fc2"]
    for layer, layer_type in enumerate(sizes.layer_types):
        mixer = attention if layer_type == "full_attention" else linear
        modules += [f"model.language_model.layers.{layer}.{part}" for part in (*mixer, *mlp)]
    if mtp:
        experts = [
            f"mlp.experts.{expert}.{part}_proj"
            for expert in range(sizes.experts)
            for part in ("gate", "up", "down")
        ]
        modules.append("mtp.fc")
        modules += [f"mtp.layers.0.{part}" for part in (*attention, *mlp, *experts)]
    return modules


def quark_mxfp4(exclude: list[str]) -> dict[str, Any]:
    """Return Quark's ``quantization_config``: static MXFP4 weights, dynamic MXFP4 activations."""

    def spec(is_dynamic: bool) -> dict[str, Any]:
        return {
            "ch_axis": -1,
            "dtype": "fp4",
            "group_size": BLOCK,
            "is_dynamic": is_dynamic,
            "is_scale_quant": False,
            "mx_element_dtype": None,
            "observer_cls": "PerBlockMXObserver",
            "qscheme": "per_group",
            "round_method": "half_even",
            "scale_calculation_mode": "even",
            "scale_format": "e8m0",
            "scale_type": "float",
            "symmetric": None,
        }

    return {
        "algo_config": None,
        "exclude": exclude,
        "export": {
            "kv_cache_group": [],
            "min_kv_scale": 0.0,
            "pack_method": "reorder",
            "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
        "global_quant_config": {
            "bias": None,
            "input_tensors": spec(True),
            "output_tensors": None,
            "target_device": None,
            "weight": spec(False),
        },
        "kv_cache_post_rope": False,
        "kv_cache_quant_config": {},
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "quant_method": "quark",
        "quant_mode": "eager_mode",
        "softmax_quant_spec": None,
        "version": "0.13",
    }


def generation(ids: dict[str, int]) -> dict[str, Any]:
    """Return generation_config.json."""
    return {
        "bos_token_id": ids[tokenizer.ENDOFTEXT],
        "do_sample": True,
        "eos_token_id": [ids[tokenizer.IM_END], ids[tokenizer.ENDOFTEXT]],
        "pad_token_id": ids[tokenizer.ENDOFTEXT],
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }


def image_processor() -> dict[str, Any]:
    """Return preprocessor_config.json; images of 32 x 32 up to 128 x 128 pixels."""
    return {
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "image_std": [0.5, 0.5, 0.5],
        "merge_size": VISION_MERGE,
        "patch_size": VISION_PATCH,
        "processor_class": "Qwen3VLProcessor",
        "size": {"longest_edge": 128 * 128, "shortest_edge": 32 * 32},
        "temporal_patch_size": VISION_FRAMES,
    }


def video_processor() -> dict[str, Any]:
    """Return video_preprocessor_config.json."""
    return {**image_processor(), "video_processor_type": "Qwen3VLVideoProcessor"}
