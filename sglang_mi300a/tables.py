"""Tables that say which variant serves a shape: JSON with provenance, refused whole or used whole.

    {
     "schema": 1,
     "op": "moe_stage1",
     "device": {"name": "AMD Instinct MI300A", "arch": "gfx942", "visible_cus": 228},
     "software": {"rocm": "7.0.0"},
     "made": {"by": "sglang-mi300a tune moe", "samples": 30},
     "key": ["n", "k", "m"],
     "columns": ["n", "k", "m", "variant", "basis", "us", "stock_us"],
     "rows": [
      [512, 4096, 16, "tile16", "measured", 56.1, 160.2]
     ]
    }

One row a line, rows sorted by key, each key once, one canonical spelling (a test renders every
shipped table). Each row carries its ``basis``: ``model`` (predicted µs), ``measured`` (µs, and it
must be faster than stock's), ``imported`` (used only with exactly the software it came from). A
table of the cost model's constants has no times: a row is ``fitted``, or the shipped ``model``'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_mi300a.device import Accelerator
from sglang_mi300a.errors import UserError

SCHEMA = 1
BASES = ("model", "measured", "imported", "fitted")
CONSTANTS = "cost_model"
"""The one operation whose rows have no times."""
Cell = int | float | str | None

_TOP = ("schema", "op", "device", "software", "made", "key", "columns", "rows")
_DEVICE = ("name", "arch", "visible_cus")
_TIMES = ("us", "stock_us")


@dataclass(frozen=True)
class Table:
    """A validated table.

    Attributes:
        op: The operation whose variants it chooses among.
        device: ``name``, ``arch`` and ``visible_cus`` it was made for.
        software: Versions it was made with, by name.
        made: What made it: ``by`` (command) and further facts.
        key: Columns that identify a row, in sorting order.
        columns: All columns.
        rows: By key.
    """

    op: str
    device: Mapping[str, Any]
    software: Mapping[str, str]
    made: Mapping[str, Any]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    rows: Mapping[tuple[Cell, ...], Mapping[str, Cell]]

    def misfits(self, device: Accelerator, software: Mapping[str, str]) -> list[str]:
        """Return how this table does not fit a device and its software; empty if it fits.

        Software is not compared where every row is a model's: that depends on the device alone.
        """
        here = {
            "name": device.name, "arch": device.arch, "visible_cus": device.num_visible_cus,
        }  # fmt: skip
        found = [
            f"{name}: table {self.device[name]!r}, here {here[name]!r}"
            for name in _DEVICE
            if self.device[name] != here[name]
        ]
        if any(row["basis"] != "model" for row in self.rows.values()):
            found += [
                f"{name}: table {version!r}, here {software.get(name)!r}"
                for name, version in sorted(self.software.items())
                if software.get(name) != version
            ]
        return found


def load(path: Path) -> Table:
    """Return the table in a file.

    Raises:
        UserError: The file is not a table of this schema; where and what is said, and nothing of
            it is used.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise _refused(path, f"not readable ({error.strerror})", "a readable file") from error
    except UnicodeDecodeError as error:
        raise _refused(path, f"not UTF-8 at byte {error.start}", "UTF-8") from error
    return parse(text, str(path))


def parse(text: str, where: str) -> Table:
    """Return the table in a text; ``where`` is named in errors.

    Raises:
        UserError: As :func:`load`.
    """
    if "\r" in text:
        raise _refused(where, "a carriage return", "LF line ends")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise _refused(where, f"no JSON ({error})", "JSON") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, dict) else None
        newer = isinstance(schema, int) and schema > SCHEMA
        do = "upgrade sglang-mi300a; this one is older than the table" if newer else _AGAIN
        raise _refused(where, f"schema {schema!r}", f"schema {SCHEMA}", do)
    if sorted(data) != sorted(_TOP):
        raise _refused(where, f"entries {sorted(data)}", f"exactly {sorted(_TOP)}")
    device = data["device"]
    if not isinstance(device, dict) or sorted(device) != sorted(_DEVICE) or not device["name"]:
        raise _refused(where, f"device {device!r}", f"{', '.join(_DEVICE)}, none empty")
    key, columns = tuple(data["key"]), tuple(data["columns"])
    needed = ("basis", *(() if data["op"] == CONSTANTS else _TIMES))
    if columns[: len(key)] != key or not key or not set(needed) <= set(columns):
        raise _refused(
            where,
            f"key {list(key)}, columns {list(columns)}",
            f"columns that begin with the key and hold {', '.join(needed)}",
        )
    return Table(
        op=str(data["op"]),
        device=device,
        software=dict(data["software"]),
        made=dict(data["made"]),
        key=key,
        columns=columns,
        rows=_rows(data["rows"], key, columns, where),
    )


def _rows(
    rows: list[list[Cell]], key: tuple[str, ...], columns: tuple[str, ...], where: str
) -> dict[tuple[Cell, ...], dict[str, Cell]]:
    found: dict[tuple[Cell, ...], dict[str, Cell]] = {}
    before: tuple[Any, ...] | None = None
    for number, values in enumerate(rows):
        at = f"{where}: row {number}"
        if not isinstance(values, list) or len(values) != len(columns):
            raise _refused(at, f"{values!r}", f"{len(columns)} values: {', '.join(columns)}")
        row = dict(zip(columns, values, strict=True))
        if row["basis"] not in BASES:
            raise _refused(at, f"basis {row['basis']!r}", " or ".join(BASES))
        if set(_TIMES) <= set(columns):
            _check_times(row, at)
        this: tuple[Any, ...] = tuple(row[name] for name in key)
        if before is not None and not before < this:
            raise _refused(at, f"key {this} after {before}", "keys that are unique and sorted")
        found[this] = row
        before = this
    return found


def _check_times(row: dict[str, Cell], at: str) -> None:
    us, stock_us = row["us"], row["stock_us"]
    for name, value in (("us", us), ("stock_us", stock_us)):
        if value is None and name == "stock_us" and row["basis"] != "measured":
            continue
        if not isinstance(value, (int, float)) or not 0 < value < 1e9:
            raise _refused(at, f"{name} {value!r}", "a positive finite number of microseconds")
    if row["basis"] == "measured" and not float(us or 0) < float(stock_us or 0):
        raise _refused(
            at,
            f"{us} us is not faster than stock's {stock_us} us",
            "measured rows that are faster; delete the row and stock is used",
        )


def render(table: Table) -> str:
    """Return the canonical text of a table: one row a line, LF, a final newline."""
    head = {
        "schema": SCHEMA,
        "op": table.op,
        "device": dict(table.device),
        "software": dict(table.software),
        "made": dict(table.made),
        "key": list(table.key),
        "columns": list(table.columns),
    }
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    rows = ["  " + json.dumps([row[name] for name in table.columns]) for row in table.rows.values()]
    body = ",\n".join(rows)
    return "{\n" + "\n".join(lines) + '\n "rows": [\n' + body + "\n ]\n}\n"


_AGAIN = "make it again; nothing of it is used"


def _refused(where: Path | str, found: str, allowed: str, do: str = _AGAIN) -> UserError:
    return UserError(f"table {where}", found=found, allowed=allowed, do=do)
