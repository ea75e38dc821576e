"""Tables for tests: a few cells, on the stack that the stand-in TunableOp plays."""

import dataclasses

from sglang_mi300a import fitted_constants
from sglang_mi300a.cost_model import MACHINE
from sglang_mi300a.gemm import tuned_table
from sglang_mi300a.gemm.kernels import catalogue
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuned_table import Choice
from sglang_mi300a.model_refit import LIMITS, Refit
from tests.gemm.standin_tunableop import STACK

DEVICE = {"name": "AMD Instinct MI300A", "arch": "gfx942", "visible_cus": 228}
MADE = {"by": "sglang-mi300a tune gemm", "date": "2026-01-31", "samples": 30}
ROWS = {
    Cell(512, 4096, 16): Choice("library", "Gemm_Rocblas_12", "measured", 8.1, 133.0),
    Cell(512, 4096, 64): Choice("library", "Gemm_Hipblaslt_3", "measured", 10.5, 140.0),
    Cell(32, 4096, 4): Choice("library", "Gemm_Rocblas_7", "measured", 7.5, 65.0),
    Cell(5120, 4096, 128): Choice("kernel", "kernel/tile64", "measured", 27.5, 133.0),
    Cell(5120, 4096, 256): Choice("library", "aiter/asm/3/2/a_kernel", "imported", 41.0, None),
}


def table(rows=None, **changes):
    """Return a table; further arguments replace fields of it."""
    made = tuned_table.make(
        ROWS if rows is None else rows, device=DEVICE, validators=STACK, made=MADE
    )
    return dataclasses.replace(made, **changes)


REFITTED = dataclasses.replace(MACHINE, hbm_tb_s=1.6, overlap=1.3, start_us=4.0)


def constants(**changes):
    """Return the table of a refit that told all constants; further arguments replace fields."""
    found = Refit(REFITTED, dict.fromkeys(LIMITS, 0.01), (), (), 0.2, 0.01, 0.02)
    made = fitted_constants.as_table(
        found,
        device=DEVICE,
        software={tuned_table.KERNELS_BUILD: catalogue.build()},
        made={"by": "sglang-mi300a report ingest"},
    )
    return dataclasses.replace(made, **changes)
