"""A plan and a node as text for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from sglang_mi300a.pools import fit
from sglang_mi300a.pools.byte_text import GB, GIB, both
from sglang_mi300a.pools.memory_plan import Fraction, Plan, RankPlan
from sglang_mi300a.pools.unified_memory import ApuMemory, NodeMemory

SCHEMA = 1


def as_json(
    plan: Plan, live: NodeMemory, problems: list[fit.Problem], preset: str
) -> dict[str, Any]:
    """Return the plan for machines."""
    pairs = fit.placed(plan, live)
    return {
        "schema": SCHEMA,
        "preset": preset,
        "node": live.name,
        "tp": plan.tp,
        "ep": plan.ep,
        "asked": asdict(plan.asked),
        "admitted_requests": plan.admitted_requests,
        "slots_per_request": plan.asked.scheduler.slots_per_request,
        "apus": [_apu_json(rank, apu) for rank, apu in pairs],
        "binds": fit.binds(plan),
        "memory_binds": fit.memory_binds(plan, live),
        "most_running_requests": fit.most_sessions(plan, live),
        "mem_fraction_static": asdict(plan.fraction(pairs[0][1].available_bytes or 1)),
        "peak_while_loading_bytes": _loading_peak(plan),
        "fits": not problems,
        "problems": [
            {
                **{
                    key: getattr(problem, key)
                    for key in (
                        "apu",
                        "missing_bytes",
                        "needed_bytes",
                        "held",
                        "changes",
                        "presets",
                    )
                },
                "limit": asdict(problem.limit),
                "text": str(problem),
            }
            for problem in problems
        ],
        "warnings": fit.warnings(plan, live),
        "notes": list(live.notes),
    }


def _apu_json(rank: RankPlan, apu: ApuMemory) -> dict[str, Any]:
    room = fit.tightest(rank, apu)
    return {
        "index": apu.index,
        "name": apu.name,
        "numa_node": apu.numa_node,
        "rank": rank.rank,
        "lines": [
            {"name": line.name, "on": line.on, "bytes": line.planned, **asdict(line.amount)}
            for line in rank.lines
        ],
        "totals": {
            "exact_bytes": rank.of_kind("exact"),
            "published_bytes": rank.of_kind("published"),
            "estimate_bytes": rank.of_kind("estimate"),
            "planned_bytes": rank.planned(),
            "low_bytes": rank.low,
            "high_bytes": rank.high,
        },
        "total_bytes": apu.total_bytes,
        "memory_bytes": apu.node_bytes,
        "available_bytes": apu.available_bytes,
        "free_bytes": room.left_bytes,
        "bound_by": room.limit.name,
    }


def _loading_peak(plan: Plan) -> int:
    return max(
        plan.loaded_bytes(rank) + (weights.lent if plan.asked.draft_tokens else 0)
        for rank, weights in enumerate(plan.weights)
    )


def as_text(plan: Plan, live: NodeMemory, problems: list[fit.Problem], preset: str) -> str:
    """Return the plan for people."""
    asked = plan.asked
    drafts = f"{asked.draft_steps} drafts a step" if asked.draft_tokens else "no drafts"
    parts = [
        f"preset {preset} on {live.name}: TP {plan.tp}, EP {plan.ep}, {drafts}",
        f"{asked.max_running_requests:,} running requests, {asked.kv_tokens:,} KV tokens, "
        f"{asked.state_slots:,} state slots in {asked.state_dtype} "
        f"({asked.scheduler.slots_per_request} a request wanted by the scheduler)",
    ]
    pairs = fit.placed(plan, live)
    for _, group in groupby(pairs, key=_what_differs):
        parts.append(_table(list(group)))
    fraction = plan.fraction(pairs[0][1].available_bytes or 1)
    parts += [
        f"sessions: {fit.binds(plan)}",
        f"memory: {fit.memory_binds(plan, live)}",
        _fraction_text(fraction),
        f"while loading: {both(_loading_peak(plan))} an APU, before any pool",
    ]
    parts += [f"note: {note}" for note in live.notes]
    parts += [f"warning: {warning}" for warning in fit.warnings(plan, live)]
    parts.append("it fits" if not problems else "IT DOES NOT FIT")
    if problems:
        parts.append(problems_text(problems))
    return "\n".join(parts)


def problems_text(problems: Sequence[fit.Problem]) -> str:
    """Return what does not fit, in a few lines for all APUs that lack the same."""
    parts = []
    for _, alike in groupby(problems, key=lambda problem: problem.text("")):
        same = list(alike)
        parts.append(same[0].text(", ".join(str(problem.apu) for problem in same)))
    return "\n".join(parts)


def verdict_line(plan: Plan, live: NodeMemory) -> str:
    """Return in one line how much is planned and what is left where it is tightest."""
    pairs = fit.placed(plan, live)
    rank, apu = min(pairs, key=lambda pair: fit.tightest(*pair).left_bytes)
    room = fit.tightest(rank, apu)
    left = room.left_bytes
    spare = f"{both(left)} to spare" if left >= 0 else f"{both(-left)} missing"
    return (
        f"memory: {both(rank.planned())} planned for APU {apu.index}, the tightest; {spare} under "
        f"{room.limit.name}"
    )


def _what_differs(pair: tuple[RankPlan, ApuMemory]) -> object:
    rank, apu = pair
    return rank.lines, apu.node_bytes, apu.total_bytes, [limit.num_bytes for limit in apu.limits]


def _table(pairs: list[tuple[RankPlan, ApuMemory]]) -> str:
    rank, apu = pairs[0]
    names = ", ".join(str(apu.index) for _, apu in pairs)
    room = fit.tightest(rank, apu)
    rows = [
        "",
        f"{'APU ' + names:<24} {'known':<10} {'GB':>8} {'GiB':>8} {'bytes':>16}  range in GB",
    ]
    for line in rank.lines:
        amount = line.amount
        span = f"{amount.low / GB:.2f} to {amount.high / GB:.2f}"
        rows.append(
            _row(line.name, amount.kind, line.planned) + ("" if amount.kind == "exact" else span)
        )
    exact, published = rank.of_kind("exact"), rank.of_kind("published")
    rows += [
        _row("exact lines", "", exact),
        _row("exact and published", "", exact + published),
        _row("all lines", "", rank.planned()) + f"{rank.low / GB:.2f} to {rank.high / GB:.2f}",
        _row("free or reclaimable", "", apu.node_bytes) + f"of {both(apu.total_bytes)}",
        _row("free", "", room.left_bytes) + f"under {room.limit.name}",
        "",
    ]
    return "\n".join(rows)


def _row(name: str, kind: str, num_bytes: int) -> str:
    return f"{name:<24} {kind:<10} {num_bytes / GB:8.2f} {num_bytes / GIB:8.2f} {num_bytes:16,}  "


def _fraction_text(fraction: Fraction) -> str:
    passed = (
        "not passed"
        if fraction.passed is None or fraction.effective is None
        else f"passed {fraction.passed:g}, effective {fraction.effective:g}"
    )
    scaled = "" if fraction.kept == 1 else f" (SGLang multiplies it by {fraction.kept:g} for AITER)"
    return (
        f"--mem-fraction-static: {passed}{scaled}; it does not bind, since pools are planned. For "
        f"SGLang to size them by itself: pass {fraction.needed_passed:.3f}, effective "
        f"{fraction.needed_effective:.3f}"
    )
