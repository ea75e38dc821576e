"""The tensors of a tiny model: names as in the real checkpoints, values drawn by name.

Values are those of the bf16 checkpoint; the MXFP4 one holds the same values, quantised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sglang_mi300a import mxfp4
from sglang_mi300a.tiny_model import configs
from sglang_mi300a.tiny_model.sizes import TinySizes
from sglang_mi300a.tiny_model.values import Values

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]
    Array = NDArray[np.float32]

TEXT = "model.language_model"
VISUAL = "model.visual"
MTP = "mtp"

EMBEDDING_STD = 1.0

ECHO_SCALE = 0.08
"""Factor on what each layer adds to the residual stream of an ``echo`` model. The next token then
hangs mostly on the last one, and the MTP layer, which sees just the embedding of that one, guesses
it often; of a model with plain random weights no draft is accepted."""

PLAIN_SCALE = 0.5
"""The same factor for other models: context decides the next token, yet one expert more or less
(which bf16 rounding may cause) does not overturn everything."""

_OUTPUT_GAIN = 0.5
_ROUTER_GAIN = 3.0
_HEAD_GAIN = 4.0
"""Spread of the logits, wide enough that near ties are rare."""


def dense_tensors(sizes: TinySizes, values: Values, speakable: tuple[int, ...]) -> Tensors:
    """Return the tensors of the dense kind."""
    tensors = _Tensors(values)
    tensors.embedding("model.embed_tokens.weight", sizes)
    for layer in range(sizes.layers):
        at = f"model.layers.{layer}"
        tensors.norm(f"{at}.input_layernorm.weight", sizes.hidden, centre=1.0)
        _attention(tensors, f"{at}.self_attn", sizes, gain=1.0, gated=False, norm_centre=1.0)
        tensors.norm(f"{at}.post_attention_layernorm.weight", sizes.hidden, centre=1.0)
        _mlp(tensors, f"{at}.mlp", sizes.hidden, sizes.dense_intermediate, gain=1.0)
    tensors.norm("model.norm.weight", sizes.hidden, centre=1.0)
    tensors.head("lm_head.weight", sizes, speakable)
    return tensors.stored


def moe_tensors(
    sizes: TinySizes,
    values: Values,
    speakable: tuple[int, ...],
    *,
    echo: bool,
    mtp: bool,
    visual: bool,
    packed: bool,
) -> Tensors:
    """Return the tensors of a Qwen3.5-MoE kind.

    Args:
        sizes: The model's sizes.
        values: Draws the values.
        speakable: Token ids whose head row is not zero.
        echo: Whether layers add little, so that MTP drafts get accepted.
        mtp: Whether to add the ``mtp.*`` tensors.
        visual: Whether to add the ``model.visual.*`` tensors.
        packed: Whether routed experts are MXFP4, one by one, or stacked bf16.
    """
    gain = ECHO_SCALE if echo else PLAIN_SCALE
    tensors = _Tensors(values)
    tensors.embedding(f"{TEXT}.embed_tokens.weight", sizes)
    for layer, layer_type in enumerate(sizes.layer_types):
        at = f"{TEXT}.layers.{layer}"
        tensors.norm(f"{at}.input_layernorm.weight", sizes.hidden)
        if layer_type == "full_attention":
            _attention(tensors, f"{at}.self_attn", sizes, gain=gain, gated=True)
        else:
            _delta_net(tensors, f"{at}.linear_attn", sizes, gain=gain)
        tensors.norm(f"{at}.post_attention_layernorm.weight", sizes.hidden)
        _moe(tensors, f"{at}.mlp", sizes, gain=gain, layout="packed" if packed else "stacked")
    tensors.norm(f"{TEXT}.norm.weight", sizes.hidden)
    if visual:
        _vision_tower(tensors, sizes)
    tensors.head("lm_head.weight", sizes, speakable)
    if mtp:
        _mtp_layer(tensors, sizes, echo=echo, gain=gain)
    return tensors.stored


class _Tensors:
    """Collects tensors in checkpoint order, rounded to bf16 unless said otherwise."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.stored: Tensors = {}

    def put(self, name: str, array: Array, *, keep_float32: bool = False) -> None:
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(array))
        self.stored[name] = tensor if keep_float32 else tensor.to(torch.bfloat16)

    def put_bytes(self, name: str, array: NDArray[np.uint8]) -> None:
        import torch

        self.stored[name] = torch.from_numpy(np.ascontiguousarray(array))

    def linear(self, name: str, num_out: int, num_in: int, gain: float = 1.0) -> None:
        """Put a matrix that turns inputs of spread 1 into outputs of spread ``gain``."""
        self.put(name, self.values.normal(name, (num_out, num_in), gain / num_in**0.5))

    def norm(self, name: str, width: int, *, centre: float = 0.0) -> None:
        """Put a norm weight; Qwen3.5's norms multiply by 1 + weight, hence centre 0."""
        self.put(name, self.values.normal(name, (width,), 0.1, mean=centre))

    def embedding(self, name: str, sizes: TinySizes) -> None:
        self.put(name, self.values.normal(name, (sizes.vocab, sizes.hidden), EMBEDDING_STD))

    def head(self, name: str, sizes: TinySizes, speakable: tuple[int, ...]) -> None:
        drawn = self.values.normal(
            name, (sizes.vocab, sizes.hidden), _HEAD_GAIN / sizes.hidden**0.5
        )
        rows = np.zeros((sizes.vocab, 1), dtype=np.float32)
        rows[list(speakable)] = 1.0
        self.put(name, drawn * rows)


