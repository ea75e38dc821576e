"""Replays multi-turn traffic on SGLang's own prefix cache and prints what it costs in prefill.

A discrete-event replay: ``replay_server`` drives SGLang's cache, allocators and scheduler
bookkeeping; the clients, and a model of how long a pass takes, are here. That model decides only
which requests overlap. No GPU, no model.

    python benchmarks/cache_replay.py --quick
    python benchmarks/cache_replay.py --full --seeds 5 --out benchmarks/results/cache_replay.json

SGLang is imported as on the CPU engine: its stand-ins are put on the path here.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import os
import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STANDINS = ROOT / "sglang_mi300a/cpu_engine/standins"

if __name__ == "__main__" and os.environ.get("PYTHONPATH", "").split(os.pathsep)[0] != str(
    STANDINS
):
    # The stand-ins have to be there before the interpreter starts: begin again with them.
    _path = os.pathsep.join([str(STANDINS), str(ROOT)])
    os.environ.update(PYTHONPATH=_path, OMP_NUM_THREADS="1")
    os.execv(sys.executable, [sys.executable, "-W", "ignore::UserWarning", *sys.argv])

import torch  # noqa: E402

from benchmarks.replay_server import (  # noqa: E402
    ACCEPTED_SHARES,
    POLICIES,
    TRACK_TOKENS,
    Server,
    Setup,
)
from sglang_mi300a.pools.prefill_accumulation import Limits  # noqa: E402
from sglang_mi300a.pools.workload import Clients, Session, Workload  # noqa: E402

# ---- traffic and time ----

DECODE_MS_PER_TOKEN = ((1, 6.9), (16, 12.3), (32, 15.4), (48, 19.7))
"""Requests decoding, and the time a token takes each of them, in ms."""
DECODE_MS_PER_MORE_REQUEST = 0.25
"""Added for each request above the last point; an extrapolation."""
PREFILL_MS = 52.9
PREFILL_MS_PER_TOKEN = 0.164
MEAN_ACCEPTED = sum(n * share for n, share in ACCEPTED_SHARES.items())


def pass_s(num_prefilled: int, num_decoded: int) -> float:
    """Return how long a pass takes, in seconds.

    Source: backed out of published MI300A measurements at up to 48 requests. It decides only which
    requests overlap, and so which compete for slots.
    """
    if num_prefilled:
        return (PREFILL_MS + PREFILL_MS_PER_TOKEN * num_prefilled) / 1e3
    (low, low_ms), *rest = DECODE_MS_PER_TOKEN
    ms = low_ms
    for high, high_ms in rest:
        if num_decoded > low:
            ms = low_ms + (high_ms - low_ms) * min(1.0, (num_decoded - low) / (high - low))
        low, low_ms = high, high_ms
    ms += DECODE_MS_PER_MORE_REQUEST * max(0, num_decoded - low)
    return ms * MEAN_ACCEPTED / 1e3


@dataclass(frozen=True)
class Cell:
    """One point of the grid.

    Attributes:
        sessions: Requests in flight, always.
        slots: State slots.
        policy: A key of :data:`POLICIES`.
        replies: How replies come back; see :class:`Workload`.
        think_factor: Factor on every rest.
        system_tokens: Length of a system prompt all sessions share.
        overlap: Whether scheduling overlaps with the forward pass.
    """

    sessions: int
    slots: int
    policy: str
    replies: str = "re-prefilled"
    think_factor: float = 1.0
    system_tokens: int = 0
    overlap: bool = False


@dataclass
class Count:
    """What was counted in one replay.

    Attributes:
        turns: Turns.
        prompt: Their prompt tokens.
        cached: Of these, found in the cache.
        ideal: Of these, what an endless cache would have had.
        prefilled: Tokens prefilled meanwhile.
        generated: Tokens generated meanwhile.
        evicted_states: Snapshots evicted meanwhile.
        retracted: Requests retracted meanwhile.
        evict_us: Time in the cache's ``evict``, in each block of turns, per turn.
        cache_us: Time in all of the cache's entries, likewise.
        evict_calls: Python calls made inside ``evict``; 0 where they were not counted.
        cache_calls: The same, inside all of the cache's entries.
        prefill_passes: Passes that prefilled.
        decode_passes: Passes that decoded.
        modelled_s: Time they would have taken; see :func:`pass_s`.
        first_token_passes: Of turns after the first, passes from sending to the first token.
        first_token_s: The same, in modelled seconds.
    """

    turns: int = 0
    prompt: int = 0
    cached: int = 0
    ideal: int = 0
    prefilled: int = 0
    generated: int = 0
    evicted_states: int = 0
    retracted: int = 0
    evict_us: list[float] = field(default_factory=list)
    cache_us: list[float] = field(default_factory=list)
    evict_calls: int = 0
    cache_calls: int = 0
    prefill_passes: int = 0
    decode_passes: int = 0
    modelled_s: float = 0.0
    first_token_passes: list[int] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)


class Meter:
    """Measures a cache from outside: time, and on demand the Python calls it makes.

    Attributes:
        evict_s: Time in ``evict``.
        evict_calls: Python calls made inside it.
        cache_s: Time in all four entries of the cache, ``evict`` among them.
        cache_calls: Python calls made inside them.
        states: Snapshots evicted.
    """

    def __init__(self, cache: Any, *, count_calls: bool) -> None:
        self.evict_s = self.cache_s = 0.0
        self.evict_calls = self.cache_calls = self.states = 0
        self._count_calls = count_calls
        self._depth = 0
        self._in_evict = False
        for name in ("match_prefix", "cache_unfinished_req", "cache_finished_req", "evict"):
            setattr(cache, name, self._metered(getattr(cache, name), is_evict=name == "evict"))

    def _metered(self, entry: Any, *, is_evict: bool) -> Any:
        def metered(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            self._depth += 1
            self._in_evict |= is_evict
            if self._count_calls:
                sys.setprofile(self._on_event)
            try:
                result = entry(*args, **kwargs)
            finally:
                self._depth -= 1
                took_s = time.perf_counter() - started
                if is_evict:
                    self._in_evict = False
                    self.evict_s += took_s
                if not self._depth:
                    if self._count_calls:
                        sys.setprofile(None)
                    self.cache_s += took_s
            if is_evict:
                self.states += result.mamba_num_evicted
            return result

        return metered

    def _on_event(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            self.cache_calls += 1
            self.evict_calls += self._in_evict


def replay(
    cell: Cell,
    *,
    seed: int,
    warm_up_turns: int,
    turns: int,
    check_every: int = 500,
    count_calls: bool = False,
    accumulate: Limits | None = None,
) -> Count:
    """Return what ``turns`` turns cost after ``warm_up_turns``.

    Args:
        cell: The traffic and the server.
        seed: Of the sessions and of how many drafts are accepted.
        warm_up_turns: Turns that are not counted.
        turns: Turns that are.
        check_every: Turns between two checks of the cache's and the pools' invariants.
        count_calls: Whether to count the Python calls inside ``evict`` (slow).
        accumulate: How long prompts are held back; None: not at all.
    """
    setup = Setup(
        slots=cell.slots,
        max_running=cell.sessions,
        overlap=cell.overlap,
        policy=POLICIES[cell.policy],
        accumulate=accumulate or Limits(),
    )
    workload = Workload(
        seed=seed,
        replies=cell.replies,  # type: ignore[arg-type]
        system_tokens=cell.system_tokens,
        think_factor=cell.think_factor,
    )
    server = Server(setup, random.Random(f"{seed}-accepted"))
    try:
        meter = Meter(server.cache, count_calls=count_calls)
        return _replay(cell, server, Clients(workload), meter, warm_up_turns, turns, check_every)
    finally:
        server.close()


def _replay(
    cell: Cell,
    server: Server,
    clients: Clients,
    meter: Meter,
    warm_up_turns: int,
    turns: int,
    check_every: int,
) -> Count:
    in_flight: dict[str, tuple[Session, array[int]]] = {}
    sent: dict[str, tuple[int, float]] = {}
    now_s, passes = 0.0, 0

    def send() -> None:
        session = clients.take(now_s)
        reply = session.generate(session.reply_tokens)
        req = server.submit(f"{session.number}-{session.at}", session.prompt, reply)
        in_flight[req.rid] = (session, reply)
        sent[req.rid] = (passes, now_s)

    for _ in range(cell.sessions):
        send()
    count, done = Count(), 0
    before: Meter | None = None
    prefilled_before = retracted_before = 0
    block_evict_s = block_cache_s = 0.0
    while done < warm_up_turns + turns:
        prefilled, decoded, finished = server.step()
        assert prefilled or decoded, "nothing can run: the pools are too small"
        took_s = pass_s(prefilled, decoded)
        now_s, passes = now_s + took_s, passes + 1
        if before is not None:
            count.modelled_s += took_s
            count.prefill_passes += prefilled > 0
            count.decode_passes += decoded > 0
            for req in server.begun:
                if in_flight[req.rid][0].at:
                    at_pass, at_s = sent[req.rid]
                    count.first_token_passes.append(passes - at_pass)
                    count.first_token_s.append(now_s - at_s)
        for req in finished:
            session, reply = in_flight.pop(req.rid)
            done += 1
            if before is None and done > warm_up_turns:
                before = copy.copy(meter)
                prefilled_before, retracted_before = server.num_prefilled, server.num_retracted
                block_evict_s, block_cache_s = meter.evict_s, meter.cache_s
            if before is not None:
                count.turns += 1
                count.prompt += len(session.prompt)
                count.cached += req.cached_tokens
                count.ideal += session.ideal_cached_tokens(TRACK_TOKENS)
                count.generated += len(reply)
                if count.turns % BLOCK_TURNS == 0:
                    count.evict_us.append((meter.evict_s - block_evict_s) * 1e6 / BLOCK_TURNS)
                    count.cache_us.append((meter.cache_s - block_cache_s) * 1e6 / BLOCK_TURNS)
                    block_evict_s, block_cache_s = meter.evict_s, meter.cache_s
            clients.replied(session, reply, now_s)
            send()
            if done % check_every == 0:
                server.check()
    assert before is not None
    count.prefilled = server.num_prefilled - prefilled_before
    count.retracted = server.num_retracted - retracted_before
    count.evicted_states = meter.states - before.states
    count.evict_calls = meter.evict_calls - before.evict_calls
    count.cache_calls = meter.cache_calls - before.cache_calls
    server.check()
    return count


BLOCK_TURNS = 50

# ---- the grid ----

SEEDS = tuple(20260225 + n for n in range(5))
SESSIONS = (16, 48, 96, 128, 192)
SLOTS = (64, 128, 256, 512, 1024)
REPLIES = ("re-prefilled", "matched")
TURNTAIL = ("turntail", "turntail+margin")
ENDS = ("stock", "turntail+margin")

FOUR_A_REQUEST = ((48, 192), (96, 384), (128, 512))
FIVE_A_REQUEST = ((48, 256), (96, 512), (128, 683))


def _cells(places: Iterable[tuple[int, int]], policies: Iterable[str], **kind: Any) -> list[Cell]:
    return [Cell(c, s, policy, **kind) for c, s in places for policy in policies]


BARS_GRID = [
    *_cells(FOUR_A_REQUEST, POLICIES),
    *_cells(FIVE_A_REQUEST, POLICIES),
    *_cells(FIVE_A_REQUEST, POLICIES, replies="matched"),
    *_cells([(48, 256)], POLICIES, think_factor=4.0),
    *_cells([(48, 256)], POLICIES, system_tokens=600),
]
WIDE_GRID = _cells(itertools.product(SESSIONS, SLOTS), ENDS)
"""For the picture: from far too few slots to more than enough."""
OVERLAP_GRID = _cells([(48, 240), (48, 320), (96, 480), (96, 640)], ENDS, overlap=True)
COST_PLACES = ((48, 192), (96, 384))


@dataclass(frozen=True)
class Size:
    """How long replays are.

    Attributes:
        warm_up_turns: Turns before counting, at least.
        turns: Turns counted.
        seeds: Of the sessions; one replay each.
    """

    warm_up_turns: int
    turns: int
    seeds: tuple[int, ...]

    def of(self, cell: Cell) -> Size:
        """Return the size for a cell: outside the bars one seed is enough for the picture."""
        return self if cell in BARS_GRID else replace(self, seeds=self.seeds[:1])

    def warm_up(self, cell: Cell) -> int:
        """Return the turns after which old and new sessions are mixed as later on."""
        turns = max(self.warm_up_turns, 4 * cell.sessions)
        # Conversations with longer rests live longer, and have to be seen to their ends.
        return turns * (6 if cell.think_factor > 1 else 1)


def measure(cell: Cell, size: Size) -> dict[str, Any]:
    """Return one row of the result: medians over the seeds, and their spread."""
    counts = [
        replay(cell, seed=seed, warm_up_turns=size.warm_up(cell), turns=size.turns)
        for seed in size.seeds
    ]

    def median(of: Any, digits: int = 4) -> float:
        return round(statistics.median(of(count) for count in counts), digits)

    ratios = [count.cached / count.ideal for count in counts]
    return {
        **asdict(cell),
        "hit": median(lambda c: c.cached / c.prompt),
        "ideal": median(lambda c: c.ideal / c.prompt),
        "hit_over_ideal": round(statistics.median(ratios), 4),
        "hit_over_ideal_by_seed": [round(ratio, 4) for ratio in ratios],
        "recomputed_share_of_prompt": median(lambda c: (c.ideal - c.cached) / c.prompt),
        "prefill_per_generated": median(lambda c: c.prefilled / c.generated),
        "states_evicted_per_1000_turns": median(lambda c: 1000 * c.evicted_states / c.turns, 1),
        "requests_retracted": sum(count.retracted for count in counts),
        "evict_us_per_turn": median(lambda c: statistics.median(c.evict_us), 1),
        "cache_us_per_turn": median(lambda c: statistics.median(c.cache_us), 1),
    }


def measure_cost(
    places: Iterable[tuple[int, int]], turns: int, repeats: int = 3
) -> list[dict[str, Any]]:
    """Return what a turn costs in the cache, by policy: Python calls, and time on this machine.

    Policies take turns, ``repeats`` times; a time is the least of the repeats' medians.
    """
    rows = []
    for place in places:
        cells = _cells([place], ENDS)
        run = functools.partial(replay, seed=SEEDS[0], warm_up_turns=turns, turns=turns)
        times: dict[Cell, list[Count]] = {cell: [] for cell in cells}
        for _ in range(repeats):
            for cell in cells:
                times[cell].append(run(cell))
        calls_of_stock = 0.0
        for cell in cells:
            calls = run(cell, count_calls=True)
            a_turn = calls.evict_calls / calls.turns
            calls_of_stock = calls_of_stock or a_turn  # stock is first
            us, us_of_stock = (_least(c.evict_us for c in times[each]) for each in (cell, cells[0]))
            rows.append(
                {
                    "sessions": cell.sessions,
                    "slots": cell.slots,
                    "policy": cell.policy,
                    "evict_calls_over_stock": round(a_turn / calls_of_stock, 3),
                    "evict_us_over_stock": round(us / us_of_stock, 3) if us_of_stock else None,
                    "evict_calls_per_turn": round(a_turn, 1),
                    "cache_calls_per_turn": round(calls.cache_calls / calls.turns, 1),
                    "evict_us_per_turn": us,
                    "cache_us_per_turn": _least(count.cache_us for count in times[cell]),
                }
            )
    return rows


ACCUMULATE_PLACES = ((8, 48), (16, 80), (48, 192), (96, 384))
ACCUMULATE_LIMITS = ("0", "512/8", "1024/8", "1536/8", "1536/14")
SHIPPED_LIMITS = "512/8"
"""What preset ``tuned`` sets."""


def measure_accumulation(places: Iterable[tuple[int, int]], size: Size) -> list[dict[str, Any]]:
    """Return what holding prompts back does, by limits: medians over the seeds, if several.

    Passes are counted; seconds are those of :func:`pass_s`.
    """
    rows = []
    for (sessions, slots), text in itertools.product(places, ACCUMULATE_LIMITS):
        cell = Cell(sessions, slots, "turntail+margin")
        counts = [
            replay(
                cell,
                seed=seed,
                warm_up_turns=size.warm_up(cell),
                turns=size.turns,
                accumulate=Limits.from_text(text, "limits"),
            )
            for seed in size.seeds
        ]
        rows.append({"sessions": sessions, "slots": slots, "limits": text, **_effect(counts)})
    return rows


def _effect(counts: Sequence[Count]) -> dict[str, float]:
    def median(of: Callable[[Count], float], digits: int) -> float:
        return round(statistics.median(of(count) for count in counts), digits)

    return {
        "prefill_passes_per_100_turns": median(lambda c: 100 * c.prefill_passes / c.turns, 1),
        "decode_passes_per_100_turns": median(lambda c: 100 * c.decode_passes / c.turns, 1),
        "tokens_per_prefill_pass": median(lambda c: c.prefilled / c.prefill_passes, 0),
        "first_token_passes_median": median(lambda c: statistics.median(c.first_token_passes), 1),
        "first_token_passes_p95": median(lambda c: _p95(c.first_token_passes), 1),
        "first_token_s_median": median(lambda c: statistics.median(c.first_token_s), 3),
        "first_token_s_p95": median(lambda c: _p95(c.first_token_s), 3),
        "tokens_per_modelled_s": median(lambda c: c.generated / c.modelled_s, 0),
        "hit_over_ideal": median(lambda c: c.cached / c.ideal, 4),
    }


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _least(repeats: Iterable[list[float]]) -> float:
    return round(min(statistics.median(blocks) for blocks in repeats), 1)


def key_of(row: dict[str, Any]) -> Cell:
    """Return the cell a row belongs to."""
    return Cell(**{name.name: row[name.name] for name in fields(Cell)})


# ---- judging and showing ----


def judge(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what falls short of the bars TurnTail is held to, in words; [] if nothing does.

    Only bars whose cells are among the rows are judged.
    """
    by_cell = {key_of(row): row for row in rows}
    short = []

    def bar(cell: Cell, least: float, value: str = "hit_over_ideal") -> None:
        row = by_cell.get(cell)
        if row is not None and row[value] < least:
            short.append(f"{describe(cell)}: {value} {row[value]:.3f} < {least:.3f}")

    for sessions, slots in FOUR_A_REQUEST:
        bar(Cell(sessions, slots, "turntail+margin"), 0.97)
        bar(Cell(sessions, slots, "turntail"), 0.95)
        stock = by_cell.get(Cell(sessions, slots, "stock"))
        if stock is not None and stock["hit_over_ideal"] > 0.12:
            short.append(f"{describe(key_of(stock))}: the cliff is not there")
    for (sessions, slots), policy in itertools.product(FIVE_A_REQUEST, TURNTAIL):
        bar(Cell(sessions, slots, policy, replies="matched"), 0.98)
    bar(Cell(48, 256, "turntail+margin", think_factor=4.0), 0.92)
    for row in rows:
        cell = key_of(row)
        if cell.policy not in TURNTAIL:
            continue
        for other, less in (("stock", 0.01), ("flags", 0.0)):
            against = by_cell.get(replace(cell, policy=other))
            if against is not None and (other == "stock" or cell.system_tokens):
                bar(cell, against["hit"] - less, "hit")
    return short


