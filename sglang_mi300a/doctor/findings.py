"""All judges, and what they make of a machine's facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sglang_mi300a.doctor import (
    judge_devices,
    judge_files,
    judge_memory,
    judge_settings,
    judge_software,
)
from sglang_mi300a.doctor.facts import Facts
from sglang_mi300a.doctor.judging import SEVERITIES, Finding, Judge

TOPICS = {
    "Accelerators": judge_devices,
    "Memory and processors": judge_memory,
    "Software": judge_software,
    "Variables": judge_settings,
    "Model, caches, tables, room": judge_files,
}
"""Modules of judges by title, in the order in which findings are told."""

JUDGES: tuple[Judge, ...] = tuple(
    one for module in TOPICS.values() for one in vars(module).values() if isinstance(one, Judge)
)


def judge(facts: Facts, judges: Iterable[Judge] = JUDGES) -> list[Finding]:
    """Return what would go wrong on a machine, the worst first.

    Where there is no gfx942, only what matters on any machine is judged.
    """
    ours = bool(judge_devices.of_our_kind(facts))
    found = [one for each in judges if ours or each.anywhere for one in each.findings(facts)]
    order = list(SEVERITIES)
    return sorted(found, key=lambda one: order.index(one.severity))


def is_against(found: Sequence[Finding]) -> bool:
    """Return whether something would go wrong: anything but notes."""
    return any(one.severity != "note" for one in found)
