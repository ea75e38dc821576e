"""Proof, on the device, that TunableOp serves products from the applied table.

TunableOp can be asked what it holds, not what it ran. But it can write down each product that it
finds no row for. So a rank makes two products with that on: one that no row is for, which must be
written down (TunableOp is on, products pass through it, and it spells them as the table does), and
one of the table, which must not (its row was found). TunableOp then calls the solution that the row
names, or raises where the library has none of that name. That it raises was recorded, that it calls
is read in its source: no interface of it shows the call. The result is compared with float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_mi300a import settings
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import tunableop_csv, tuned_table
from sglang_mi300a.gemm.candidates import NOTHING_FASTER
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuning_record import MOST_RELATIVE_ERROR
from sglang_mi300a.tables import Table

DO = (
    "unset PYTORCH_TUNABLEOP_RECORD_UNTUNED if it is set; else serve without the table: "
    "`sglang-mi300a tables remove gemm`, or --allow-untuned"
)

Product = Callable[[Cell], float]
"""Makes a bf16 product on the device, as SGLang does; returns its relative error."""


def prove(tunable: Any, table: Table, product: Product) -> str:
    """Prove for one row that TunableOp looks its product up; return what was seen, in words.

    Once in a process: TunableOp writes a product down the first time alone.

    Args:
        tunable: ``torch.cuda.tunable``; it holds the table's rows.
        table: The applied table.
        product: Makes a product.

    Raises:
        UserError: TunableOp did not see a product, or did not find its row, or the library lacks
            the solution, or its result is wrong.
    """
    rows = {
        cell: choice.solution
        for cell, choice in tuned_table.choices(table).items()
        if choice.by_tunableop and choice.solution not in NOTHING_FASTER
    }
    if not rows:
        return "no row of TunableOp's to probe"
    cell = min(rows, key=lambda one: one.n * one.k * one.m)
    known = {str(key) for _, key, *_ in tunable.get_results()}
    others = (Cell(cell.n, cell.k, cell.m + more) for more in range(1, len(known) + 2))
    without_row = next(one for one in others if tunableop_csv.key_of(one) not in known)
    at = f"TunableOp, {cell.n} x {cell.k}, M {cell.m}"
    try:
        unknown, error = _made(tunable, without_row, cell, product)
    except RuntimeError as failure:
        raise _refused(at, f"{rows[cell]} failed ({failure})", "a solution of its library") from (
            failure
        )
    if without_row not in unknown:
        found = f"it did not see a product with M {without_row.m}, for which there is no row"
        raise _refused(at, found, "products that pass through it")
    if cell in unknown:
        raise _refused(at, f"it found no row, though {rows[cell]} was read", "the row to be used")
    if not error <= MOST_RELATIVE_ERROR:
        found = f"{rows[cell]} is wrong here: relative L2 {error:.1e}"
        raise _refused(at, found, f"at most {MOST_RELATIVE_ERROR:.0e}")
    return f"{cell.n} x {cell.k}, M {cell.m}: looked up and found, {rows[cell]}"


def _made(tunable: Any, without_row: Cell, cell: Cell, product: Product) -> tuple[set[Cell], float]:
    """Make both products; return which of them TunableOp found no row for, and the second's error.

    Recording must not be on before TunableOp has read its file: it reads none then.
    """
    with tempfile.TemporaryDirectory() as folder:
        with settings.untuned_products_into(Path(folder) / "untuned.csv"):
            tunable.record_untuned_enable(True)
            try:
                product(without_row)
                error = product(cell)
            finally:
                tunable.record_untuned_enable(False)
        lines = {
            tuple(line.split(",")[:2])
            for file in Path(folder).iterdir()  # TunableOp puts the device into its name
            for line in file.read_text().splitlines()
        }
    wanted = (without_row, cell)
    return {
        one for one in wanted if (tunableop_csv.OPERATION, tunableop_csv.key_of(one)) in lines
    }, error


def run_product(cell: Cell) -> float:
    """Make a product of random matrices on the current device; return its relative L2 error."""
    import torch

    generator = torch.Generator().manual_seed(cell.m)
    x, weight = (
        torch.randn(rows, cell.k, generator=generator).bfloat16() for rows in (cell.m, cell.n)
    )
    out = torch.nn.functional.linear(x.cuda(), weight.cuda()).cpu().float()
    right = x.float() @ weight.float().T
    return float((out - right).norm() / right.norm())


def _refused(where: str, found: str, allowed: str) -> UserError:
    return UserError(where, found=found, allowed=allowed, do=DO)
