"""How many rows (M) a dense product really has, for the batches that SGLang forms.

Captured graphs fix M: a request brings one row to a decode or draft pass, and as many as it drafts,
plus one, to a verification or to the draft's extension after it. Prefill has any M up to the
chunk; there this package pads to the next bucket, so that few values need tuning.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_mi300a import graph_phases
from sglang_mi300a.gemm.linear_shapes import LinearShape

SMALL_STEP, SMALL_LIMIT = 16, 128
"""Prefill buckets up to 128 rows are 16 apart, as wide as one MFMA tile."""
STEP = 64
"""Above, they are 64 apart: at most one tile of a large macro-tile kernel is wasted."""


@dataclass(frozen=True)
class Batches:
    """What batches a server forms, in requests and tokens.

    Attributes:
        decode_batch_sizes: Captured batch sizes, ascending.
        draft_tokens: Tokens of a request in verification (drafts + 1); 0 without MTP.
        draft_topk: Branches of a request in a draft step.
        captured_prefill_tokens: Token counts of captured prefills, ascending.
        chunk_tokens: Most tokens of a prefill pass.
    """

    decode_batch_sizes: tuple[int, ...]
    draft_tokens: int
    draft_topk: int
    captured_prefill_tokens: tuple[int, ...]
    chunk_tokens: int


def batches_of(
    fields: Mapping[str, Any],
    *,
    max_running_requests: int,
    chunk_tokens: int,
    memory_bytes: int,
    tp: int,
) -> Batches:
    """Return the batches of a server that is started with these settings.

    Args:
        fields: ``ServerArgs`` fields; those not named are SGLang's defaults.
        max_running_requests: Requests at once.
        chunk_tokens: Most tokens of a prefill pass.
        memory_bytes: Of a device, for what SGLang derives from it.
        tp: Tensor-parallel ranks.
    """
    drafts = fields.get("speculative_algorithm") is not None
    sizes = graph_phases.decode_batch_sizes(
        fields, max_running_requests=max_running_requests, memory_bytes=memory_bytes, tp=tp
    )
    return Batches(
        decode_batch_sizes=tuple(sizes) or tuple(range(1, max_running_requests + 1)),
        draft_tokens=int(fields["speculative_num_draft_tokens"]) if drafts else 0,
        draft_topk=int(fields.get("speculative_eagle_topk") or 1) if drafts else 0,
        captured_prefill_tokens=tuple(graph_phases.prefill_token_counts(fields, chunk_tokens)),
        chunk_tokens=chunk_tokens,
    )


def row_counts(shape: LinearShape, batches: Batches) -> tuple[int, ...]:
    """Return every M that a product is dispatched with, ascending, prefill padded to buckets."""
    requests, width = batches.decode_batch_sizes, batches.draft_tokens
    counts = set(prefill_buckets(batches.chunk_tokens))
    if shape.rows == "tokens":
        counts |= set(batches.captured_prefill_tokens)
    if shape.num_in_target:
        counts |= {size * max(1, width) for size in requests}
    if shape.num_in_draft:
        counts |= {size * batches.draft_topk for size in requests}
        # The draft's extension has a row for every token, but samples one position a request.
        counts |= {size * width for size in requests} if shape.rows == "tokens" else set(requests)
    return tuple(sorted(counts))


def prefill_buckets(chunk_tokens: int) -> list[int]:
    """Return the row counts that prefill is padded to, ascending; the last holds a whole chunk."""
    every = [
        *range(SMALL_STEP, SMALL_LIMIT + 1, SMALL_STEP),
        *range(SMALL_LIMIT + STEP, chunk_tokens + STEP, STEP),
    ]
    return every[: bisect.bisect_left(every, chunk_tokens) + 1]


def bucket_for(rows: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds so many rows; the rows themselves if none does.

    Args:
        rows: Rows of the input.
        buckets: Ascending.
    """
    at = bisect.bisect_left(buckets, rows)
    return buckets[at] if at < len(buckets) else rows
