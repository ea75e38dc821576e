"""Whether a plan fits a node; if not, what is missing where, what holds it, what would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools.byte_text import GB, both
from sglang_mi300a.pools.memory_holders import Held
from sglang_mi300a.pools.memory_plan import MOST_REQUESTS, Asked, Plan, RankPlan
from sglang_mi300a.pools.unified_memory import ApuMemory, Limit, NodeMemory

KV_TOKENS_KEPT = 2560
"""KV tokens a running request below which nothing is proposed.

Source: the multi-turn replay of this package (``benchmarks``): 120,000 tokens for 48 requests lose
no prefix that a larger pool would have kept."""

MEMORY = "the APU's memory"
"""Name of the bound that is no limit but what the memory itself has to give."""


@dataclass(frozen=True)
class Room:
    """One bound and what a rank needs under it.

    Attributes:
        limit: The bound; the APU's own memory, or one of its limits.
        needed_bytes: What the plan needs under it. Under a bound of the driver this is what the
            driver allocates, and the reserve: what no line names (fragments, collectives, contexts)
            comes out of that, and an allocation that fails there ends the server.
    """

    limit: Limit
    needed_bytes: int

    @property
    def left_bytes(self) -> int:
        """What stays free; negative if the plan does not fit."""
        return self.limit.num_bytes - self.needed_bytes


@dataclass(frozen=True)
class Change:
    """One thing that would make a plan fit.

    Attributes:
        text: What to do, flags written out.
        plan: What would then be planned; the plan itself where the machine is changed instead.
    """

    text: str
    plan: Plan


@dataclass(frozen=True)
class Problem:
    """One APU that lacks memory.

    Attributes:
        apu: Its index.
        missing_bytes: How much it lacks.
        needed_bytes: What the plan needs under the bound that is missed.
        limit: That bound.
        held: What holds memory there, as far as it can be seen.
        changes: What would make the whole plan fit, the smallest first.
        presets: Presets that fit as they are.
        unavoidable: Said where no change of sizes helps; else "".
    """

    apu: int
    missing_bytes: int
    needed_bytes: int
    limit: Limit
    held: tuple[str, ...]
    changes: tuple[str, ...]
    presets: tuple[str, ...]
    unavoidable: str = ""

    def __str__(self) -> str:
        """Return it in a few lines, the first a summary."""
        return self.text(str(self.apu))

    def text(self, apus: str) -> str:
        """Return it in a few lines for several APUs that lack the same."""
        lines = [
            f"APU {apus}: {both(self.missing_bytes)} missing. The plan needs "
            f"{both(self.needed_bytes)}; {self.limit.name} leaves {both(self.limit.num_bytes)} "
            f"({self.limit.where})"
        ]
        lines += [f"  held there: {held}" for held in self.held]
        if self.unavoidable:
            lines.append(f"  {self.unavoidable}")
        if self.changes:
            lines.append(f"  smallest change that fits: {self.changes[0]}")
            lines += [f"  or: {change}" for change in self.changes[1:]]
        if self.presets:
            lines.append(f"  presets that fit: {', '.join(self.presets)}")
        return "\n".join(lines)


def rooms(rank: RankPlan, apu: ApuMemory) -> list[Room]:
    """Return every bound of an APU with what a rank needs under it, in no order."""
    device_only = rank.planned("device", "reserve")
    memory = Limit(
        MEMORY,
        apu.node_bytes,
        "all",
        f"on its NUMA node {both(apu.free_bytes)} free and {both(apu.reclaimable_bytes)} "
        f"reclaimable of {both(apu.total_bytes)}"
        if apu.shared
        else f"{both(apu.free_bytes)} free of {both(apu.total_bytes)}",
    )
    found = [Room(memory, rank.planned() if apu.shared else device_only)]
    for limit in apu.limits:
        needed = rank.planned() if limit.covers == "all" else device_only
        found.append(Room(limit, needed))
    return found


def tightest(rank: RankPlan, apu: ApuMemory) -> Room:
    """Return the bound that leaves least."""
    return min(rooms(rank, apu), key=lambda room: room.left_bytes)


def placed(plan: Plan, live: NodeMemory) -> list[tuple[RankPlan, ApuMemory]]:
    """Return each rank with the APU it will be on.

    Raises:
        UserError: There are fewer APUs than ranks.
    """
    if plan.tp > len(live.apus):
        raise UserError(
            f"--tp-size {plan.tp}",
            found=f"{len(live.apus)} accelerators on {live.name}",
            allowed="a rank on each of as many accelerators",
            do=f"pass --tp-size {len(live.apus)}, or describe the whole node",
        )
    return list(zip(plan.ranks, live.apus, strict=False))


def fits(plan: Plan, live: NodeMemory) -> bool:
    """Return whether every rank fits."""
    return all(tightest(rank, apu).left_bytes >= 0 for rank, apu in placed(plan, live))


def check_fit(
    plan: Plan, live: NodeMemory, presets: Mapping[str, Plan] | None = None
) -> list[Problem]:
    """Return what does not fit, one problem an APU; empty if all fits.

    Args:
        plan: The plan.
        live: The node.
        presets: What other presets would plan, by name.

    Raises:
        UserError: There are fewer APUs than ranks.
    """
    lacking = [
        (apu, room)
        for rank, apu in placed(plan, live)
        if (room := tightest(rank, apu)).left_bytes < 0
    ]
    if not lacking:
        return []
    changes = list(changes_that_fit(plan, live))
    fitting = tuple(name for name, other in (presets or {}).items() if fits(other, live))
    return [
        Problem(
            apu=apu.index,
            missing_bytes=-room.left_bytes,
            needed_bytes=room.needed_bytes,
            limit=room.limit,
            held=held_text(apu.held),
            changes=tuple(change.text for change in changes),
            presets=fitting,
            unavoidable="" if changes else _unavoidable(plan, room),
        )
        for apu, room in lacking
    ]


def held_text(held: Iterable[Held]) -> tuple[str, ...]:
    """Return what holds memory, one line each, with what frees it."""
    return tuple(
        f"{one.what} {both(one.num_bytes)}"
        + (" (given up on demand)" if one.reclaimable else "")
        + (f"; {one.remedy}" if one.remedy else "")
        for one in held
    )


def _unavoidable(plan: Plan, room: Room) -> str:
    rank = plan.ranks[0]
    weights = rank.line("weights").planned + rank.line("draft").planned
    if weights > room.limit.num_bytes:
        return f"its weights alone take {both(weights)}" + (
            f"; {room.limit.raise_by}" if room.limit.raise_by else ""
        )
    return "no smaller pool fits either: free memory there, or serve with more APUs"


def changes_that_fit(plan: Plan, live: NodeMemory) -> Iterator[Change]:
    """Yield what would make a plan fit, the smallest change first.

    First what gives memory back to the node, then what costs no session, then fewer sessions.
    """
    yield from _on_the_machine(plan, live)
    for text, asked in _smaller(plan, live):
        smaller = replace(plan, asked=asked)
        if fits(smaller, live):
            yield Change(f"{text}: {flags(plan.asked, asked)}", smaller)


def _on_the_machine(plan: Plan, live: NodeMemory) -> Iterator[Change]:
    missed = {
        room.limit.name: room.limit
        for rank, apu in placed(plan, live)
        for room in rooms(rank, apu)
        if room.left_bytes < 0
    }
    if all(limit.raise_by for limit in missed.values()):
        yield Change("; ".join(limit.raise_by for limit in missed.values()), plan)
    for rank, apu in placed(plan, live):
        missing = -tightest(rank, apu).left_bytes
        dumps = [held for held in apu.held if "core dumps" in held.what]
        if missing > 0 and set(missed) == {MEMORY}:
            if sum(held.num_bytes for held in dumps) >= missing:
                yield Change("; ".join(held.remedy for held in dumps), plan)
                return


def _smaller(plan: Plan, live: NodeMemory) -> Iterator[tuple[str, Asked]]:
    asked = plan.asked
    missing = _most_missing(plan, live)
    yield from _fewer_tokens(plan, missing)
    least = asked.scheduler.slots_per_request * asked.max_running_requests
    if asked.state_slots > least:
        slot = plan.sizes.slot_bytes(asked.draft_tokens, replay=asked.replay)
        slots = asked.state_slots - -(-missing // slot)
        if slots >= least:
            yield "fewer state slots", replace(asked, state_slots=slots)
    in_half = "states in bfloat16 (check accuracy)"
    half = None
    if asked.state_dtype == "float32":
        half = replace(plan, asked=replace(asked, state_dtype="bfloat16"))
        yield in_half, half.asked
        for text, smaller in _fewer_tokens(half, _most_missing(half, live)):
            yield f"{in_half} and {text}", smaller
    if asked.prefill_graph_tokens:
        yield "no prefill graphs (slower prefill)", replace(asked, prefill_graph_tokens=0)
    most = asked.max_running_requests - 1
    sessions = _most_sessions(plan, lambda one: fits(one, live), most)
    if sessions:
        yield "fewer running requests", with_sessions(asked, sessions)
    if half is not None and not fits(half, live):
        more = _most_sessions(half, lambda one: fits(one, live), most)
        if more > sessions:
            yield f"fewer running requests, {in_half}", with_sessions(half.asked, more)


def _most_missing(plan: Plan, live: NodeMemory) -> int:
    return max(-tightest(rank, apu).left_bytes for rank, apu in placed(plan, live))


def _fewer_tokens(plan: Plan, missing: int) -> Iterator[tuple[str, Asked]]:
    asked = plan.asked
    if missing <= 0:
        return
    a_token = plan.sizes.budget_token_bytes(with_draft=bool(asked.draft_tokens))
    tokens = (asked.kv_tokens - -(-missing // a_token)) // asked.page_tokens * asked.page_tokens
    if tokens >= KV_TOKENS_KEPT * asked.max_running_requests:
        yield "fewer KV tokens", replace(asked, kv_tokens=tokens)


def with_sessions(asked: Asked, sessions: int) -> Asked:
    """Return the same sizes a request for another number of running requests."""
    slots = -(-asked.state_slots * sessions // asked.max_running_requests)
    tokens = asked.kv_tokens * sessions // asked.max_running_requests
    pages = max(1, tokens // asked.page_tokens)
    return replace(
        asked,
        max_running_requests=sessions,
        state_slots=max(slots, asked.scheduler.slots_per_request * sessions),
        kv_tokens=pages * asked.page_tokens,
    )


def _most_sessions(plan: Plan, good: Callable[[Plan], bool], most: int) -> int:
    """Return the most running requests, at the same sizes a request, that are good; 0 if none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if good(replace(plan, asked=with_sessions(plan.asked, middle))):
            low = middle
        else:
            high = middle - 1
    return low