def _attention(
    tensors: _Tensors,
    at: str,
    sizes: TinySizes,
    *,
    gain: float,
    gated: bool,
    norm_centre: float = 0.0,
) -> None:
    width = sizes.attention_heads * sizes.head_dim
    kv_width = sizes.kv_heads * sizes.head_dim
    # Each head's query rows are followed by its output gate's rows.
    tensors.linear(f"{at}.q_proj.weight", width * (2 if gated else 1), sizes.hidden)
    tensors.linear(f"{at}.k_proj.weight", kv_width, sizes.hidden)
    tensors.linear(f"{at}.v_proj.weight", kv_width, sizes.hidden)
    tensors.linear(f"{at}.o_proj.weight", sizes.hidden, width, gain * _OUTPUT_GAIN)
    tensors.norm(f"{at}.q_norm.weight", sizes.head_dim, centre=norm_centre)
    tensors.norm(f"{at}.k_norm.weight", sizes.head_dim, centre=norm_centre)


def _delta_net(tensors: _Tensors, at: str, sizes: TinySizes, *, gain: float) -> None:
    heads = sizes.gdn_value_heads
    value_width = heads * sizes.gdn_head_dim
    qkv_width = 2 * sizes.gdn_key_heads * sizes.gdn_head_dim + value_width
    draw = tensors.values
    # Decay per token is exp(-A * softplus(a + dt_bias)): memories of a few up to some hundred
    # tokens, so that a state which is lost or mixed up shows in the output.
    name = f"{at}.A_log"
    tensors.put(name, np.log(draw.uniform(name, (heads,), 1.0, 16.0)), keep_float32=True)
    name = f"{at}.dt_bias"
    step = np.exp(draw.uniform(name, (heads,), float(np.log(1e-3)), float(np.log(1e-1))))
    tensors.put(name, np.log(np.expm1(step)))
    name = f"{at}.conv1d.weight"
    tensors.put(name, draw.normal(name, (qkv_width, 1, sizes.gdn_conv_taps), 0.5))
    tensors.linear(f"{at}.in_proj_qkv.weight", qkv_width, sizes.hidden)
    tensors.linear(f"{at}.in_proj_z.weight", value_width, sizes.hidden)
    tensors.linear(f"{at}.in_proj_b.weight", heads, sizes.hidden)
    tensors.linear(f"{at}.in_proj_a.weight", heads, sizes.hidden)
    tensors.norm(f"{at}.norm.weight", sizes.gdn_head_dim, centre=1.0)
    tensors.linear(f"{at}.out_proj.weight", sizes.hidden, value_width, gain * _OUTPUT_GAIN)


def _mlp(tensors: _Tensors, at: str, hidden: int, intermediate: int, *, gain: float) -> None:
    tensors.linear(f"{at}.gate_proj.weight", intermediate, hidden)
    tensors.linear(f"{at}.up_proj.weight", intermediate, hidden)
    tensors.linear(f"{at}.down_proj.weight", hidden, intermediate, gain)


