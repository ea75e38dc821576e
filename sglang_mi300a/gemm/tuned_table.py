"""The gemm room's tables: which solution serves ``y[M, N] = x[M, K] @ w[N, K]^T`` in bf16.

A table is one of :mod:`sglang_mi300a.tables` with operation ``gemm_bf16``, key ``n, k, m`` and
these columns besides:

``choice``
    ``library`` (rocBLAS, hipBLASLt or AITER) or ``kernel`` (this package's own).
``solution``
    Which one: ``Gemm_Rocblas_ID`` or ``Gemm_Hipblaslt_ID`` (TunableOp's names, ids of one library
    build), ``aiter/LIBTYPE/SOLIDX/SPLITK/NAME``, or ``kernel/VARIANT``; ``kernel/VARIANT/N1+N2``
    makes two products of one input in one launch, and the row's ``n`` is the sum of their two.
``basis, us, stock_us``
    Where the time comes from, the time, and that of stock's own choice, in microseconds.

Rows of our kernels were measured with one build of them, which ``made`` names (``kernels``).
Products for which no candidate beat stock have no row; ``made`` names them, as
``"stock_is_as_fast": {"NxK": [M, ...]}``, since they need no more tuning.

``software`` holds TunableOp's five validators verbatim, since ids mean nothing to another build.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_mi300a import tables
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.tables import Table

OP = "gemm_bf16"
KEY = ("n", "k", "m")
COLUMNS = (*KEY, "choice", "solution", "basis", "us", "stock_us")
CHOICES = ("library", "kernel")
KERNEL = "kernel/"
"""What the name of a solution of ours begins with."""
KERNELS_BUILD = "kernels"
"""What ``made`` calls the build of our kernels that rows were measured with."""
VALIDATORS = (
    "PT_VERSION",
    "ROCM_VERSION",
    "HIPBLASLT_VERSION",
    "GCN_ARCH_NAME",
    "ROCBLAS_VERSION",
)
"""The versions that TunableOp compares, as exact strings, before it takes a file."""

AITER_LIBTYPES = ("torch", "hipblaslt", "skinny", "asm", "triton", "flydsl", "opus")
_TUNABLEOP_SOLUTION = re.compile(r"Default|Gemm_Rocblas_-?\d+|Gemm_Hipblaslt_\d+")
_AITER_SOLUTION = re.compile(rf"aiter/({'|'.join(AITER_LIBTYPES)})/-?\d+/\d+/[\w.<>, -]*")
_KERNEL_SOLUTION = re.compile(r"kernel/(\w+)(?:/(\d+)\+(\d+))?")
SOLUTIONS = (
    "Default, Gemm_Rocblas_ID, Gemm_Hipblaslt_ID, aiter/LIBTYPE/SOLIDX/SPLITK/NAME, "
    "kernel/VARIANT or kernel/VARIANT/N1+N2"
)


@dataclass(frozen=True)
class Choice:
    """What serves one cell.

    Attributes:
        choice: ``library`` or ``kernel``.
        solution: Its name.
        basis: ``measured``, ``imported`` or ``model``.
        us: Its time in microseconds.
        stock_us: Stock's time, or None where it was not taken.
    """

    choice: str
    solution: str
    basis: str
    us: float
    stock_us: float | None

    @property
    def by_tunableop(self) -> bool:
        """Whether TunableOp dispatches it."""
        return _TUNABLEOP_SOLUTION.fullmatch(self.solution) is not None

    @property
    def kernel(self) -> str:
        """Variant of ours that makes it, or ""."""
        match = _KERNEL_SOLUTION.fullmatch(self.solution)
        return match[1] if match else ""

    @property
    def parts(self) -> tuple[int, ...]:
        """Output features of the two products that one launch makes; empty for a single product."""
        match = _KERNEL_SOLUTION.fullmatch(self.solution)
        return (int(match[2]), int(match[3])) if match and match[2] else ()

    @property
    def by_aiter(self) -> bool:
        """Whether AITER dispatches it, other than to torch."""
        return self.solution.startswith("aiter/")


def make(
    rows: Mapping[Cell, Choice],
    *,
    device: Mapping[str, Any],
    validators: Mapping[str, str],
    made: Mapping[str, Any],
) -> Table:
    """Return a table.

    Args:
        rows: By cell, in any order.
        device: ``name``, ``arch`` and ``visible_cus``.
        validators: TunableOp's, by name.
        made: ``by`` (command), ``date``, ``samples`` and further facts.

    Raises:
        UserError: A row or the provenance is not as a table needs it.
    """
    table = Table(
        op=OP,
        device=dict(device),
        software={name: validators[name] for name in VALIDATORS if name in validators},
        made=dict(made),
        key=KEY,
        columns=COLUMNS,
        rows={
            tuple(cell): {
                **dict(zip(KEY, cell, strict=True)),
                "choice": choice.choice,
                "solution": choice.solution,
                "basis": choice.basis,
                "us": choice.us,
                "stock_us": choice.stock_us,
            }
            for cell, choice in sorted(rows.items())
        },
    )
    return read(tables.render(table), "the table being made")


def read(text: str, where: str) -> Table:
    """Return the gemm table in a text; ``where`` is named in errors.

    Raises:
        UserError: It is no gemm table, or a row of it cannot be.
    """
    return checked(tables.parse(text, where), where)


def checked(table: Table, where: str) -> Table:
    """Return a table if it is a whole gemm table.

    Raises:
        UserError: It is another operation's, lacks a version, or a row cannot be.
    """
    if (table.op, table.key, table.columns) != (OP, KEY, COLUMNS):
        raise _refused(
            where,
            f"operation {table.op}, columns {', '.join(table.columns)}",
            f"operation {OP}, columns {', '.join(COLUMNS)}, in this order",
        )
    missing = [name for name in VALIDATORS if not table.software.get(name)]
    if missing:
        raise _refused(where, f"no {', '.join(missing)} under software", ", ".join(VALIDATORS))
    if not table.made.get("by") or not table.made.get("date"):
        raise _refused(where, f"made {dict(table.made)}", "what made it (by) and when (date)")
    if not table.rows:
        raise _refused(where, "no rows", "at least one row")
    for cell, row in table.rows.items():
        _check_row(row, f"{where}: row {cell}")
    return table


def _check_row(row: Mapping[str, Any], at: str) -> None:
    sizes = [row[name] for name in KEY]
    if any(type(size) is not int or size < 1 for size in sizes):
        raise _refused(at, f"n, k, m = {sizes}", "whole numbers of at least 1")
    solution = str(row["solution"])
    pattern = _KERNEL_SOLUTION if row["choice"] == "kernel" else None
    if row["choice"] not in CHOICES:
        raise _refused(at, f"choice {row['choice']!r}", " or ".join(CHOICES))
    known = (pattern,) if pattern else (_TUNABLEOP_SOLUTION, _AITER_SOLUTION)
    if not any(form.fullmatch(solution) for form in known):
        raise _refused(at, f"solution {solution!r} for choice {row['choice']}", SOLUTIONS)
    pair = Choice("kernel", solution, "", 0, None).parts
    if pair and (sum(pair) != row["n"] or 0 in pair):
        raise _refused(at, f"solution {solution!r}", f"two sizes that add up to n = {row['n']}")


def choices(table: Table) -> dict[Cell, Choice]:
    """Return a table's rows by cell."""
    found = {}
    for row in table.rows.values():
        values: dict[str, Any] = dict(row)
        cell = Cell(*(values.pop(name) for name in KEY))
        found[cell] = Choice(**values)
    return found


