"""Presets: data files of SGLang fields and environment, each line with its reason.

A preset is ``presets/NAME.json`` in this room. It may extend another preset and take in fragments
of other rooms (``speculative/nextn-3`` is ``speculative/presets/nextn-3.json``), all by data, so
that rooms need not import each other. Later lines win.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_mi300a.errors import UserError

PACKAGE = Path(__file__).parents[1]
SCHEMA = 1


@dataclass(frozen=True)
class Line:
    """One setting.

    Attributes:
        name: Field of SGLang's ``ServerArgs``, or name of an environment variable.
        value: What it is set to.
        why: The reason.
        on: ``any``, ``cpu`` or ``gfx942``.
        is_environment: Whether ``name`` is an environment variable.
        fixed: Whether the user's own flag of another value is refused rather than preferred.
    """

    name: str
    value: Any
    why: str
    on: str
    is_environment: bool
    fixed: bool


@dataclass(frozen=True)
class Preset:
    """A merged preset: one line per name and device."""

    name: str
    title: str
    lines: tuple[Line, ...]

    def on(self, device: str) -> dict[str, Line]:
        """Return the lines for a device, by name."""
        return {line.name: line for line in self.lines if line.on in ("any", device)}


def names() -> list[str]:
    """Return the shipped presets' names."""
    return sorted(path.stem for path in (PACKAGE / "serving/presets").glob("*.json"))


def load(name: str) -> Preset:
    """Return a shipped preset, merged.

    Raises:
        UserError: There is no preset of this name.
    """
    if name not in names():
        raise UserError(
            "--mi300a",
            found=f"{name!r}",
            allowed=f"off, {', '.join(names())}",
            do="pass one of them",
        )
    data = _file(f"serving/{name}")
    return Preset(name=name, title=data["title"], lines=tuple(_merged(data)))


def _file(fragment: str) -> dict[str, Any]:
    room, _, stem = fragment.partition("/")
    path = PACKAGE / room / "presets" / f"{stem}.json"
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if data.get("schema") != SCHEMA:
        raise UserError(
            str(path),
            found=f"schema {data.get('schema')!r}",
            allowed=f"schema {SCHEMA}",
            do="reinstall the package",
        )
    return data


def _merged(data: dict[str, Any]) -> list[Line]:
    by_key: dict[tuple[str, str], Line] = {}
    for fragment in data.get("includes", []):
        for line in _merged(_file(fragment)):
            by_key[line.name, line.on] = line
    for row in data["lines"]:
        line = _line(row)
        if line.on == "any":  # a line for every device replaces those for one
            by_key = {key: old for key, old in by_key.items() if key[0] != line.name}
        by_key[line.name, line.on] = line
    return list(by_key.values())


def _line(row: dict[str, Any]) -> Line:
    is_environment = "environment" in row
    return Line(
        name=row["environment"] if is_environment else row["field"],
        value=row["value"],
        why=row["why"],
        on=row.get("on", "any"),
        is_environment=is_environment,
        fixed=row.get("fixed", False),
    )
