"""Recorded machines: a healthy one, and pairs that differ from each other in one fact.

``fixtures/mi300a-healthy.json`` was composed from published figures; no MI300A was recorded.
``fixtures/cases.json`` holds a row a pair: the finding, the fact by path, a value with which it is
found and one with which it is not, and what both have otherwise than the healthy machine. ``null``
for an entry of a mapping: it is not there.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_mi300a.doctor import record
from sglang_mi300a.doctor.facts import Facts

FIXTURES = Path(__file__).parent / "fixtures"
HEALTHY = FIXTURES / "mi300a-healthy.json"


@dataclass(frozen=True)
class Case:
    """One pair."""

    finding: str
    fact: str
    triggers: Any
    does_not: Any
    also: dict[str, Any] = field(default_factory=dict)

    def data(self, *, triggering: bool) -> dict[str, Any]:
        """Return one machine of the pair as JSON values."""
        data = healthy_data()
        for path, value in self.also.items():
            put(data, path, copy.deepcopy(value))
        put(data, self.fact, self.triggers if triggering else self.does_not)
        return data

    def facts(self, *, triggering: bool) -> Facts:
        """Return one machine of the pair."""
        text = json.dumps(self.data(triggering=triggering))
        return record.parse(text, f"{self.finding}, {self.fact}")


def healthy_data() -> dict[str, Any]:
    """Return the healthy machine as JSON values."""
    return dict(json.loads(HEALTHY.read_text()))


def healthy() -> Facts:
    """Return the healthy machine."""
    return record.load(HEALTHY)


def cases() -> list[Case]:
    """Return every pair."""
    return [Case(**row) for row in json.loads((FIXTURES / "cases.json").read_text())]


def steps(path: str) -> list[str | int]:
    """Return ``a.b[0].c`` as keys and positions."""
    found = re.findall(r"\[(\d+)\]|([^.\[\]]+)", path)
    return [int(number) if number else name for number, name in found]


def put(data: Any, path: str, value: Any) -> None:
    """Set the fact at a path; None takes an entry of a mapping away, where facts are texts."""
    *before, last = steps(path)
    for step in before:
        data = data[step]
    if value is None and path.startswith(("environment.", "failures.", "tables.tunable")):
        data.pop(last, None)
    else:
        data[last] = value


def differences(one: Any, other: Any, path: tuple[str | int, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of leaves in which two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = list(dict.fromkeys([*one, *other]))
        return [
            found
            for key in keys
            for found in differences(one.get(key), other.get(key), (*path, key))
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for i, (a, b) in pairs for found in differences(a, b, (*path, i))]
    return [] if one == other else [path]