def _moe(tensors: _Tensors, at: str, sizes: TinySizes, *, gain: float, layout: str) -> None:
    tensors.linear(f"{at}.gate.weight", sizes.experts, sizes.hidden, _ROUTER_GAIN)
    draw = tensors.values
    hidden, width = sizes.hidden, sizes.moe_intermediate
    gate_up = draw.normal(
        f"{at}.experts.gate_up_proj", (sizes.experts, 2 * width, hidden), hidden**-0.5
    )
    down = draw.normal(
        f"{at}.experts.down_proj", (sizes.experts, hidden, width), 2.0 * gain * width**-0.5
    )
    if layout == "stacked":
        tensors.put(f"{at}.experts.gate_up_proj", gate_up)
        tensors.put(f"{at}.experts.down_proj", down)
    else:
        for part, stack in (
            ("gate_proj", gate_up[:, :width]),
            ("up_proj", gate_up[:, width:]),
            ("down_proj", down),
        ):
            names = [f"{at}.experts.{expert}.{part}" for expert in range(sizes.experts)]
            if layout == "packed":
                packed, scales = mxfp4.quantise(_rounded_to_bf16(stack))
                for expert, name in enumerate(names):
                    tensors.put_bytes(f"{name}.weight", packed[expert])
                    tensors.put_bytes(f"{name}.weight_scale", scales[expert])
            else:
                for expert, name in enumerate(names):
                    tensors.put(f"{name}.weight", stack[expert])
    _mlp(tensors, f"{at}.shared_expert", hidden, sizes.shared_intermediate, gain=2.0 * gain)
    tensors.linear(f"{at}.shared_expert_gate.weight", 1, hidden)


def _mtp_layer(tensors: _Tensors, sizes: TinySizes, *, echo: bool, gain: float) -> None:
    name = f"{MTP}.fc.weight"
    if echo:
        token_half = EMBEDDING_STD * np.eye(sizes.hidden, dtype=np.float32)
        tensors.put(name, np.concatenate([token_half, np.zeros_like(token_half)], axis=1))
    else:
        tensors.linear(name, sizes.hidden, 2 * sizes.hidden)
    tensors.norm(f"{MTP}.pre_fc_norm_embedding.weight", sizes.hidden)
    tensors.norm(f"{MTP}.pre_fc_norm_hidden.weight", sizes.hidden)
    at = f"{MTP}.layers.0"
    tensors.norm(f"{at}.input_layernorm.weight", sizes.hidden)
    _attention(tensors, f"{at}.self_attn", sizes, gain=gain, gated=True)
    tensors.norm(f"{at}.post_attention_layernorm.weight", sizes.hidden)
    _moe(tensors, f"{at}.mlp", sizes, gain=gain, layout="per_expert")
    tensors.norm(f"{MTP}.norm.weight", sizes.hidden)


def _vision_tower(tensors: _Tensors, sizes: TinySizes) -> None:
    width, inner = configs.VISION_HIDDEN, configs.VISION_INTERMEDIATE

    def with_bias(name: str, num_out: int, num_in: int) -> None:
        tensors.linear(f"{name}.weight", num_out, num_in)
        tensors.norm(f"{name}.bias", num_out)

    def layer_norm(name: str, size: int) -> None:
        tensors.norm(f"{name}.weight", size, centre=1.0)
        tensors.norm(f"{name}.bias", size)

    patch = (
        configs.VISION_CHANNELS,
        configs.VISION_FRAMES,
        configs.VISION_PATCH,
        configs.VISION_PATCH,
    )
    name = f"{VISUAL}.patch_embed.proj"
    drawn = tensors.values.normal(f"{name}.weight", (width, *patch), float(np.prod(patch)) ** -0.5)
    tensors.put(f"{name}.weight", drawn)
    tensors.norm(f"{name}.bias", width)
    name = f"{VISUAL}.pos_embed.weight"
    tensors.put(name, tensors.values.normal(name, (configs.VISION_POSITIONS, width), 0.1))
    for block in range(configs.VISION_DEPTH):
        at = f"{VISUAL}.blocks.{block}"
        layer_norm(f"{at}.norm1", width)
        layer_norm(f"{at}.norm2", width)
        with_bias(f"{at}.attn.qkv", 3 * width, width)
        with_bias(f"{at}.attn.proj", width, width)
        with_bias(f"{at}.mlp.linear_fc1", inner, width)
        with_bias(f"{at}.mlp.linear_fc2", width, inner)
    merged = width * configs.VISION_MERGE**2
    layer_norm(f"{VISUAL}.merger.norm", width)
    with_bias(f"{VISUAL}.merger.linear_fc1", merged, merged)
    with_bias(f"{VISUAL}.merger.linear_fc2", sizes.hidden, merged)


def _rounded_to_bf16(array: Array) -> Array:
    import torch

    rounded = torch.from_numpy(np.ascontiguousarray(array)).to(torch.bfloat16).float()
    return np.asarray(rounded.numpy())
