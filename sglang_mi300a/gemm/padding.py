"""Rows of a dense product padded to the next row count that has a tuned solution.

A graph fixes M to a captured value, which the grid holds. Prefill brings any M; padded to the next
bucket, few values serve all of it. Rows are independent: those that were there keep their values up
to the rounding of another solution, and the zero rows are cut off again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_mi300a import settings
from sglang_mi300a.gemm import staging, tuned_table
from sglang_mi300a.gemm.row_counts import STEP, bucket_for

Shape = tuple[int, int]
MOST_REMEMBERED = 64
"""Products outside the grid that are named in a report."""


class RowPadding:
    """What this process does to dense products, and which it saw.

    Args:
        buckets: Row counts to pad to, ascending, by (N, K).
        grid: Row counts that were expected, by (N, K).

    Attributes:
        report: Shapes of the grid that no call had yet (``never_seen``), products outside the
            grid, and how many calls were padded; kept current.
    """

    def __init__(
        self, buckets: Mapping[Shape, Sequence[int]], grid: Mapping[Shape, Sequence[int]]
    ) -> None:
        self._buckets = {shape: list(rows) for shape, rows in buckets.items()}
        self._grid = {shape: frozenset(rows) for shape, rows in grid.items()}
        self._known: set[tuple[tuple[Any, ...], int]] = set()
        self.report: dict[str, Any] = {
            "never_seen": sorted(f"{n}x{k}" for n, k in self._grid),
            "outside_the_grid": [],
            "padded": 0,
        }

    def rows_for(self, x: Any, weight: Any, bias: Any = None) -> int:
        """Return how many rows a product shall have, and remember it; 0 if it is none of ours.

        Args:
            x: Input, [M, K].
            weight: Weight, [N, K].
            bias: Of the product, or None.
        """
        n_k = tuple(getattr(weight, "shape", ()))
        if bias is not None or len(n_k) != 2 or x.dim() != 2 or x.shape[1] != n_k[1]:
            return 0
        m = int(x.shape[0])
        rows = bucket_for(m, self._buckets.get(n_k, ()))
        rows = rows if m and rows - m < STEP else m
        self.report["padded"] += rows > m
        self.remember(n_k, rows)
        return rows

    def pad_nothing(self) -> None:
        """Leave every product as it is from now on."""
        self._buckets = {}

    def remember(self, shape: tuple[Any, ...], rows: int) -> None:
        """Note in the report that a product of a weight's shape ran with so many rows."""
        if (shape, rows) in self._known:  # one look-up a call, once a server is warm
            return
        self._known.add((shape, rows))
        name = f"{shape[0]}x{shape[1]}"
        never_seen, outside = self.report["never_seen"], self.report["outside_the_grid"]
        if name in never_seen:
            never_seen.remove(name)
        if rows and self._grid and rows not in self._grid.get(shape, ()):
            if len(outside) < MOST_REMEMBERED:
                outside.append(f"{name}x{rows}")


def padded(x: Any, rows: int) -> Any:
    """Return ``x`` with zero rows added below, ``[rows, K]``."""
    if rows <= x.shape[0]:
        return x
    wider = x.new_zeros((rows, x.shape[1]))
    wider[: x.shape[0]].copy_(x)
    return wider


def pad_module(linear: Any) -> None:
    """Let a ``torch.nn.Linear`` run on our kernels, or padded to tuned rows, from now on."""
    from sglang_mi300a.gemm import own_products  # only ranks need it, and torch

    original = linear.forward

    def forward(x: Any) -> Any:
        made = own_products.made(x, linear.weight, linear.bias)
        if made is not None:
            return made
        rows = of_this_process().rows_for(x, linear.weight, linear.bias)
        return original(padded(x, rows))[: x.shape[0]] if rows else original(x)

    linear.forward = forward


def from_record(record: settings.Resolved | None) -> RowPadding:
    """Return the padding that a launcher decided.

    Where a table is applied, rows are padded to what it holds. On SGLang's CPU engine, which has no
    tables, they are padded to the grid, so that the path is exercised there.
    """
    if record is None:
        return RowPadding({}, {})
    grid = grid_in(record)
    if record.gemm.get("table"):
        applied = staging.read(Path(record.gemm["table"]))
        return RowPadding(tuned_table.bucket_rows(applied.table), grid)
    return RowPadding(grid if record.device == "cpu" else {}, grid)


def as_record(
    grid: Mapping[Shape, Sequence[int]],
    table: Path | None,
    *,
    allow_untuned: bool = False,
    kernels: str = "library",
    constants: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return what ranks need to know, as plain JSON values; see :func:`from_record`.

    Args:
        grid: Row counts by (N, K).
        table: Directory of the applied table, or None.
        allow_untuned: Whether a rank may serve although its software is not the table's.
        kernels: ``own``: products of few tokens run on our kernels where the table has nothing
            else to say.
        constants: Of the cost model, by which they are chosen in place of the shipped ones.
    """
    return {
        "grid": {f"{n}x{k}": list(rows) for (n, k), rows in grid.items()},
        "table": str(table) if table else "",
        "allow_untuned": allow_untuned,
        "kernels": kernels,
        "constants": dict(constants or {}),
    }


def grid_in(record: settings.Resolved) -> dict[Shape, list[int]]:
    """Return the row counts by (N, K) that a launcher wrote."""
    found = {}
    for name, rows in record.gemm.get("grid", {}).items():
        n, _, k = name.partition("x")
        found[int(n), int(k)] = rows
    return found


_of_this_process: RowPadding | None = None


def of_this_process() -> RowPadding:
    """Return this rank's padding, made when it is first asked for."""
    global _of_this_process
    if _of_this_process is None:
        _of_this_process = from_record(settings.resolved())
    return _of_this_process
