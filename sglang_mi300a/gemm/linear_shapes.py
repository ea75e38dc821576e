"""The dense products of a Qwen3.5-MoE: which weight has which shape on one rank.

``y[M, N] = x[M, K] @ w[N, K]^T``, all bf16 and without bias. Not among them: routed experts (their
own room), the gate of the shared expert (one output row, which SGLang fuses with its sigmoid), and
convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sglang_mi300a.model_dims import ModelDims

Rows = Literal["tokens", "sampled"]
"""Whether a product has a row for each token of a pass, or for each position that is sampled."""
VOCABULARY_PADDING = 64
"""SGLang pads the vocabulary to a multiple of this before it splits it."""
_SHARED = "mlp.shared_expert"
ONE_LAUNCH = ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba")
"""Two products of one input that SGLang makes one right after the other; one launch of our kernels
can make both."""


@dataclass(frozen=True)
class LinearShape:
    """One weight's shape on a rank, and how often a pass uses it.

    Attributes:
        name: Parameter name in SGLang's model, without its layer.
        n: Output features on this rank (rows of the weight).
        k: Input features on this rank (columns of the weight).
        rows: What its M counts.
        num_in_target: Uses in one pass of the target.
        num_in_draft: Uses in one pass of the draft.
    """

    name: str
    n: int
    k: int
    rows: Rows
    num_in_target: int
    num_in_draft: int


def of_text_model(
    dims: ModelDims, tp: int, *, with_draft: bool, shared_expert_rides: bool = False
) -> tuple[LinearShape, ...]:
    """Return the dense products of target and draft on one rank; the same on every rank.

    Args:
        dims: The model.
        tp: Tensor-parallel ranks. How they share experts changes nothing here: router and shared
            expert are cut by tensor parallelism alone.
        with_draft: Whether the MTP layer drafts.
        shared_expert_rides: Whether the shared expert runs with the routed ones, in their launches.
    """
    hidden = dims.hidden_size
    heads, kv_heads = dims.num_attention_heads // tp, max(1, dims.num_key_value_heads // tp)
    keys = dims.linear_num_key_heads * dims.linear_key_head_dim // tp
    value_heads = dims.linear_num_value_heads // tp
    values = value_heads * dims.linear_value_head_dim
    shared = dims.shared_expert_intermediate_size // tp
    vocabulary = -(-dims.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING // tp
    attention_rows = heads * dims.query_rows_per_head + 2 * kv_heads * dims.head_dim
    linear, full, layers = (
        dims.num_linear_layers, dims.num_attention_layers, dims.num_hidden_layers,
    )  # fmt: skip
    draft = dims.num_draft_layers if with_draft else 0
    shapes = (
        LinearShape("linear_attn.in_proj_qkvz", 2 * keys + 2 * values, hidden, "tokens", linear, 0),
        LinearShape("linear_attn.in_proj_ba", 2 * value_heads, hidden, "tokens", linear, 0),
        LinearShape("linear_attn.out_proj", hidden, values, "tokens", linear, 0),
        LinearShape("self_attn.qkv_proj", attention_rows, hidden, "tokens", full, draft),
        LinearShape("self_attn.o_proj", hidden, heads * dims.head_dim, "tokens", full, draft),
        LinearShape("mlp.gate", dims.num_experts, hidden, "tokens", layers, draft),
        LinearShape("mlp.shared_expert.gate_up_proj", 2 * shared, hidden, "tokens", layers, draft),
        LinearShape("mlp.shared_expert.down_proj", hidden, shared, "tokens", layers, draft),
        LinearShape("lm_head", vocabulary, hidden, "sampled", 1, draft),
        LinearShape("fc", hidden, 2 * hidden, "tokens", 0, draft),
    )
    return tuple(
        shape
        for shape in shapes
        if (shape.num_in_target or shape.num_in_draft)
        and not (shared_expert_rides and shape.name.startswith(_SHARED))
    )


def of_visual_tower(vision: Mapping[str, Any], tp: int) -> tuple[LinearShape, ...]:
    """Return the products of the visual tower on one rank, which have a bias.

    They are listed for completeness and never tuned: their M counts image patches, which no bucket
    bounds, and a product with a bias is another operation to TunableOp.

    Args:
        vision: ``vision_config`` of the model.
        tp: Tensor-parallel ranks.
    """
    hidden, depth = int(vision["hidden_size"]), int(vision["depth"])
    inner = int(vision["intermediate_size"]) // tp
    merged = hidden * int(vision["spatial_merge_size"]) ** 2
    rows = [
        ("visual.blocks.attn.qkv_proj", 3 * hidden // tp, hidden, depth),
        ("visual.blocks.attn.proj", hidden, hidden // tp, depth),
        ("visual.blocks.mlp.linear_fc1", inner, hidden, depth),
        ("visual.blocks.mlp.linear_fc2", hidden, inner, depth),
        ("visual.merger.linear_fc1", merged // tp, merged, 1),
        ("visual.merger.linear_fc2", int(vision["out_hidden_size"]), merged // tp, 1),
    ]
    return tuple(LinearShape(name, n, k, "tokens", uses, 0) for name, n, k, uses in rows)
