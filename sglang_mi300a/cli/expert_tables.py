"""The expert layer's tables, for `sglang-mi300a tables`: one file, in place of the shipped one."""

from __future__ import annotations

from pathlib import Path

from sglang_mi300a import device as devices
from sglang_mi300a import tables
from sglang_mi300a.errors import UserError
from sglang_mi300a.moe import tile_choice
from sglang_mi300a.moe.kernels import candidates
from sglang_mi300a.tables import Table

OP = candidates.OP
ROOM = "moe"


def checked(table: Table, where: str) -> Table:
    """Return a table if it is one of the expert layer's.

    Raises:
        UserError: Its columns are others.
    """
    if (table.key, table.columns) != (candidates.KEY, candidates.COLUMNS):
        raise UserError(
            f"table {where}",
            found=f"columns {', '.join(table.columns)}",
            allowed=f"columns {', '.join(candidates.COLUMNS)}, in this order",
            do="make it again: `sglang-mi300a tune moe`",
        )
    return table


def misfits(table: Table) -> tuple[list[str], list[str]]:
    """Return how a table does not fit this machine, and what could not be compared here."""
    found = next((one for one in devices.accelerators() if one.arch == "gfx942"), None)
    if found is None:
        return [], ["device: no gfx942 accelerator here"]
    return table.misfits(found, tile_choice.software()), []


def applied() -> tuple[Table, Path] | None:
    """Return the table that is used in place of the shipped one, or None."""
    path = tile_choice.measured_path()
    if not path.is_file():
        return None
    return checked(tables.load(path), str(path)), path


def destination() -> Path:
    """Return where an applied table lies."""
    return tile_choice.measured_path()


def remove() -> list[Path]:
    """Take the applied table away; return what was removed."""
    path = tile_choice.measured_path()
    if not path.is_file():
        return []
    path.unlink()
    return [path]
