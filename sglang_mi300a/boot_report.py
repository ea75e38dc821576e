"""What each rank says of itself while it boots, and the one table the launcher prints of it.

Ranks write ``rank-<tp rank>.json`` into the run directory of the launch (atomically, again at each
gate); the launcher reads them. Files and not pipes, because a rank that never loaded the package
must be visible by its absence.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sglang_mi300a.errors import EXIT_BAD_INPUT
from sglang_mi300a.hooking import Installed, Reliance, installed, is_live


@dataclass
class SeamState:
    """One seam on one rank.

    Attributes:
        required: Whether the server must stop without it.
        live: Whether SGLang's lookups lead to ours; None before gate 1 looked.
        calls: Calls so far.
        note: Why it is not live or not installed, or who else hooks the target.
    """

    required: bool
    live: bool | None
    calls: int
    note: str = ""


@dataclass
class RankReport:
    """One rank's state.

    Attributes:
        rank: Tensor-parallel rank on this node.
        pid: Process id.
        stage: Last stage reached: ``plugin``, ``load``, ``serving``; or ``refused``.
        seams: State by seam name.
        refusal: Why the rank stopped, or "".
        exit_code: With which the server ends because of the refusal.
        facts: What rooms add (bytes loaded, rung in use); plain JSON values.
        reached_s: When each stage was reached, seconds since the package was loaded in the rank.
    """

    rank: int
    pid: int
    stage: str
    seams: dict[str, SeamState] = field(default_factory=dict)
    refusal: str = ""
    exit_code: int = EXIT_BAD_INPUT
    facts: dict[str, Any] = field(default_factory=dict)
    reached_s: dict[str, float] = field(default_factory=dict)


def states(live: dict[str, tuple[bool, str]] | None = None) -> dict[str, SeamState]:
    """Return the state of this process's seams.

    Args:
        live: Results of :func:`sglang_mi300a.hooking.is_live` by name, once gate 1 has looked.
    """
    result = {}
    for name, entry in installed().items():
        if isinstance(entry.seam, Reliance):
            continue
        is_up, note = (live or {}).get(name, (None, entry.skipped))
        result[name] = SeamState(entry.seam.required, is_up, entry.calls, note)
    return result


def liveness() -> dict[str, tuple[bool, str]]:
    """Return for each installed seam whether it is live, and why not."""
    return {name: _live_or_skipped(entry) for name, entry in installed().items()}


def _live_or_skipped(entry: Installed) -> tuple[bool, str]:
    return (False, entry.skipped) if entry.skipped else is_live(entry)


_facts: dict[str, Any] = {}


def add_fact(name: str, value: Any) -> None:
    """Add what a room knows of this process to its reports; plain JSON values."""
    _facts[name] = value


def facts() -> dict[str, Any]:
    """Return what rooms added."""
    return dict(_facts)


def write(run_dir: Path, report: RankReport) -> None:
    """Write a rank's report atomically; a run directory that is gone is not an error."""
    if not run_dir.is_dir():
        return
    temporary = run_dir / f".rank-{report.rank}.{report.pid}.tmp"
    temporary.write_text(json.dumps(asdict(report)), encoding="utf-8")
    os.replace(temporary, run_dir / f"rank-{report.rank}.json")


def read_all(run_dir: Path) -> dict[int, RankReport]:
    """Return the reports written so far, by rank."""
    found = {}
    for path in sorted(run_dir.glob("rank-*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        data["seams"] = {name: SeamState(**row) for name, row in data["seams"].items()}
        report = RankReport(**data)
        found[report.rank] = report
    return found


def summary(reports: dict[int, RankReport]) -> dict[str, dict[str, Any]]:
    """Return ``{seam: {required, live, calls_min_over_ranks}}`` over all ranks."""
    names = sorted({name for report in reports.values() for name in report.seams})
    rows = {}
    for name in names:
        on_ranks = [r.seams[name] for r in reports.values() if name in r.seams]
        rows[name] = {
            "required": on_ranks[0].required,
            "live": len(on_ranks) == len(reports) and all(s.live is True for s in on_ranks),
            "calls_min_over_ranks": min(s.calls for s in on_ranks),
        }
    return rows


def table(reports: dict[int, RankReport], num_ranks: int) -> str:
    """Return the launcher's table: one line a seam, then what is missing or was refused."""
    lines = [f"sglang-mi300a: {len(reports)} of {num_ranks} ranks loaded the package"]
    rows = summary(reports)
    width = max((len(name) for name in rows), default=4)
    lines.append(f"  {'hook':<{width}}  required  live  calls (least of ranks)")
    for name, row in rows.items():
        required = "yes" if row["required"] else "no"
        live = "yes" if row["live"] else "NO"
        lines.append(f"  {name:<{width}}  {required:<8}  {live:<4}  {row['calls_min_over_ranks']}")
    for rank, report in sorted(reports.items()):
        notes = {name: s.note for name, s in report.seams.items() if s.note}
        lines += [f"  rank {rank}: {name}: {note}" for name, note in notes.items()]
        said = report.facts.get("experts", {})
        if said:
            lines.append(f"  rank {rank}: {said['line']}")
        if report.refusal:
            lines.append(f"  rank {rank} refused: {report.refusal}")
    missing = [str(rank) for rank in range(num_ranks) if rank not in reports]
    if missing:
        lines.append(
            f"  rank {', '.join(missing)}: no report; it started without the plugin "
            "(is SGLANG_PLUGINS set, or the package not importable there?)"
        )
    return "\n".join(lines)
