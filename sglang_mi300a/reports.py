"""One file that tells others how this package fared on a machine: made, read back, refused.

    {
     "kind": "sglang-mi300a report",
     "schema": 1,
     "made_with": "0.1.0",
     "level": "E4",
     "facts": {…},       what `sglang-mi300a doctor --record` writes
     "findings": […],    what doctor made of it: id, severity, seen
     "kernels": {…},     each room's code object: digest, compiler
     "boot": […],        each rank: stage, seconds to each stage, what rooms said, refusal
     "start": {…},       the launcher: timeline, warm-up, SGLang's fast paths, warnings
     "hooks": {…},       each hook over all ranks: required, live, least calls
     "tables": {…},      the applied table of dense products: cells covered, cells in all
     "self_test": {…},   what `sglang-mi300a kernels selftest --json` printed
     "bench": […],       benchmark results as they were given, with their file names' stems
     "left_out": {…}     why a section is null
    }

``level`` is E4 (measured on MI300A) where the facts show one, else E0. A section that was not
looked at is null and says why in ``left_out``: it is never left away, so that "not run" cannot pass
for "nothing found".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sglang_mi300a.code_objects import ARCH
from sglang_mi300a.errors import UserError

KIND = "sglang-mi300a report"
SCHEMA = 1
OPTIONAL = ("boot", "start", "hooks", "tables", "self_test", "bench")
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Report:
    """A report; see the module's text for the sections."""

    made_with: str
    level: str
    facts: dict[str, Any]
    findings: list[Any]
    kernels: dict[str, Any]
    boot: list[Any] | None = None
    start: dict[str, Any] | None = None
    hooks: dict[str, Any] | None = None
    tables: dict[str, Any] | None = None
    self_test: dict[str, Any] | None = None
    bench: list[Any] | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    def render(self) -> str:
        """Return the file's text."""
        return json.dumps({"kind": KIND, "schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    @property
    def sections(self) -> list[str]:
        """The optional sections that are there."""
        return [name for name in OPTIONAL if getattr(self, name) is not None]


def level_of(facts: Mapping[str, Any]) -> str:
    """Return the evidence level of what was measured on a machine: E4 on an MI300A, else E0."""
    found = facts.get("devices", {}).get("found", [])
    return "E4" if any(one.get("arch") == ARCH and one.get("is_apu") for one in found) else "E0"


def load(path: Path) -> Report:
    """Return the report in a file.

    Raises:
        UserError: It is no report of this schema, or contradicts itself.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _refused(path, f"{path.stat().st_size} bytes", f"at most {MAX_BYTES}")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise _refused(path, f"not readable ({error.strerror})", "a report") from error
    except UnicodeDecodeError as error:
        raise _refused(path, f"not UTF-8 at byte {error.start}", "a report") from error
    return parse(text, path)


def parse(text: str, where: Path | str) -> Report:
    """Return the report in a text; ``where`` is named in errors.

    Raises:
        UserError: As :func:`load`.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _refused(where, f"no JSON ({error})", "a report") from error
    if not isinstance(data, dict) or data.pop("kind", None) != KIND:
        raise _refused(where, "JSON of another kind", KIND)
    schema = data.pop("schema", None)
    if schema != SCHEMA:
        raise _refused(where, f"schema {schema!r}", f"schema {SCHEMA}, which this version reads")
    kinds = {one.name: str(one.type) for one in fields(Report)}
    if sorted(data) != sorted(kinds):
        differing = sorted(set(data) ^ set(kinds))
        raise _refused(where, f"missing or unknown: {', '.join(differing)}", ", ".join(kinds))
    for name, kind in kinds.items():
        wanted = {"s": str, "d": dict, "l": list}[kind[0]]
        value = data[name]
        if not isinstance(value, wanted) and not (value is None and name in OPTIONAL):
            raise _refused(where, f"{name} of type {type(value).__name__}", kind)
    report = Report(**data)
    _check(report, where)
    return report


def _check(report: Report, where: Path | str) -> None:
    silent = [
        name for name in OPTIONAL if (getattr(report, name) is None) != (name in report.left_out)
    ]
    if silent:
        raise _refused(
            where, f"{', '.join(silent)}: null without a reason, or both", "one or the other"
        )
    if report.level != level_of(report.facts):
        raise _refused(
            where,
            f"level {report.level} with facts of level {level_of(report.facts)}",
            "the level that the facts show",
        )


def _refused(where: Path | str, found: str, allowed: str) -> UserError:
    return UserError(
        f"report {where}", found=found, allowed=allowed, do="make it again: sglang-mi300a report"
    )
