"""Which candidate serves a product: the fastest of those that are right, if stock is slower."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sglang_mi300a.gemm.kernels import catalogue
from sglang_mi300a.gemm.kernels.catalogue import MAX_TOKENS
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuned_table import KERNEL
from sglang_mi300a.gemm.tuning_record import MOST_RELATIVE_ERROR, Measured, Outcome, judged

STOCK = "stock"
APART = "apart"
"""Two products of one input, each by its own fastest solution."""
NOTHING_FASTER = ("", "Default")
"""What TunableOp answers where it knows nothing, or nothing faster."""


@dataclass(frozen=True)
class Candidate:
    """One way to make a product.

    Attributes:
        solution: Its name in a table.
        relative_error: Of its output, which was NaN before, against float32.
    """

    solution: str
    relative_error: float

    @property
    def is_right(self) -> bool:
        """Whether its output is; where a value is NaN still, it is not."""
        return math.isfinite(self.relative_error) and self.relative_error <= MOST_RELATIVE_ERROR


def solutions(cell: Cell, tuned: str, kernels: Sequence[str]) -> list[str]:
    """Return the names of a product's candidates: TunableOp's, then the kernels that take it.

    Args:
        cell: The product.
        tuned: TunableOp's choice.
        kernels: Names of our kernels that may be used.
    """
    found = [] if tuned in NOTHING_FASTER else [tuned]
    if cell.m <= MAX_TOKENS:
        taking = catalogue.that_take(cell.n, cell.k)
        found += [KERNEL + one.name for one in taking if one.name in kernels]
    return found


def solutions_of_pair(parts: Sequence[int], k: int, kernels: Sequence[str]) -> list[str]:
    """Return the names of the candidates that make two products of one input in one launch."""
    suffix = "/" + "+".join(map(str, parts))
    return [
        KERNEL + one.name + suffix
        for one in catalogue.KERNELS
        if one.name in kernels and all(one.takes(n, k) for n in parts)
    ]


def fastest(
    cell: Cell,
    candidates: Sequence[Candidate],
    times_us: Mapping[str, Sequence[float]],
    *,
    kernels: str,
    parts: Sequence[int] = (),
) -> Measured:
    """Return a product's result; a pair has won only if it is faster than its products apart, too.

    Args:
        cell: The product.
        candidates: All that were tried.
        times_us: Timings by solution, of each right candidate and of :data:`STOCK`; of
            :data:`APART` for a pair.
        kernels: Build of our kernels, if they were among them.
        parts: Output features of each product of a pair.
    """
    wrong = tuple(one.solution for one in candidates if not one.is_right)
    right = [one for one in candidates if one.is_right]
    if not right:
        outcome: Outcome = "wrong" if wrong else "lost"
        return Measured(
            *cell,
            outcome,
            "".join(wrong[:1]),
            relative_error=candidates[0].relative_error if wrong else 0.0,
            wrong=wrong,
            kernels=kernels,
            parts=parts,
        )
    medians = {name: round(statistics.median(times), 3) for name, times in times_us.items()}
    best = min(right, key=lambda one: medians[one.solution])
    found = Measured(
        *cell,
        "lost",
        best.solution,
        medians[best.solution],
        medians[STOCK],
        best.relative_error,
        len(times_us[STOCK]),
        others={name: us for name, us in medians.items() if name not in (best.solution, STOCK)},
        wrong=wrong,
        kernels=kernels,
        parts=parts,
    )
    outcome = judged(found)
    if parts and judged(replace(found, stock_us=medians[APART])) == "lost":
        outcome = "lost"
    return replace(found, outcome=outcome)
