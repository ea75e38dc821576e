"""What a rank looks at before and after its weights are loaded, together with all other ranks.

Before any pool is made the ranks agree on what they were told, and each APU must still have what
the plan has left to allocate there. A plan that fitted when the server started may not fit now:
another program came, or weights landed on a neighbour.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, JudgedAgainst, UserError
from sglang_mi300a.gates import RankGates
from sglang_mi300a.pools import binding, fit, landing, plan_report
from sglang_mi300a.pools.estimates import exact
from sglang_mi300a.pools.job_memory import JobMemory
from sglang_mi300a.pools.landing import Landing, Load
from sglang_mi300a.pools.memory_plan import Plan, WeightBytes
from sglang_mi300a.pools.unified_memory import ApuMemory, HipView, NodeMemory
from sglang_mi300a.rank_agreement import on_every_rank
from sglang_mi300a.settings import Resolved

BEFORE = "memory.before_weights_bytes"
"""Fact of a rank's report: what its APU had when gate 1 was passed."""


@dataclass(frozen=True)
class Look:
    """What one rank found after its weights were loaded.

    Attributes:
        told: What the launcher told it, by name.
        before_bytes: Free and reclaimable memory of its APU before; None on no APU.
        apu: Its APU now; None on no APU.
    """

    told: Mapping[str, Any]
    before_bytes: int | None = None
    apu: ApuMemory | None = None


def look_before(gates: RankGates, record: Resolved) -> None:
    """Note what this rank's APU has before weights are read, and whether the rank is bound to it.

    All ranks pass here before one of them reads weights.
    """
    job = JobMemory.of_data(record.memory)
    if job is None:
        return
    place = job.places[gates.rank]
    gates.facts[BEFORE] = job.apu_of(gates.rank).node_bytes
    if place.shared and record.device != "cpu" and place.numa_node >= 0:
        cpus = binding.cpus_of(place.numa_node)
        running_on = binding.running_on()
        gates.facts["memory.cpus"] = binding.as_list(running_on)
        for line in binding.judge(place.numa_node, cpus, running_on, binding.memory_policy()):
            _say(f"rank {gates.rank} {line}")


def look_after(gates: RankGates, record: Resolved, hip: HipView | None) -> None:
    """Check, on all ranks, that they were told the same and that what is left to allocate fits.

    Args:
        gates: This rank's gates; a refusal goes into its report.
        record: What the launcher told this rank.
        hip: What HIP says of its device; None on no accelerator.

    Raises:
        UserError: Ranks were told different things, or a rank's memory cannot be told.
        JudgedAgainst: It does not fit, on any rank.
    """
    job = JobMemory.of_data(record.memory)
    told = told_by(record)
    with gates.refusing():
        agree([look.told for look in gates.all_gather(Look(told))])
    if job is None:
        return
    with gates.refusing(), on_every_rank(gates.all_gather):
        look = Look(told, gates.facts[BEFORE], job.apu_of(gates.rank, hip=hip))
    looks = gates.all_gather(look)
    moved = landing.landings(loads(job, looks))
    gates.facts["memory.landed_elsewhere_bytes"] = sum(one.num_bytes for one in moved)
    apus = tuple(look.apu for look in looks if look.apu is not None)
    problems = fit.check_fit(remaining(job.plan), NodeMemory("this node", apus))
    if not problems:
        for one in moved if gates.rank == 0 else ():
            _say(str(one))
        return
    mine = [problem for problem in problems if problem.apu == job.places[gates.rank].apu]
    text = _lacking(gates.rank, job, mine, moved) if mine else ""
    if job.only_warn:
        if text:
            _say(f"rank {gates.rank}: {text}")
        return
    if text:
        gates.report("refused", text, EXIT_JUDGED_AGAINST)
    # No rank stops the server before those that lack memory have said so.
    raise JudgedAgainst("\n".join(filter(None, gates.all_gather(text))))


def told_by(record: Resolved) -> dict[str, Any]:
    """Return what all ranks must have been told alike, by name."""
    return {
        "KV tokens": record.kv_tokens,
        "state slots": record.state_slots,
        "running requests": record.max_running_requests,
        "the memory plan": record.memory,
    }


def agree(told: Sequence[Mapping[str, Any]]) -> None:
    """Check that all ranks were told the same.

    Args:
        told: By rank.

    Raises:
        UserError: One was told something else than rank 0.
    """
    for rank, mine in enumerate(told):
        for name, value in mine.items():
            if value != told[0][name]:
                both = [value, told[0][name]]
                shown = both if not isinstance(value, dict) else ["another one", "the same"]
                raise UserError(
                    f"rank {rank}",
                    found=f"{name}: {shown[0]}",
                    allowed=f"{name}: {shown[1]}, as on rank 0",
                    do="start all ranks by one launcher, with one preset and the same flags, and "
                    "leave the variable SGLANG_MI300A_RESOLVED alone",
                )


def remaining(plan: Plan) -> Plan:
    """Return what a plan has left to allocate once weights are loaded; host processes run."""
    there = exact(0, "there already")
    return replace(
        plan,
        weights=(WeightBytes(0, 0, 0, "loaded"),) * plan.tp,
        host=there,
        extra=tuple(
            replace(line, amount=there) if line.with_weights else line for line in plan.extra
        ),
    )


def loads(job: JobMemory, looks: Sequence[Look]) -> list[Load]:
    """Return what every APU of the job had before and after, ranks on one APU together."""
    found: dict[int, Load] = {}
    for rank, look in enumerate(looks):
        assert look.apu is not None
        assert look.before_bytes is not None
        expected = job.plan.loaded_bytes(rank)
        load = Load(look.apu.index, look.before_bytes, look.apu.node_bytes, expected)
        if load.apu in found:
            load = replace(load, expected_bytes=found[load.apu].expected_bytes + expected)
        found[load.apu] = load
    return list(found.values())


def _lacking(
    rank: int, job: JobMemory, mine: Sequence[fit.Problem], moved: Sequence[Landing]
) -> str:
    held = fit.held_text(job.apu_of(rank, holders=True).held)
    return "\n".join(
        [
            "weights are loaded, and what is left to allocate does not fit.",
            plan_report.problems_text([replace(problem, held=held) for problem in mine]),
            *map(str, moved),
        ]
    )


def _say(line: str) -> None:
    print(f"sglang-mi300a: {line}", file=sys.stderr, flush=True)
