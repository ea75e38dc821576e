"""What tuning will take: which products are left, in which order, for how long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sglang_mi300a.gemm.kernels import catalogue
from sglang_mi300a.gemm.kernels.catalogue import MAX_TOKENS
from sglang_mi300a.gemm.linear_shapes import ONE_LAUNCH
from sglang_mi300a.gemm.shape_grid import Cell, Product, ShapeGrid

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
        parts: Where it is two products of one input: output features of each, ``n`` their sum.
        apart: Best solutions of the two by row count, "" for stock's.
        known: TunableOp's choice by row count, where it was made before.
    """

    n: int
    k: int
    m: tuple[int, ...]
    parts: tuple[int, ...] = ()
    apart: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    known: Mapping[int, str] = field(default_factory=dict)

    def without(self, done: Iterable[int]) -> Batch:
        """Return what is left of it."""
        gone = set(done)
        return replace(self, m=tuple(m for m in self.m if m not in gone))


def batches_of(cells: Iterable[Cell], known: Mapping[Cell, str] | None = None) -> list[Batch]:
    """Return cells by weight shape, the largest weights first, since they take longest.

    Args:
        cells: Products to tune.
        known: TunableOp's choices that were made before.
    """
    by_shape: dict[tuple[int, int], list[int]] = {}
    for cell in cells:
        by_shape.setdefault((cell.n, cell.k), []).append(cell.m)
    choices = known or {}
    batches = [
        Batch(
            n,
            k,
            tuple(sorted(rows)),
            known={m: choices[Cell(n, k, m)] for m in rows if Cell(n, k, m) in choices},
        )
        for (n, k), rows in by_shape.items()
    ]
    return sorted(batches, key=lambda batch: (-batch.n * batch.k, batch.n))


def pairs_of(grid: ShapeGrid, best: Mapping[Cell, str], done: Collection[Cell]) -> list[Batch]:
    """Return the products that one launch of ours can make, two at a time.

    Args:
        grid: What a server runs.
        best: Fastest solution of each single product that is tuned, "" for stock's.
        done: Pairs that need no more tuning, ``n`` the sum of both.
    """
    first, second = (_product_of(grid, name) for name in ONE_LAUNCH)
    if first is None or second is None or first.k != second.k:
        return []
    n, k, parts = first.n + second.n, first.k, (first.n, second.n)
    not_wanted = {*done, *grid.cells()}  # a table has one row for a size
    apart = {
        m: (best[Cell(first.n, k, m)], best[Cell(second.n, k, m)])
        for m in first.m
        if m <= MAX_TOKENS
        and all(Cell(part, k, m) in best for part in parts)
        and Cell(n, k, m) not in not_wanted
    }
    taken = any(all(kernel.takes(part, k) for part in parts) for kernel in catalogue.KERNELS)
    return [Batch(n, k, tuple(sorted(apart)), parts, apart)] if apart and taken else []


def _product_of(grid: ShapeGrid, name: str) -> Product | None:
    return next((product for product in grid.products if name in product.names), None)


def minutes_for(num_cells: int, num_devices: int) -> int:
    """Return the estimated minutes for so many products on so many devices, at least 1."""
    return max(1, round(num_cells * SECONDS_A_CELL / 60 / max(1, num_devices)))