def most_sessions(plan: Plan, live: NodeMemory) -> int:
    """Return the most running requests that fit with this plan's sizes a request."""
    return _most_sessions(plan, lambda one: fits(one, live), MOST_REQUESTS)


def flags(before: Asked, after: Asked) -> str:
    """Return the flags that turn one set of sizes into another, in SGLang's spelling."""
    spelled = (
        ("max_running_requests", "--max-running-requests"),
        ("state_slots", "--max-mamba-cache-size"),
        ("kv_tokens", "--max-total-tokens"),
        ("state_dtype", "--mamba-ssm-dtype"),
    )
    changed = [
        f"{flag} {getattr(after, name)}"
        for name, flag in spelled
        if getattr(after, name) != getattr(before, name)
    ]
    if before.prefill_graph_tokens and not after.prefill_graph_tokens:
        changed.append("--disable-prefill-cuda-graph")
    return " ".join(changed)


def warnings(plan: Plan, live: NodeMemory) -> list[str]:
    """Return what is worth knowing of a plan that fits: ranges, and memory that lies idle."""
    found: dict[str, list[int]] = {}
    for rank, apu in placed(plan, live):
        room = tightest(rank, apu)
        more = rank.high - rank.planned()
        if 0 <= room.left_bytes < more:
            text = (
                f"fits as planned with {both(room.left_bytes)} to spare; if every published "
                f"figure and estimate ends at its upper end, {both(more - room.left_bytes)} are "
                "missing"
            )
            found.setdefault(text, []).append(apu.index)
        for limit in apu.limits:
            unused = apu.node_bytes - limit.num_bytes
            if room.left_bytes >= 0 and limit.raise_by and unused > 0:
                text = f"{limit.name} keeps {both(unused)} from the server; {limit.raise_by}"
                found.setdefault(text, []).append(apu.index)
    return [f"APU {', '.join(map(str, apus))}: {text}" for text, apus in found.items()]


