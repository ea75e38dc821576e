"""The constants of a refit as a table: where it is applied, dense products are chosen by them.

It names the device and the build of the dense kernels, as any table does. Its rows have no times:
a constant that measured times tell has basis ``fitted``, one that keeps its shipped value
``model``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sglang_mi300a import tables
from sglang_mi300a.cost_model import MACHINE, Machine
from sglang_mi300a.errors import UserError
from sglang_mi300a.model_refit import LIMITS, Refit
from sglang_mi300a.tables import Table

OP = tables.CONSTANTS
FILE = "constants.json"
KEY = ("constant",)
COLUMNS = (*KEY, "value", "shipped", "standard_error", "basis")
MODEL = "model"
"""What ``made`` calls the digest of the model with these constants."""


def as_table(
    found: Refit, *, device: Mapping[str, Any], software: Mapping[str, str], made: Mapping[str, Any]
) -> Table:
    """Return the table of a refit.

    Args:
        found: The refit.
        device: ``name``, ``arch`` and ``visible_cus`` of what was measured.
        software: The build of the kernels that are chosen among.
        made: ``by`` (command) and further facts.
    """
    return Table(
        op=OP,
        device=device,
        software=software,
        made={
            **made,
            "shipped_model": MACHINE.digest,
            MODEL: found.machine.digest,
            "at_limit": list(found.at_limit),
            "rms_before": found.before,
            "rms_after": found.after,
            "largest_residual": found.largest,
        },
        key=KEY,
        columns=COLUMNS,
        rows={
            (name,): {
                "constant": name,
                "value": getattr(found.machine, name),
                "shipped": getattr(MACHINE, name),
                "standard_error": found.errors.get(name),
                "basis": "model" if name in found.held else "fitted",
            }
            for name in sorted(LIMITS)
        },
    )


def checked(table: Table, where: str) -> Table:
    """Return a table if it holds the constants of a refit of this version's model.

    Raises:
        UserError: Its columns or constants are others, a value is beyond its limits, or the model
            with them is another than it says.
    """
    if (table.op, table.key, table.columns) != (OP, KEY, COLUMNS):
        raise _refused(
            where,
            f"operation {table.op}, columns {', '.join(table.columns)}",
            f"operation {OP}, columns {', '.join(COLUMNS)}, in this order",
        )
    if [key[0] for key in table.rows] != sorted(LIMITS):
        names = ", ".join(str(key[0]) for key in table.rows)
        raise _refused(where, f"constants {names}", ", ".join(sorted(LIMITS)))
    for name, (low, high) in LIMITS.items():
        value = table.rows[name,]["value"]
        if isinstance(value, (bool, str)) or value is None or not low <= value <= high:
            raise _refused(f"{where}: {name}", f"{value!r}", f"{low} to {high}")
    digest = machine(values(table)).digest
    if digest != table.made.get(MODEL):
        raise _refused(
            where,
            f"constants of a model {table.made.get(MODEL)}",
            f"the model that they make here, {digest}",
        )
    return table


def values(table: Table) -> dict[str, float]:
    """Return the constants of a checked table by name."""
    return {str(row["constant"]): float(str(row["value"])) for row in table.rows.values()}


def machine(constants: Mapping[str, float]) -> Machine:
    """Return the model's machine with some constants in place of the shipped ones."""
    changed: dict[str, Any] = dict(constants)
    return replace(MACHINE, **changed)


def _refused(where: str, found: str, allowed: str) -> UserError:
    return UserError(
        f"table {where}",
        found=found,
        allowed=allowed,
        do="run `sglang-mi300a report ingest` with this version; nothing of it is used",
    )
