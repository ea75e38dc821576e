"""What a rank checks of its dense products before it reads a weight, and reports while it boots."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sglang_mi300a import boot_report, settings
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import live_stack, lookup_probe, own_products, padding, staging
from sglang_mi300a.gemm.shape_grid import Cell


def look(record: settings.Resolved) -> None:
    """Check that this rank's TunableOp took the applied table whole; say what it covers.

    On an accelerator one small product is run first, table or not: a process whose first product
    falls into a graph capture fails there (HIP error 900).

    Raises:
        UserError: A version differs by a byte, another file is in use, a row is missing, or the
            probe of one row fails.
    """
    boot_report.add_fact("gemm", padding.of_this_process().report)
    boot_report.add_fact("dense_kernels", own_products.of_this_process().report)
    if record.device != "gfx942":
        return
    live_stack.run_first_product()
    if record.gemm.get("kernels") == "own":
        _start_own_kernels(record)
    if record.gemm.get("table"):
        import torch

        ordinal = torch.cuda.current_device()
        said = check(torch.cuda.tunable, record, ordinal, lookup_probe.run_product)
        boot_report.add_fact("gemm_table", said)
        print(f"sglang-mi300a: {said}", file=sys.stderr, flush=True)


def _start_own_kernels(record: settings.Resolved) -> None:
    import torch

    from sglang_mi300a.gemm import skinny

    device = torch.device("cuda", torch.cuda.current_device())
    for line in own_products.start(record, skinny.product, device):
        print(f"sglang-mi300a: {line}", file=sys.stderr, flush=True)


def check(
    tunable: Any, record: settings.Resolved, ordinal: int, product: lookup_probe.Product
) -> str:
    """Return what TunableOp holds of a record's table, and that it serves from it, in words.

    Raises:
        UserError: See :func:`live_stack.check` and :func:`lookup_probe.prove`; not where serving
            untuned was allowed.
    """
    grid = padding.grid_in(record)
    cells = [Cell(n, k, m) for (n, k), counts in grid.items() for m in counts]
    try:
        applied = staging.read(Path(record.gemm["table"]))
        loaded = live_stack.check(tunable, applied, ordinal, cells)
        return f"{loaded}; {lookup_probe.prove(tunable, applied.table, product)}"
    except UserError as error:
        if not record.gemm["allow_untuned"]:
            raise
        padding.of_this_process().pad_nothing()
        return f"serving untuned: {error}"
