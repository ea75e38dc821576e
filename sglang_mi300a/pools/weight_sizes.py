"""What a rank's weights take where only ``config.json`` is there to tell.

Where the weights themselves are there, their headers tell. Both say the same
(``tests/pools/plan/test_weight_sizes.py``).
"""

from __future__ import annotations

from sglang_mi300a.model_dims import ModelDims
from sglang_mi300a.mxfp4 import BLOCK

_BF16 = 2
_FLOAT32 = 4
_VOCABULARY_PADDING = 64


def target_bytes(dims: ModelDims, tp: int) -> int:
    """Return the target's weights on one rank: text only, MXFP4 routed experts, the rest bf16.

    Args:
        dims: The model.
        tp: Tensor-parallel ranks; how they share experts makes no difference.
    """
    experts = _expert_elements(dims, tp)
    layers = (
        dims.num_attention_layers * _attention_bytes(dims, tp)
        + dims.num_linear_layers * _delta_net_bytes(dims, tp)
        + dims.num_hidden_layers * (_layer_rest_bytes(dims, tp) + experts // 2 + experts // BLOCK)
    )
    vocabularies = 1 if dims.tied_target else 2
    return vocabularies * _vocabulary_bytes(dims, tp) + layers + dims.hidden_size * _BF16


def draft_bytes(dims: ModelDims, tp: int) -> int:
    """Return the MTP layer's weights on one rank, all bf16; 0 where there is none."""
    if not dims.num_draft_layers:
        return 0
    projection = 2 * dims.hidden_size**2
    norms = 3 * dims.hidden_size
    return (
        (projection + norms + _expert_elements(dims, tp)) * _BF16
        + _attention_bytes(dims, tp)
        + _layer_rest_bytes(dims, tp)
    )


def lent_bytes(dims: ModelDims, tp: int) -> int:
    """Return embedding and head that the draft allocates and frees when it takes the target's."""
    if not dims.num_draft_layers:
        return 0
    return (1 if dims.tied_draft else 2) * _vocabulary_bytes(dims, tp)


def _vocabulary_bytes(dims: ModelDims, tp: int) -> int:
    padded = -(-dims.vocab_size // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    return padded // tp * dims.hidden_size * _BF16


def _attention_bytes(dims: ModelDims, tp: int) -> int:
    """Return fused query, key and value projection, output projection and two norms."""
    heads, kv_heads = dims.num_attention_heads // tp, max(1, dims.num_key_value_heads // tp)
    rows = heads * dims.query_rows_per_head + 2 * kv_heads * dims.head_dim
    out = heads * dims.head_dim
    return ((rows + out) * dims.hidden_size + 2 * dims.head_dim) * _BF16


def _delta_net_bytes(dims: ModelDims, tp: int) -> int:
    """Return a gated delta net; decay and output norm are float32."""
    heads = dims.linear_num_value_heads // tp
    keys = dims.linear_num_key_heads * dims.linear_key_head_dim // tp
    values = heads * dims.linear_value_head_dim
    projections = (2 * keys + 2 * values + 2 * heads + values) * dims.hidden_size
    convolution = (2 * keys + values) * dims.linear_conv_kernel_dim
    return (projections + convolution + heads) * _BF16 + (
        heads + dims.linear_value_head_dim
    ) * _FLOAT32


def _layer_rest_bytes(dims: ModelDims, tp: int) -> int:
    """Return two norms, the router, the shared expert and its gate."""
    shared = 3 * dims.shared_expert_intermediate_size // tp
    return (2 + dims.num_experts + shared + 1) * dims.hidden_size * _BF16


def _expert_elements(dims: ModelDims, tp: int) -> int:
    """Return elements of one layer's routed experts."""
    return dims.num_experts * 3 * dims.moe_intermediate_size // tp * dims.hidden_size
