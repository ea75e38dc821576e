"""What tuning will take: which products are left, in which order, for how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sglang_mi300a.gemm.shape_grid import Cell

SECONDS_A_CELL = 20.0
"""Estimate: TunableOp tries some hundreds of candidates, at most 30 ms each, then stock and winner
are timed. Published runs on this part took about 20 s for a product at one row count."""


@dataclass(frozen=True)
class Batch:
    """The row counts of one weight shape, for one child process.

    Attributes:
        n: Output features.
        k: Input features.
        m: Row counts, ascending.
    """

    n: int
    k: int
    m: tuple[int, ...]

    def without(self, done: Iterable[int]) -> Batch:
        """Return what is left of it."""
        gone = set(done)
        return Batch(self.n, self.k, tuple(m for m in self.m if m not in gone))


def batches_of(cells: Iterable[Cell]) -> list[Batch]:
    """Return cells by weight shape, the largest weights first, since they take longest."""
    by_shape: dict[tuple[int, int], list[int]] = {}
    for cell in cells:
        by_shape.setdefault((cell.n, cell.k), []).append(cell.m)
    batches = [Batch(n, k, tuple(sorted(rows))) for (n, k), rows in by_shape.items()]
    return sorted(batches, key=lambda batch: (-batch.n * batch.k, batch.n))


def minutes_for(num_cells: int, num_devices: int) -> int:
    """Return the estimated minutes for so many products on so many devices, at least 1."""
    return max(1, round(num_cells * SECONDS_A_CELL / 60 / max(1, num_devices)))
