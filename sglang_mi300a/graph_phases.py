"""What SGLang captures into graphs for given settings: batch sizes of decode, tokens of prefill.

The lists are those of SGLang 0.5.18 (``ServerArgs._generate_decode_cuda_graph_batch_sizes``,
``_generate_prefill_cuda_graph_batch_sizes``, ``get_batch_sizes_to_capture``); tests compare them
with the stock functions themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

GIB = 1 << 30


def settings_of(fields: Mapping[str, Any], phase: str) -> dict[str, Any]:
    """Return what is set for the graphs of one phase; the JSON flag wins over single ones.

    Args:
        fields: ``ServerArgs`` fields that are set.
        phase: ``decode`` or ``prefill``.
    """
    found = {
        key: fields[f"cuda_graph_{key}_{phase}"]
        for key in ("backend", "bs", "max_bs")
        if fields.get(f"cuda_graph_{key}_{phase}") is not None
    }
    config = fields.get("cuda_graph_config") or {}
    if isinstance(config, str):
        config = json.loads(config)
    return {**found, **config.get(phase, {})}


def captures(fields: Mapping[str, Any], phase: str, *, default: bool) -> bool:
    """Return whether a phase is captured.

    Args:
        fields: ``ServerArgs`` fields that are set.
        phase: ``decode`` or ``prefill``.
        default: What SGLang does where nothing is said.
    """
    backend = settings_of(fields, phase).get("backend")
    if backend is not None:
        return bool(backend != "disabled")
    off = fields.get("disable_cuda_graph") or fields.get(f"disable_{phase}_cuda_graph")
    return default and not off


def decode_batch_sizes(
    fields: Mapping[str, Any], *, max_running_requests: int, memory_bytes: int, tp: int
) -> list[int]:
    """Return the batch sizes (requests) that SGLang captures for decode, ascending.

    The same sizes serve MTP: each request then brings several rows.

    Args:
        fields: ``ServerArgs`` fields that are set.
        max_running_requests: Requests at once.
        memory_bytes: Of a device; SGLang's default of the largest batch depends on it.
        tp: Tensor-parallel ranks; it depends on them too.
    """
    if not captures(fields, "decode", default=True):
        return []
    phase = settings_of(fields, "decode")
    sizes = phase.get("bs")
    if sizes is None:
        largest = phase.get("max_bs") or default_max_batch(memory_bytes, tp)
        padded = not fields.get("disable_cuda_graph_padding", False)
        drafts = fields.get("speculative_algorithm") is not None
        sizes = batch_sizes_up_to(int(largest), drafts=drafts, padded=padded)
    return captured_batch_sizes(sizes, max_running_requests)


def default_max_batch(memory_bytes: int, tp: int) -> int:
    """Return stock's largest captured decode batch for a device of this much memory."""
    memory_gib = memory_bytes / GIB
    for below_gib, few_ranks, many_ranks in ((20, 8, 8), (35, 24, 80), (60, 32, 160)):
        if memory_gib < below_gib:
            return few_ranks if tp < 4 else many_ranks
    return 256 if memory_gib < 160 and tp < 4 else 512


def batch_sizes_up_to(largest: int, *, drafts: bool, padded: bool = True) -> list[int]:
    """Return stock's own choice of decode batch sizes up to the largest one.

    Args:
        largest: Largest batch.
        drafts: Whether requests draft; small batches are then captured one by one.
        padded: Whether a batch may be padded to the next captured size.
    """
    if not padded:
        return [*range(1, largest + 1)]
    if drafts:
        sizes = [
            *range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8),
            *range(272, largest + 1, 16),
        ]  # fmt: skip
    else:
        sizes = [
            1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, largest + 1, 32),
        ]  # fmt: skip
    sizes = [size for size in sizes if size <= largest]
    return sizes if largest in sizes else [*sizes, largest]


def captured_batch_sizes(sizes: Sequence[int], max_running_requests: int) -> list[int]:
    """Return which sizes are captured where so many requests can run: ascending, the most last."""
    most = [max_running_requests] if max(sizes) > max_running_requests else []
    return sorted({size for size in (*sizes, *most) if size <= max_running_requests})


def prefill_token_counts(fields: Mapping[str, Any], chunk_tokens: int) -> list[int]:
    """Return the token counts of captured prefills, ascending.

    On ROCm SGLang captures none unless the backend is named.

    Args:
        fields: ``ServerArgs`` fields that are set.
        chunk_tokens: Tokens of a prefill pass.
    """
    if not captures(fields, "prefill", default=False):
        return []
    phase = settings_of(fields, "prefill")
    if phase.get("bs"):
        return sorted({int(size) for size in phase["bs"]})
    total = fields.get("max_total_tokens")
    largest = min(chunk_tokens, int(total)) if total else chunk_tokens
    return token_counts_up_to(int(phase.get("max_bs") or largest))


def token_counts_up_to(largest: int) -> list[int]:
    """Return stock's own choice of prefill token counts up to the largest one."""
    counts = [
        *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64),
        *range(1280, 4097, 256), *range(4608, largest + 1, 512),
    ]  # fmt: skip
    return [count for count in counts if count <= largest]