def kernel_cells(table: Table) -> list[Cell]:
    """Return the products that a table gives to this package's kernels."""
    return [cell for cell, choice in choices(table).items() if choice.choice == "kernel"]


def settled(table: Table) -> set[Cell]:
    """Return the products for which stock was found to be as fast as any candidate."""
    found = set()
    for name, counts in table.made.get("stock_is_as_fast", {}).items():
        n, _, k = name.partition("x")
        found |= {Cell(int(n), int(k), m) for m in counts}
    return found


def covered(table: Table, cells: Iterable[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Return which products a table settles, by a row or by stock's being as fast; and the rest."""
    have: list[Cell] = []
    lack: list[Cell] = []
    known = settled(table)
    for cell in cells:
        (have if tuple(cell) in table.rows or cell in known else lack).append(cell)
    return have, lack


def bucket_rows(table: Table) -> dict[tuple[int, int], list[int]]:
    """Return the row counts a table settles, ascending, by (N, K)."""
    found: dict[tuple[int, int], list[int]] = {}
    for cell in sorted({*choices(table), *settled(table)}):
        found.setdefault((cell.n, cell.k), []).append(cell.m)
    return found


def _refused(where: str, found: str, allowed: str) -> UserError:
    return UserError(
        f"table {where}", found=found, allowed=allowed, do="make it again; nothing of it is used"
    )
