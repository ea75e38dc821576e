"""What TunableOp in this process really took: its versions, its rows, and that it writes nothing.

``tunable`` is ``torch.cuda.tunable`` throughout; tests put a stand-in there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import stack_fit, tunableop_csv, tuned_table
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.staging import TUNABLEOP, Applied

DO = (
    "tune for this stack: `sglang-mi300a tune gemm`; or serve without the table: "
    "`sglang-mi300a tables remove gemm`, or --allow-untuned"
)


@dataclass(frozen=True)
class Loaded:
    """What one rank's TunableOp holds.

    Attributes:
        ordinal: Device ordinal.
        num_rows: Rows of the table in it.
        num_cells: Cells of the server's grid.
        num_covered: Those that have a row.
    """

    ordinal: int
    num_rows: int
    num_cells: int
    num_covered: int

    def __str__(self) -> str:
        return (
            f"gemm table on device {self.ordinal}: {self.num_rows} rows loaded, "
            f"{self.num_covered} of {self.num_cells} products covered"
        )


def validators(tunable: Any) -> dict[str, str]:
    """Return the versions that TunableOp compares files with, by name."""
    return {str(name): str(value) for name, value in tunable.get_validators()}


def keep_from_writing(tunable: Any) -> None:
    """Turn tuning off, and the rewriting of its file at exit where this torch still has it."""
    tunable.tuning_enable(False)
    if hasattr(tunable, "write_file_on_exit"):  # torch 2.9 has it, 2.13 writes only when it tunes
        tunable.write_file_on_exit(False)


def check(tunable: Any, applied: Applied, ordinal: int, cells: list[Cell]) -> Loaded:
    """Check that TunableOp took every row of the applied table; return what it holds.

    Args:
        tunable: The module.
        applied: The table.
        ordinal: This process's device.
        cells: The server's grid.

    Raises:
        UserError: A version differs, another file is in use, or a row is missing.
    """
    keep_from_writing(tunable)
    path = applied.directory / (TUNABLEOP % ordinal)
    differing = stack_fit.differing_validators(applied.table.software, validators(tunable))
    if differing:
        raise UserError(
            f"gemm table {path}",
            found="; ".join(differing),
            allowed="the software it was tuned with",
            do=DO,
        )
    if not tunable.is_enabled() or tunable.get_filename() != str(path):
        state = "on" if tunable.is_enabled() else "off"
        raise UserError(
            "TunableOp",
            found=f"{state}, with file {tunable.get_filename()!r}",
            allowed=f"on, with file {str(path)!r}",
            do="unset PYTORCH_TUNABLEOP_ENABLED and PYTORCH_TUNABLEOP_FILENAME",
        )
    wanted = {
        (tunableop_csv.key_of(cell), choice.solution)
        for cell, choice in tuned_table.choices(applied.table).items()
        if choice.by_tunableop
    }
    held = _held(tunable)
    if not wanted <= held:
        tunable.read_file(str(path))  # it reads of its own accord at its first product only
        held = _held(tunable)
    lacking = sorted(wanted - held)
    if lacking:
        raise UserError(
            f"gemm table {path}",
            found=f"{len(wanted) - len(lacking)} of {len(wanted)} rows in TunableOp; it lacks "
            f"{lacking[0][0]} -> {lacking[0][1]}",
            allowed="every row",
            do=DO,
        )
    have, _ = tuned_table.covered(applied.table, cells)
    return Loaded(ordinal, len(wanted), len(cells), len(have))


def _held(tunable: Any) -> set[tuple[str, str]]:
    return {
        (str(key), str(solution))
        for operation, key, solution, *_ in tunable.get_results()
        if operation == tunableop_csv.OPERATION
    }


def read_here() -> tuple[dict[str, str] | None, str]:
    """Return this machine's validators, or None and why there are none to read.

    Runs one small product first: TunableOp registers some versions with its first product, and a
    first product inside a graph capture fails on hipBLASLt.
    """
    try:
        import torch
    except ImportError as error:
        return None, f"torch is not installed ({error})"
    if torch.version.hip is None:
        return None, f"torch {torch.__version__} is no ROCm build"
    if not torch.cuda.is_available():
        return None, "torch sees no accelerator"
    run_first_product()
    return validators(torch.cuda.tunable), ""


def run_first_product() -> None:
    """Run one small bf16 product on the current device, so that none is the first in a capture."""
    import torch

    x = torch.ones((64, 64), dtype=torch.bfloat16, device="cuda")
    torch.nn.functional.linear(x, x)
    torch.cuda.synchronize()