def binds(plan: Plan) -> str:
    """Return what keeps more requests from running at once, of the sizes asked for."""
    asked = plan.asked
    by_slots = asked.state_slots // asked.scheduler.slots_per_request
    by_tokens = asked.kv_tokens // asked.session_tokens
    bounds = {
        "--max-running-requests": asked.max_running_requests,
        f"state slots ({asked.state_slots:,} at {asked.scheduler.slots_per_request} a request)": (
            by_slots
        ),
        f"KV tokens ({asked.kv_tokens:,} at {asked.session_tokens:,} a session)": by_tokens,
    }
    least = min(bounds.values())
    binding = [name for name, bound in bounds.items() if bound == least]
    others = [f"{name} {bound:,}" for name, bound in bounds.items() if bound != least]
    return f"{least:,} sessions: {' and '.join(binding)}" + (
        f" ({', '.join(others)})" if others else ""
    )


def memory_binds(plan: Plan, live: NodeMemory) -> str:
    """Return which bound of the node comes first, and how many sessions it lets in."""
    rank, apu = min(placed(plan, live), key=lambda pair: tightest(*pair).left_bytes)
    room = tightest(rank, apu)
    most = most_sessions(plan, live)
    left = room.left_bytes
    state = f"{both(left)} to spare" if left >= 0 else f"{left / -GB:.2f} GB missing"
    return (
        f"APU {apu.index}: {room.limit.name} ({state}); at these sizes a session, "
        f"{most:,} running requests fit"
    )
