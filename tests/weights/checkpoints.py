"""Checkpoints of any size: what tensors a Qwen3.5-MoE has, and files full of random bytes.

Written from the architecture alone, without the plan that is tested with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Shapes = dict[str, tuple[str, tuple[int, ...]]]

BYTES = {"U8": 1, "F8_E8M0": 1, "BF16": 2, "F32": 4}

SMALL_TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "vocab_size": 200,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "full_attention_interval": 4,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 64,
    "mtp_num_hidden_layers": 1,
}

# Source: config.json of Qwen3.5-397B-A17B.
REAL_TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 4096,
    "num_hidden_layers": 60,
    "vocab_size": 248320,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 64,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024,
    "mtp_num_hidden_layers": 1,
}


def config(text: Mapping[str, Any], *, vision: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a ``config.json`` that is enough for sharding."""
    result: dict[str, Any] = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": dict(text),
    }
    if vision is None:
        result["language_model_only"] = True
    else:
        result["vision_config"] = dict(vision)
    return result


def shapes(
    text: Mapping[str, Any], *, experts: str = "mxfp4", mtp: bool = True, mtp_experts: str = "bf16"
) -> Shapes:
    """Return dtype and shape of every tensor of a text-only checkpoint, by name.

    Args:
        text: The ``text_config``.
        experts: ``mxfp4`` (one tensor and its scales per expert), ``bf16`` or ``stacked``.
        mtp: Whether it has the MTP layer.
        mtp_experts: As ``experts``, for that layer.
    """
    found: Shapes = {}
    hidden = text["hidden_size"]
    prefix = "model.language_model."
    found[f"{prefix}embed_tokens.weight"] = ("BF16", (text["vocab_size"], hidden))
    for i in range(text["num_hidden_layers"]):
        at = f"{prefix}layers.{i}."
        if (i + 1) % text["full_attention_interval"] == 0:
            _attention(found, at, text)
        else:
            _delta_net(found, at, text)
        _common(found, at, text, experts)
    found[f"{prefix}norm.weight"] = ("BF16", (hidden,))
    found["lm_head.weight"] = ("BF16", (text["vocab_size"], hidden))
    if mtp:
        found["mtp.fc.weight"] = ("BF16", (hidden, 2 * hidden))
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            found[f"mtp.{name}.weight"] = ("BF16", (hidden,))
        _attention(found, "mtp.layers.0.", text)
        _common(found, "mtp.layers.0.", text, mtp_experts)
    return found


def _attention(found: Shapes, at: str, text: Mapping[str, Any]) -> None:
    hidden, width = text["hidden_size"], text["num_attention_heads"] * text["head_dim"]
    keys = text["num_key_value_heads"] * text["head_dim"]
    found[f"{at}self_attn.q_proj.weight"] = ("BF16", (2 * width, hidden))
    found[f"{at}self_attn.k_proj.weight"] = ("BF16", (keys, hidden))
    found[f"{at}self_attn.v_proj.weight"] = ("BF16", (keys, hidden))
    found[f"{at}self_attn.o_proj.weight"] = ("BF16", (hidden, width))
    found[f"{at}self_attn.q_norm.weight"] = ("BF16", (text["head_dim"],))
    found[f"{at}self_attn.k_norm.weight"] = ("BF16", (text["head_dim"],))


def _delta_net(found: Shapes, at: str, text: Mapping[str, Any]) -> None:
    hidden, heads = text["hidden_size"], text["linear_num_value_heads"]
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = heads * text["linear_value_head_dim"]
    at += "linear_attn."
    found[f"{at}A_log"] = ("F32", (heads,))
    found[f"{at}dt_bias"] = ("BF16", (heads,))
    found[f"{at}conv1d.weight"] = (
        "BF16",
        (2 * keys + values, 1, text["linear_conv_kernel_dim"]),
    )
    found[f"{at}in_proj_qkv.weight"] = ("BF16", (2 * keys + values, hidden))
    found[f"{at}in_proj_z.weight"] = ("BF16", (values, hidden))
    found[f"{at}in_proj_b.weight"] = ("BF16", (heads, hidden))
    found[f"{at}in_proj_a.weight"] = ("BF16", (heads, hidden))
    found[f"{at}norm.weight"] = ("F32", (text["linear_value_head_dim"],))
    found[f"{at}out_proj.weight"] = ("BF16", (hidden, values))


def _common(found: Shapes, at: str, text: Mapping[str, Any], experts: str) -> None:
    hidden, inter, num = (
        text["hidden_size"],
        text["moe_intermediate_size"],
        text["num_experts"],
    )
    found[f"{at}input_layernorm.weight"] = ("BF16", (hidden,))
    found[f"{at}post_attention_layernorm.weight"] = ("BF16", (hidden,))
    found[f"{at}mlp.gate.weight"] = ("BF16", (num, hidden))
    shared = text["shared_expert_intermediate_size"]
    found[f"{at}mlp.shared_expert.gate_proj.weight"] = ("BF16", (shared, hidden))
    found[f"{at}mlp.shared_expert.up_proj.weight"] = ("BF16", (shared, hidden))
    found[f"{at}mlp.shared_expert.down_proj.weight"] = ("BF16", (hidden, shared))
    found[f"{at}mlp.shared_expert_gate.weight"] = ("BF16", (1, hidden))
    if experts == "stacked":
        found[f"{at}mlp.experts.gate_up_proj"] = ("BF16", (num, 2 * inter, hidden))
        found[f"{at}mlp.experts.down_proj"] = ("BF16", (num, hidden, inter))
        return
    for e in range(num):
        for name, rows, columns in (
            ("down_proj", hidden, inter),
            ("gate_proj", inter, hidden),
            ("up_proj", inter, hidden),
        ):
            weight = f"{at}mlp.experts.{e}.{name}.weight"
            if experts == "mxfp4":
                found[weight] = ("U8", (rows, columns // 2))
                found[f"{weight}_scale"] = ("U8", (rows, columns // 32))
            else:
                found[weight] = ("BF16", (rows, columns))


def values(name: str, dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return random bytes as uint8 ``[elements, bytes per element]``; scales are usable ones."""
    key = np.frombuffer(f"{seed}/{name}".encode(), dtype=np.uint8)
    draw = np.random.default_rng(key)
    count = int(np.prod(shape))
    if name.endswith("_scale"):
        return draw.integers(100, 150, size=(count, 1), dtype=np.uint8)
    return draw.integers(0, 256, size=(count, BYTES[dtype]), dtype=np.uint8)


def file_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """Return a safetensors file of tensors given as dtype, shape and content."""
    entries: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape, content) in tensors.items():
        entries[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [at, at + len(content)],
        }
        at += len(content)
    head = json.dumps(entries).encode()
    return len(head).to_bytes(8, "little") + head + b"".join(t[2] for t in tensors.values())


def write(
    directory: Path,
    model_config: Mapping[str, Any],
    tensors: Shapes,
    *,
    seed: int = 0,
    num_files: int = 3,
) -> Path:
    """Write a checkpoint with an index and random bytes; return its directory."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(model_config, indent=1))
    (directory / "tokenizer.json").write_text("{}")
    names = list(tensors)
    weight_map = {}
    for number in range(num_files):
        share = names[number * len(names) // num_files : (number + 1) * len(names) // num_files]
        file = f"model-{number + 1:05d}-of-{num_files:05d}.safetensors"
        content = {
            name: (*tensors[name], values(name, *tensors[name], seed).tobytes()) for name in share
        }
        (directory / file).write_bytes(file_bytes(content))
        weight_map.update(dict.fromkeys(share, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory
