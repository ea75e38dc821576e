"""What a server takes beside its tensors: published figures, and estimates with a range.

Published figures are from the public record of this model on this part, a fork of SGLang 0.5.18
on four MI300A (``vibesys-playground/qwen3.5-397b-mi300a-sglang-vibesys-20260920``, commit 0bda0d4)
and the engine beside it (``…-bespoke-vibesys-20260920``, commit 42ee9ac). Nothing here was measured
by this project.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sglang_mi300a.model_dims import ModelDims
from sglang_mi300a.pools.byte_text import GB, GIB, MIB

Kind = Literal["exact", "published", "estimate"]
KINDS: tuple[Kind, ...] = ("exact", "published", "estimate")


@dataclass(frozen=True)
class Amount:
    """Bytes and how they are known.

    Attributes:
        kind: ``exact`` (a formula tested against SGLang's own code), ``published``, ``estimate``.
        planned: What the plan counts.
        low: Least that was published, or that is thought possible; ``planned`` where exact.
        high: Most.
        source: Where it comes from.
    """

    kind: Kind
    planned: int
    low: int
    high: int
    source: str


def exact(num_bytes: int, source: str) -> Amount:
    """Return an amount that a tested formula gives."""
    return Amount("exact", num_bytes, num_bytes, num_bytes, source)


RESERVE = Amount(
    "published",
    15 * GIB,
    15 * GIB,
    24 * GIB,
    "kept free on each NUMA node in the published runs, 15 to 24 GiB: memory of a nearly full "
    "node was measurably slower",
)
HOST_PROCESSES = Amount(
    "estimate",
    8 * GB,
    6 * GB,
    8 * GB,
    "host side of a rank, and its share of tokeniser, detokeniser and HTTP server",
)

GRAPH_POOL_TOKENS = 1024
_GRAPH_POOL = Amount(
    "published",
    16_040_000_000,
    15_430_000_000,
    29_500_000_000,
    "16.04 GB for prefill graphs of 13 sizes up to 1,024 tokens; 15.43 with 4 sizes, 16.48 with "
    "21, and 29.5 in a later state of the same server",
)
"""Nearly the same for 4, 13 and 21 graphs: what counts is the largest, since SGLang captures all
graphs into one pool, where each takes over what the one before has freed."""


def graph_pool(captured_tokens: int) -> Amount:
    """Return the pool of captured graphs, scaled by the tokens of the largest.

    Args:
        captured_tokens: Tokens of the largest graph, prefill or verify; 0 captures none.
    """
    if captured_tokens == GRAPH_POOL_TOKENS:
        return _GRAPH_POOL
    scaled = [
        size * captured_tokens // GRAPH_POOL_TOKENS
        for size in (_GRAPH_POOL.planned, _GRAPH_POOL.low, _GRAPH_POOL.high)
    ]
    source = (
        f"the published pool for {GRAPH_POOL_TOKENS:,} tokens ({_GRAPH_POOL.source}), scaled to "
        f"{captured_tokens:,}"
    )
    return Amount("estimate", scaled[0], scaled[1], scaled[2], source)


_PUBLISHED_SLACK_BYTES = 700_000_000
_RUNTIME_BYTES = GB


def activations(
    dims: ModelDims, tp: int, *, chunk_tokens: int, logit_rows: int, experts: bool = True
) -> Amount:
    """Return what a forward pass and its libraries take while they run.

    Args:
        dims: The model.
        tp: Tensor-parallel ranks.
        chunk_tokens: Longest prefill pass (``--chunked-prefill-size``).
        logit_rows: Rows that are sampled at once: running requests x tokens a verify step checks.
        experts: Whether routed experts' rows are among them, and not in a workspace of their own.
    """
    hidden_streams = 6 * dims.hidden_size
    keys = dims.linear_num_key_heads * dims.linear_key_head_dim
    values = dims.linear_num_value_heads * dims.linear_value_head_dim
    mixer = 2 * 2 * (keys + values) // tp
    expert = 3 * dims.moe_intermediate_size // tp + dims.hidden_size
    routed = dims.num_experts_per_tok * expert if experts else 0
    a_token = 2 * (hidden_streams + mixer + routed)
    a_row = dims.vocab_size * (2 + 4 + 4)
    computed = chunk_tokens * a_token + logit_rows * a_row + _RUNTIME_BYTES
    stock_rule = 512 * MIB + max(chunk_tokens, 2048) * 3 * MIB // 2 + tp * GIB // 8
    return Amount(
        "estimate",
        computed,
        min(_PUBLISHED_SLACK_BYTES, computed),
        max(stock_rule, computed * 3 // 2),
        f"{chunk_tokens:,} tokens a prefill pass x {a_token:,} B, {logit_rows:,} rows of logits x "
        f"{a_row:,} B, 1 GB for HIP, collectives and library workspaces; low: 0.7 GB that the "
        "published server's torch had reserved above what it had allocated; high: SGLang's own "
        "rule of 1.5 MiB a token",
    )
