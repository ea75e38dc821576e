"""Whether a table's software is the software at hand, byte by byte, each difference named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_mi300a.gemm.tuned_table import VALIDATORS


def differing_validators(table: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Return how two sets of TunableOp's validators differ, one line each; empty if equal.

    Args:
        table: The table's versions by name.
        here: Those of the running process.
    """
    found = []
    for name in VALIDATORS:
        theirs, ours = table.get(name), here.get(name)
        if theirs is None or ours is None:
            found.append(f"{name}: table {theirs!r}, here {ours!r}")
        elif theirs.encode() != ours.encode():
            at = _first_difference(theirs.encode(), ours.encode())
            found.append(f"{name}: table {theirs!r}, here {ours!r} (first unlike byte: {at})")
    found += [
        f"{name}: not in the table, here {here[name]!r}"
        for name in sorted(here)
        if name not in VALIDATORS
    ]
    return found


def differing_device(table: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return how two devices differ (``name``, ``arch``, ``visible_cus``); empty if they do not."""
    return [
        f"{name}: table {table[name]!r}, here {here.get(name)!r}"
        for name in ("name", "arch", "visible_cus")
        if table[name] != here.get(name)
    ]


def _first_difference(one: bytes, other: bytes) -> int:
    """Return the index of the first unlike byte, the shorter length if one begins the other."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))
