"""Where the time of a start went: marks of the launcher and its ranks, made into one table.

A mark names a stage that has just ended, when, and the bytes it left. Launcher and ranks are
processes of one node and share its clock; a stage that all ranks pass counts when the last of them
has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglang_mi300a import process_identity

START = "start"
"""The mark of a process's own start, from which its stages count."""


@dataclass(frozen=True)
class Mark:
    """A stage that ended.

    Attributes:
        stage: Its name; the same one may end twice (target and draft).
        at: Seconds since the epoch.
        num_bytes: What it left in memory; None where that is not its point or is not known.
    """

    stage: str
    at: float
    num_bytes: int | None = None


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        stage: What ended.
        seconds: Since the line before it.
        num_bytes: On the rank where it was most; None where no rank says.
    """

    stage: str
    seconds: float
    num_bytes: int | None = None


_marks: list[Mark] = []


def mark(stage: str, num_bytes: int | None = None) -> None:
    """Note that a stage of this process has ended."""
    if not _marks:
        _marks.append(Mark(START, process_started_at()))
    _marks.append(Mark(stage, time.time(), num_bytes))


def marks() -> list[Mark]:
    """Return this process's marks so far."""
    return list(_marks)


def forget() -> None:
    """Forget this process's marks (for tests)."""
    _marks.clear()


def process_started_at() -> float:
    """Return when this process started, seconds since the epoch, to a clock tick."""
    uptime_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    ticks = process_identity.start_ticks(os.getpid()) or 0
    return time.time() - uptime_s + ticks / os.sysconf("SC_CLK_TCK")


def as_data(of: Iterable[Mark]) -> list[dict[str, Any]]:
    """Return marks as plain JSON values."""
    return [asdict(one) for one in of]


def of_data(rows: Iterable[Mapping[str, Any]]) -> list[Mark]:
    """Return marks out of plain JSON values."""
    return [Mark(**row) for row in rows]


def rows(launcher: Sequence[Mark], ranks: Sequence[Sequence[Mark]]) -> list[Row]:
    """Return the table's lines, in the order in which stages ended.

    Args:
        launcher: Its marks, its start first.
        ranks: Each rank's marks, its start first.
    """
    ended = [one for one in launcher if one.stage != START]
    ended += _last_of_ranks([_numbered(marks) for marks in ranks])
    began = min(one.at for one in launcher)
    result = []
    for one in sorted(ended, key=lambda one: one.at):
        seconds = max(0.0, one.at - began)
        result.append(Row(one.stage, round(seconds, 3), one.num_bytes))
        began = max(began, one.at)
    return result


def _numbered(marks: Sequence[Mark]) -> dict[tuple[str, int], Mark]:
    found: dict[tuple[str, int], Mark] = {}
    for one in marks:
        count = sum(stage == one.stage for stage, _ in found)
        found[one.stage, count] = one
    return found


def _last_of_ranks(ranks: Sequence[Mapping[tuple[str, int], Mark]]) -> list[Mark]:
    result = []
    for key in dict.fromkeys(key for marks in ranks for key in marks):
        same = [marks[key] for marks in ranks if key in marks]
        sizes = [one.num_bytes for one in same if one.num_bytes is not None]
        stage = "spawn" if key[0] == START else key[0]
        result.append(Mark(stage, max(one.at for one in same), max(sizes, default=None)))
    return result


def table(of: Sequence[Row]) -> str:
    """Return the lines as text, with their sum."""
    width = max(len("stage"), *(len(row.stage) for row in of)) if of else len("stage")
    lines = [f"  {'stage':<{width}}  {'seconds':>8}  bytes"]
    for row in of:
        size = "" if row.num_bytes is None else str(row.num_bytes)
        lines.append(f"  {row.stage:<{width}}  {row.seconds:>8.2f}  {size}".rstrip())
    lines.append(f"  {'ready':<{width}}  {sum(row.seconds for row in of):>8.2f}")
    return "\n".join(lines)
