"""Work units and their flat split, as the kernels compute them; and the sizes of what they write.

The device does this itself, so that no size is read back. These functions say what it must get,
and bound it before any id is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]

SPARE_UNITS = 2
"""Empty units behind the last: a worker reads two ahead."""

MAX_PAIRS = 1 << 17
MAX_EXPERTS = 1024


@dataclass(frozen=True)
class SortedPairs:
    """What ``moe_sort_pairs`` writes.

    Attributes:
        work: uint32 ``[1 + units + 2, 4]``: (number of units, number of rows, 0, 0), then a unit a
            row: local expert, first row, number of rows, 0; two empty units.
        tokens: int32 ``[rows]``.
        pair_rows: int32 ``[pairs]``: row of a pair, -1 for none.
    """

    work: NDArray[np.uint32]
    tokens: Ids
    pair_rows: Ids


def local_experts(topk_ids: Ids, num_experts: int, expert_map: Ids | None = None) -> Ids:
    """Return the local expert of each id, or -1.

    Args:
        topk_ids: int32, any shape. Local ids, or global ones if there is a map.
        num_experts: Local experts.
        expert_map: int32 ``[global experts]``: local expert or -1.
    """
    ids = topk_ids
    if expert_map is not None:
        known = (ids >= 0) & (ids < len(expert_map))
        ids = np.where(known, expert_map[np.where(known, ids, 0)], -1)
    return np.where((ids >= 0) & (ids < num_experts), ids, -1).astype(np.int32)


def sort_pairs(
    topk_ids: Ids, num_experts: int, token_tile: int, expert_map: Ids | None = None
) -> SortedPairs:
    """Return pairs sorted by expert and cut into units.

    The device may order the rows of one expert otherwise; everything else is the same.

    Args:
        topk_ids: int32 ``[tokens, k]``.
        num_experts: Local experts.
        token_tile: Rows of a unit, at most.
        expert_map: See :func:`local_experts`.
    """
    experts = local_experts(topk_ids, num_experts, expert_map).reshape(-1)
    pairs = np.flatnonzero(experts >= 0)
    order = pairs[np.argsort(experts[pairs], kind="stable")]
    pair_rows = np.full(experts.shape, -1, np.int32)
    pair_rows[order] = np.arange(len(order), dtype=np.int32)
    counts = np.bincount(experts[pairs], minlength=num_experts)
    units = []
    first = 0
    for expert, count in enumerate(counts.tolist()):
        for done in range(0, count, token_tile):
            units.append((expert, first + done, min(token_tile, count - done), 0))
        first += count
    work = np.zeros((1 + len(units) + SPARE_UNITS, 4), np.uint32)
    work[0, :2] = len(units), len(order)
    work[1 : 1 + len(units)] = np.array(units, np.uint32).reshape(-1, 4)
    return SortedPairs(work, (order // topk_ids.shape[1]).astype(np.int32), pair_rows)


def share_of(worker: int, num_workers: int, num_work: int) -> range:
    """Return the (unit, item) pairs of one worker, as positions in the list of all."""
    return range(worker * num_work // num_workers, (worker + 1) * num_work // num_workers)


def most_units(num_pairs: int, num_experts: int, token_tile: int) -> int:
    """Return how many units there can be, whatever the ids are."""
    started = min(num_pairs, num_experts)  # experts with a unit that need not be full
    return started + (num_pairs - started) // token_tile
