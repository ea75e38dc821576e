"""AITER's table of bf16 products: written from a table, and read with every check it lacks.

AITER reads it with pandas, finds a row by (gfx, cu_num, M, N, K, bias, types, ...) and hands the
product to the library that ``libtype`` names. Its key for M falls back to two padded values, and a
product it does not find may go to its own skinny kernel, past TunableOp. Therefore the file also
holds a ``torch`` row for each product that TunableOp serves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sglang_mi300a.gemm.result_text import lines_of, refused
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuned_table import AITER_LIBTYPES, Choice, choices
from sglang_mi300a.tables import Table

COLUMNS = (
    "gfx", "cu_num", "M", "N", "K", "bias", "dtype", "outdtype", "scaleAB", "bpreshuffle",
    "libtype", "solidx", "splitK", "us", "kernelName", "err_ratio", "tflops", "bw",
)  # fmt: skip
_FIXED = {
    "bias": "False",
    "dtype": "torch.bfloat16",
    "outdtype": "torch.bfloat16",
    "scaleAB": "False",
    "bpreshuffle": "False",
}
"""What this model's products have in the columns that are not sizes."""


def render(table: Table) -> str:
    """Return the file for a table: a header, then rows by (N, K, M)."""
    lines = [",".join(COLUMNS)]
    for cell, choice in choices(table).items():
        if choice.choice == "library":
            lines.append(_line(cell, choice, table.device["arch"], table.device["visible_cus"]))
    return "\n".join(lines) + "\n"


def _line(cell: Cell, choice: Choice, arch: str, visible_cus: int) -> str:
    libtype, solution, split, name = "torch", "0", "0", ""
    if choice.by_aiter:
        _, libtype, solution, split, name = choice.solution.split("/", 4)
    seconds = choice.us / 1e6
    moved = 2 * (cell.m * cell.k + cell.n * cell.k + cell.m * cell.n)
    values = {
        **_FIXED,
        "gfx": arch,
        "cu_num": visible_cus,
        "M": cell.m,
        "N": cell.n,
        "K": cell.k,
        "libtype": libtype,
        "solidx": solution,
        "splitK": split,
        "us": f"{choice.us:g}",
        "kernelName": name,
        "err_ratio": "0.0",
        "tflops": f"{2 * cell.m * cell.n * cell.k / seconds / 1e12:.2f}",
        "bw": f"{moved / seconds / 1e9:.2f}",
    }
    return ",".join(str(values[column]) for column in COLUMNS)


def parse(data: bytes, where: str, *, arch: str, visible_cus: int) -> dict[Cell, Choice]:
    """Return the rows of a file by cell; they may stand in any order.

    Args:
        data: The file's bytes.
        where: Its path, for errors.
        arch: The device they must be for.
        visible_cus: Its compute units.

    Raises:
        UserError: The columns are not AITER's, or a row is for another device, is doubled, or
            cannot be; with its line.
    """
    lines = lines_of(data, where, "gfx")
    if lines[0].split(",") != list(COLUMNS):
        raise refused(f"{where}: line 1", f"columns {lines[0]}", ",".join(COLUMNS))
    found: dict[Cell, Choice] = {}
    for number, line in enumerate(lines[1:], start=2):
        at = f"{where}: line {number}"
        values = line.split(",")
        if len(values) != len(COLUMNS):
            raise refused(at, f"{len(values)} fields", f"{len(COLUMNS)} fields")
        row = dict(zip(COLUMNS, values, strict=True))
        if (row["gfx"], row["cu_num"]) != (arch, str(visible_cus)):
            raise refused(
                at, f"a row for {row['gfx']} with {row['cu_num']} CUs", f"{arch}, {visible_cus} CUs"
            )
        cell, choice = _row(row, at)
        if cell in found:
            raise refused(at, f"a second row for N, K, M = {tuple(cell)}", "one row a product")
        found[cell] = choice
    if not found:
        raise refused(where, "no rows", "at least one row")
    return found


def _row(row: Mapping[str, str], at: str) -> tuple[Cell, Choice]:
    for column, fixed in _FIXED.items():
        if row[column] != fixed:
            raise refused(at, f"{column} {row[column]}", f"{column} {fixed}")
    sizes = [row[column] for column in ("N", "K", "M")]
    if not all(text.isdigit() and int(text) > 0 for text in sizes):
        raise refused(at, f"N, K, M = {sizes}", "whole numbers of at least 1")
    libtype = row["libtype"]
    if libtype not in AITER_LIBTYPES:
        raise refused(at, f"libtype {libtype!r}", ", ".join(AITER_LIBTYPES))
    try:
        us, solution, split = float(row["us"]), int(row["solidx"]), int(row["splitK"] or 0)
    except ValueError as error:
        raise refused(at, f"us {row['us']!r}, solidx {row['solidx']!r}", "numbers") from error
    if not (math.isfinite(us) and us > 0):
        raise refused(at, f"us {row['us']}", "a positive finite number of microseconds")
    name = f"aiter/{libtype}/{solution}/{split}/{row['kernelName']}"
    return Cell(*(int(text) for text in sizes)), Choice("library", name, "imported", us, None)
