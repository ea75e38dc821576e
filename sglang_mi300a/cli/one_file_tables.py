"""Tables that are one file where they are applied, in place of something that is shipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a import device as devices
from sglang_mi300a import fitted_constants, settings, tables
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import tuned_table
from sglang_mi300a.gemm.kernels import catalogue
from sglang_mi300a.moe import tile_choice
from sglang_mi300a.moe.kernels import candidates
from sglang_mi300a.tables import Table


@dataclass(frozen=True)
class OneFile:
    """A kind of table of which one file at most is applied.

    Attributes:
        room: What `sglang-mi300a tables` calls it.
        op: Its operation.
        what: It is, in words.
        without: What serves where none is applied.
        made_by: The command that makes one for this machine.
        checked: Returns a table if it is one of this kind; UserError if it is not.
        software: Returns the software whose change makes one stale.
        destination: Returns where the applied one lies.
    """

    room: str
    op: str
    what: str
    without: str
    made_by: str
    checked: Callable[[Table, str], Table]
    software: Callable[[], Mapping[str, str]]
    destination: Callable[[], Path]

    def misfits(self, table: Table) -> tuple[list[str], list[str]]:
        """Return how a table does not fit this machine, and what could not be compared here."""
        found = next((one for one in devices.accelerators() if one.arch == "gfx942"), None)
        if found is None:
            return [], ["device: no gfx942 accelerator here"]
        return table.misfits(found, self.software()), []

    def applied(self) -> tuple[Table, Path] | None:
        """Return the table that is used in place of what is shipped, or None."""
        path = self.destination()
        if not path.is_file():
            return None
        return self.checked(tables.load(path), str(path)), path

    def remove(self) -> list[Path]:
        """Take the applied table away; return what was removed."""
        path = self.destination()
        if not path.is_file():
            return []
        path.unlink()
        return [path]


def _checked_experts(table: Table, where: str) -> Table:
    if (table.key, table.columns) != (candidates.KEY, candidates.COLUMNS):
        raise UserError(
            f"table {where}",
            found=f"columns {', '.join(table.columns)}",
            allowed=f"columns {', '.join(candidates.COLUMNS)}, in this order",
            do="make it again: `sglang-mi300a tune moe`",
        )
    return table


EXPERTS = OneFile(
    room="moe",
    op=candidates.OP,
    what="table of the expert layer",
    without="the shipped table serves",
    made_by="sglang-mi300a tune moe",
    checked=_checked_experts,
    software=tile_choice.software,
    destination=tile_choice.measured_path,
)
CONSTANTS = OneFile(
    room="constants",
    op=fitted_constants.OP,
    what="table of the cost model's constants",
    without="the model chooses dense products by its shipped constants",
    made_by="sglang-mi300a report ingest FILE",
    checked=fitted_constants.checked,
    software=lambda: {tuned_table.KERNELS_BUILD: catalogue.build()},
    destination=lambda: settings.state_dir() / "tables" / fitted_constants.FILE,
)
ALL = (EXPERTS, CONSTANTS)


def of_table(table: Table) -> OneFile | None:
    """Return which kind a table is, or None for one of dense products."""
    return next((one for one in ALL if one.op == table.op), None)


def of_room(room: str | None) -> OneFile | None:
    """Return the kind that `sglang-mi300a tables` calls so, or None."""
    return next((one for one in ALL if one.room == room), None)