def judge_accumulation(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return where the limits of preset ``tuned`` fall short, in words; [] if nowhere.

    They must not cost tokens a second at any number of sessions, must gain some at 48, and must
    leave the time to the first token far below the 10 s that a turn may take.
    """
    by_key = {(row["sessions"], row["limits"]): row for row in rows}
    short = []
    for (sessions, limits), row in by_key.items():
        if limits != SHIPPED_LIMITS:
            continue
        ratio = row["tokens_per_modelled_s"] / by_key[sessions, "0"]["tokens_per_modelled_s"]
        least = 1.03 if sessions == 48 else 0.99
        if ratio < least:
            short.append(f"{sessions} sessions, {limits}: tokens/s x{ratio:.3f} < {least}")
        if row["first_token_s_p95"] > 1.0:
            short.append(f"{sessions} sessions, {limits}: first token p95 above 1 s")
    return short


def judge_cost(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return where evicting costs more than stock's, by Python calls of the same replay."""
    return [
        f"{row['sessions']} sessions, {row['policy']}: evict x{row['evict_calls_over_stock']:.2f} "
        "of stock's calls"
        for row in rows
        if row["evict_calls_over_stock"] > 1
    ]


def describe(cell: Cell) -> str:
    """Return a cell in words."""
    more = [cell.replies]
    if cell.think_factor != 1:
        more.append(f"rests x{cell.think_factor:g}")
    if cell.system_tokens:
        more.append(f"{cell.system_tokens} shared tokens")
    if cell.overlap:
        more.append("overlap")
    return f"{cell.sessions} sessions, {cell.slots} slots, {cell.policy} ({', '.join(more)})"


HEAD = (
    "sessions", "slots", "a request", "policy", "traffic", "hit / ideal", "share (seeds)",
    "recomputed", "prefill/gen", "evicted/1k", "evict us",
)  # fmt: skip


def line_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row as it is printed."""
    cell = key_of(row)
    traffic = describe(cell).split("(")[1].rstrip(")")
    ratios = row["hit_over_ideal_by_seed"]
    spread = f" ({min(ratios):.3f}-{max(ratios):.3f})" if len(ratios) > 1 else ""
    return (
        str(cell.sessions),
        str(cell.slots),
        f"{cell.slots / cell.sessions:.1f}",
        cell.policy,
        traffic,
        f"{row['hit']:.3f} / {row['ideal']:.3f}",
        f"{row['hit_over_ideal']:.3f}{spread}",
        f"{100 * row['recomputed_share_of_prompt']:.1f} %",
        f"{row['prefill_per_generated']:.2f}",
        f"{row['states_evicted_per_1000_turns']:.0f}",
        f"{row['evict_us_per_turn']:.0f}",
    )


WIDTHS = (8, 6, 9, 16, 26, 14, 20, 10, 11, 10, 8)


def show(columns: Iterable[str], to: Any) -> None:
    """Print one line of the table."""
    print(
        "  ".join(f"{c:<{w}}" for c, w in zip(columns, WIDTHS, strict=True)).rstrip(),
        file=to,
        flush=True,
    )


def plot(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw hit / ideal against slots a request, re-prefilled replies; needs the extra ``plots``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(SESSIONS), figsize=(4 * len(SESSIONS), 4), sharey=True)
    for axis, sessions in zip(axes, SESSIONS, strict=True):
        for policy in POLICIES:
            points = sorted(
                (row["slots"] / sessions, row["hit_over_ideal"], row["hit_over_ideal_by_seed"])
                for row in rows
                if key_of(row) == Cell(sessions, row["slots"], policy)
            )
            if points:
                x, y, seeds = zip(*points, strict=True)
                axis.plot(x, y, marker="o", label=policy)
                axis.fill_between(x, [min(s) for s in seeds], [max(s) for s in seeds], alpha=0.2)
        axis.set_title(f"{sessions} sessions")
        axis.set_xlabel("state slots a request")
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("hit / ideal (median, range of seeds)")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)


QUICK_GRID = [
    *_cells([(48, 192)], ("stock", "turntail", "turntail+margin")),
    *_cells([(96, 384)], ("stock", "turntail+margin")),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the replay; return 1 if TurnTail falls short of a bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="five short cells, under a minute")
    which.add_argument(
        "--full", action="store_true", help="all bars, and a wide grid with one seed; an hour"
    )
    parser.add_argument("--sessions", type=int, nargs="+", help="own grid: requests in flight")
    parser.add_argument("--slots", type=int, nargs="+", help="own grid: state slots")
    parser.add_argument("--policy", choices=list(POLICIES), nargs="+", default=list(POLICIES))
    parser.add_argument("--replies", choices=REPLIES, nargs="+", default=[REPLIES[0]])
    parser.add_argument("--seeds", type=int, default=1, help="replays of each cell")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, help="write JSON here; cells it has are not run again")
    parser.add_argument("--plot", type=Path, help="draw hit / ideal against slots a request")
    given = parser.parse_args(arguments)
    if bool(given.sessions) != bool(given.slots):
        parser.error("--sessions and --slots belong together")
    size = Size(400, 600, tuple(SEEDS[0] + n for n in range(given.seeds)))
    grid = BARS_GRID
    if given.sessions:
        places = list(itertools.product(given.sessions, given.slots))
        grid = [c for r in given.replies for c in _cells(places, given.policy, replies=r)]
    elif given.quick:
        grid, size = QUICK_GRID, replace(size, warm_up_turns=250, turns=300)
    elif given.full:
        grid = [*BARS_GRID, *WIDE_GRID, *OVERLAP_GRID]
    table = sys.stderr if given.json else sys.stdout
    result = _result_so_far(given.out, size)
    done = {key_of(row): row for row in result["cells"]}
    show(HEAD, table)
    rows = []
    for cell in dict.fromkeys(grid):
        if cell not in done:
            done[cell] = measure(cell, size.of(cell) if given.full else size)
            result["cells"] = list(done.values())
            _write(given.out, result)
        rows.append(done[cell])
        show(line_of(done[cell]), table)
    if not given.sessions and "cost" not in result:
        places = COST_PLACES[:1] if given.quick else COST_PLACES
        result["cost"] = measure_cost(places, *((100, 1) if given.quick else (600, 3)))
        _write(given.out, result)
    if given.full and "accumulation" not in result:
        few = replace(size, warm_up_turns=300, turns=400, seeds=size.seeds[:1])
        result["accumulation"] = measure_accumulation(ACCUMULATE_PLACES, few)
        _write(given.out, result)
    for row in result.get("cost", ()):
        print(
            f"{row['sessions']} sessions, {row['slots']} slots, {row['policy']}: a turn takes "
            f"{row['evict_calls_per_turn']} Python calls in evict "
            f"(x{row['evict_calls_over_stock']:.2f} of stock), {row['evict_us_per_turn']} us "
            f"(x{row['evict_us_over_stock'] or 0:.2f}); {row['cache_calls_per_turn']} and "
            f"{row['cache_us_per_turn']} us in all of the cache",
            file=table,
        )
    for row in result.get("accumulation", ()):
        print(
            f"{row['sessions']} sessions, prompts held back {row['limits']}: "
            f"{row['prefill_passes_per_100_turns']} prefill passes in 100 turns, first token after "
            f"{row['first_token_passes_median']:g} passes (p95 {row['first_token_passes_p95']:g}); "
            f"modelled: {row['tokens_per_modelled_s']:.0f} tokens/s, first token p95 "
            f"{row['first_token_s_p95']:.2f} s",
            file=table,
        )
    if given.plot:
        plot(rows, given.plot)
    if given.json:
        print(json.dumps(result if given.out is None else {**result, "cells": rows}, indent=1))
    short = [
        *judge(rows),
        *judge_cost(result.get("cost", ())),
        *judge_accumulation(result.get("accumulation", ())),
    ]
    for each in short:
        print(f"falls short: {each}", file=table)
    return 1 if short else 0


def _result_so_far(file: Path | None, size: Size) -> dict[str, Any]:
    import sglang

    made = {
        "command": " ".join(["python benchmarks/cache_replay.py", *_without_plot(sys.argv[1:])]),
        "evidence": "E0: computed on a CPU; times decide only which requests overlap",
        "sglang": sglang.__version__,
        "torch": torch.__version__,
        "warm_up_turns": size.warm_up_turns,
        "turns": size.turns,
        "seeds": list(size.seeds),
        "cells": [],
    }
    if file is None or not file.exists():
        return made
    found: dict[str, Any] = json.loads(file.read_text())
    differing = [k for k in ("sglang", "turns", "seeds", "warm_up_turns") if found[k] != made[k]]
    if differing:
        raise SystemExit(f"{file}: made with other {', '.join(differing)}; remove it to start anew")
    return found


def _without_plot(arguments: list[str]) -> list[str]:
    if "--plot" not in arguments:
        return arguments
    at = arguments.index("--plot")
    return arguments[:at] + arguments[at + 2 :]


def _write(file: Path | None, result: dict[str, Any]) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = ",\n  ".join(json.dumps(row) for row in result["cells"])
        head = {k: v for k, v in result.items() if k != "cells"}
        text = json.dumps(head, indent=1)[:-2] + f',\n "cells": [\n  {rows}\n ]\n}}\n'
        file.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
