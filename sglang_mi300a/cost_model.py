"""Predicted time of grouped expert kernels on an MI300A, from counts of what they execute.

Evidence level E3. Three constants are fitted to 13 published timings of other people's kernels and
frozen here (:data:`MACHINE`); the rest are hardware facts or held at plausible values. A prediction
is quoted with ``BAND_PERCENT``, up to eight tokens with ``SMALL_BATCH_BAND_PERCENT``, and with the
term that binds.

What a compute unit spends on its work, in clocks:

    issue    a wave-instruction (vector or matrix) is 4, on one of 4 SIMDs
    address  1 for each 64-byte segment of a load that is contiguous; ``scattered_clk`` for each
             of one that is not (rows of tokens, weights as a checkpoint has them)
    memory   bytes at the unit's part of the bandwidth: of HBM the first time, of the Infinity Cache
             when another work unit reads the same weights again
    matrix   16 a 16x16x16 matrix instruction, beside issue
    ring     bytes at (bytes on their way) / (latency of HBM)
    latency  dependent round trips to memory of one wave

``issue`` and ``address`` add up. The sum, and the others, overlap as a power mean with exponent
``overlap``: 1 would be one after the other, infinity perfect overlap.

The kernels of a time are of three shapes: :class:`GridKernel` (each workgroup does one piece),
:class:`SegmentKernel` (persistent workgroups, unit by unit), :class:`StreamKernel` (persistent
workers with an even share of all items, loads under way across units: this package's).

Source: the equations, counts and timings of the published kernels are in
``moe/kernels/published.py``; tests/foundation/test_cost_model.py holds the model to them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

BAND_PERCENT = (-9, 25)
"""Of a prediction, from the overlap exponent alone (3 and 1.3 in place of 1.99)."""

SMALL_BATCH_BAND_PERCENT = (-40, 40)
SMALL_BATCH = 8
"""Tokens up to which latencies and launches weigh most: they are held, not fitted."""


def band_percent(num_tokens: int) -> tuple[int, int]:
    """Return the band that a prediction for so many tokens is quoted with."""
    return SMALL_BATCH_BAND_PERCENT if num_tokens <= SMALL_BATCH else BAND_PERCENT


SIMDS = 4
ISSUE_CLK = 4
MATRIX_CLK = 16


@dataclass(frozen=True)
class Machine:
    """What the model knows of the hardware.

    Attributes:
        clock_mhz: Of the compute units. Source: AMD Instinct MI300A data sheet, peak engine clock.
        num_cus: Compute units. Source: the same.
        scattered_clk: Of a scattered 64-byte segment. Fitted; left out one by one 1.98 to 2.36. A
            128-byte line over a path of 64 bytes a clock would be 2.0.
        overlap: Exponent of the power mean. Fitted; 1.80 to 2.36.
        eager_us: Routing preparation and gaps between eager launches in one of the published
            benchmarks, the end-to-end one. Fitted; 44 to 51. No property of a kernel.
        cache_clk: Latency of a load that hits the Infinity Cache. Held: timings do not tell.
        hbm_clk: Latency of a load from HBM under load. Held.
        hbm_tb_s: Highest bandwidth that public work reached by plain reads.
        cache_tb_s: Bandwidth of the Infinity Cache. Assumed.
        launch_us: Of a launch of the published kernels. Held.
        start_us: Of a launch of ours, before its first load. Held, larger to be safe.
        start_clk: Of our first loads: one round trip to HBM and two to the cache.
        switch_clk: Of a change of work unit: the drain of the ring and a round trip to the cache.
    """

    clock_mhz: int = 2100
    num_cus: int = 228
    scattered_clk: float = 2.15
    overlap: float = 1.99
    eager_us: float = 47.0
    cache_clk: int = 300
    hbm_clk: int = 1300
    hbm_tb_s: float = 3.5
    cache_tb_s: float = 10.0
    launch_us: float = 1.0
    start_us: float = 2.5
    start_clk: int = 1900
    switch_clk: int = 1600

    @property
    def digest(self) -> str:
        """The constants' SHA-256, hexadecimal, 16 digits: tables carry it."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def clk(self, us: float) -> float:
        """Return microseconds in clocks."""
        return us * self.clock_mhz

    def us(self, clk: float) -> float:
        """Return clocks in microseconds."""
        return clk / self.clock_mhz

    def memory_clk(self, num_bytes: float, tb_s: float, num_busy: float) -> float:
        """Return the clocks of a compute unit's bytes while ``num_busy`` share the bandwidth."""
        return self.clk(num_bytes * num_busy / (tb_s * 1e6))

    def chain_clk(self, hbm_round_trips: float, cache_round_trips: float) -> float:
        """Return the clocks of loads that wait for each other."""
        return hbm_round_trips * self.hbm_clk + cache_round_trips * self.cache_clk

    def overlapped(self, terms: Iterable[float]) -> float:
        """Return what terms that overlap take together."""
        return float(sum(term**self.overlap for term in terms) ** (1 / self.overlap))


MACHINE = Machine()


# -- routing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Routing:
    """What routing leaves to do on one rank, as expected values.

    Attributes:
        num_tokens: Rows of the activations.
        experts: Distinct local experts that get a token.
        units: Work units: each expert's rows, cut every ``tile``.
        rows: (token, expert) pairs on this rank.
        tile: Rows of a unit, at most.
    """

    num_tokens: int
    experts: float
    units: float
    rows: float
    tile: int

    @property
    def rows_of_unit(self) -> float:
        """Rows of a unit on average."""
        return self.rows / self.units if self.units else 0.0

    @property
    def first_reads(self) -> float:
        """The part of all weight reads that no unit before has made."""
        return self.experts / self.units if self.units else 0.0


def uniform_routing(
    num_tokens: int, tile: int, *, local: int = 512, experts: int = 512, top_k: int = 10
) -> Routing:
    """Return the exact expectation where every expert is as likely.

    Args:
        num_tokens: Rows of the activations.
        tile: Rows of a unit, at most.
        local: Experts on this rank.
        experts: Experts of the layer.
        top_k: Experts of a token.
    """
    return _routing(num_tokens, tile, [(float(local), top_k / experts)])


def lognormal_routing(
    num_tokens: int,
    tile: int,
    *,
    sigma: float,
    share: float,
    local: int,
    experts: int = 512,
    top_k: int = 10,
) -> Routing:
    """Return the expectation where experts differ in popularity.

    Args:
        num_tokens: Rows of the activations.
        tile: Rows of a unit, at most.
        sigma: Of the popularity's logarithm.
        share: Of the uniform load that this rank's experts get together.
        local: Experts on this rank.
        experts: Experts of the layer.
        top_k: Experts of a token.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    popularity = np.exp(sigma * nodes - sigma**2 / 2)
    chance = np.minimum(share * top_k / experts * popularity, 1.0)
    parts = zip(local * weights / weights.sum(), chance, strict=True)
    return _routing(num_tokens, tile, [(float(n), float(p)) for n, p in parts])


def counted_routing(num_tokens: int, tile: int, tokens_of_experts: Sequence[int]) -> Routing:
    """Return what a recorded routing leaves to do: how many tokens each local expert got."""
    counts = [count for count in tokens_of_experts if count > 0]
    units = sum(-(-count // tile) for count in counts)
    return Routing(num_tokens, float(len(counts)), float(units), float(sum(counts)), tile)


def _routing(num_tokens: int, tile: int, experts: Sequence[tuple[float, float]]) -> Routing:
    """Experts as (how many, chance that a token chooses one of them)."""
    counts = np.arange(num_tokens + 1)
    log_factorial = np.array([math.lgamma(n + 1) for n in range(num_tokens + 1)])
    log_ways = log_factorial[-1] - log_factorial - log_factorial[::-1]
    units_by_count = -(-counts // tile)
    touched = units = rows = 0.0
    for how_many, chance in experts:
        if chance >= 1.0:
            odds = (counts == num_tokens).astype(float)
        else:
            log_odds = counts * math.log(chance) + (num_tokens - counts) * math.log1p(-chance)
            odds = np.exp(log_ways + log_odds)
        touched += how_many * float(1 - odds[0])
        units += how_many * float(odds @ units_by_count)
        rows += how_many * num_tokens * chance
    return Routing(num_tokens, touched, units, rows, tile)


# -- kernels --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """A predicted time (E3).

    Attributes:
        us: Of the launch.
        terms_us: What each resource alone would take.
    """

    us: float
    terms_us: Mapping[str, float]

    @property
    def binds(self) -> str:
        """The largest of what overlaps; ``issue+address`` is one."""
        terms = dict(self.terms_us)
        terms["issue+address"] = terms.pop("issue") + terms.pop("address")
        return max(terms, key=lambda name: terms[name])

    @property
    def band_us(self) -> tuple[float, float]:
        """Lowest and highest time by ``BAND_PERCENT``."""
        low, high = BAND_PERCENT
        return self.us * (1 + low / 100), self.us * (1 + high / 100)


@dataclass(frozen=True)
class GridKernel:
    """A kernel whose workgroups each do one piece of a unit and end.

    Attributes:
        issue_clk: Of a workgroup.
        waves: Of it.
        workgroups_per_cu: That a compute unit holds at once.
        workgroups_per_unit: Pieces of a unit.
        weight_segments: 64-byte segments of a workgroup's weight loads, scattered.
        token_segments: The same of its activation loads, for 16 distinct rows.
        weight_bytes: Of a workgroup.
        hbm_round_trips: Of one wave, one after the other.
        cache_round_trips: The same.
        token_bytes: Read of a token, and
        row_bytes: read and written of a row, over the whole launch.
    """

    issue_clk: float
    waves: int
    workgroups_per_cu: int
    workgroups_per_unit: int
    weight_segments: float
    token_segments: float
    weight_bytes: float
    hbm_round_trips: float
    cache_round_trips: float
    token_bytes: float
    row_bytes: float

    def predict(
        self, routing: Routing, machine: Machine = MACHINE, *, weights_cached: bool = False
    ) -> Prediction:
        """Return the time of a launch.

        Args:
            routing: What there is to do, in units of 16 rows.
            machine: Constants.
            weights_cached: Whether the Infinity Cache holds all the weights already.
        """
        workgroups = routing.units * self.workgroups_per_unit
        busy = min(workgroups, machine.num_cus)
        rounds = max(1.0, workgroups / machine.num_cus)
        distinct = _distinct_with_padding(routing)
        segments = self.weight_segments + self.token_segments * distinct
        address = machine.scattered_clk * segments
        first = 0.0 if weights_cached else routing.first_reads
        others = (
            self.token_bytes * routing.num_tokens + self.row_bytes * routing.rows
        ) / workgroups
        memory = _memory_clk(machine, self.weight_bytes, first, others, busy)
        chain = machine.chain_clk(self.hbm_round_trips, self.cache_round_trips)
        side_by_side = min(self.workgroups_per_cu, rounds)
        terms = (self.issue_clk + address, memory, chain / side_by_side)
        alone = (SIMDS * self.issue_clk + address) / self.waves
        # The last workgroups run out one by one; where all start at once there are no last ones.
        tail = 0.5 * (chain + alone) if workgroups > machine.num_cus else 0.0
        total = rounds * machine.overlapped(terms) + tail
        return Prediction(
            machine.us(total) + machine.launch_us,
            {
                "issue": machine.us(rounds * self.issue_clk),
                "address": machine.us(rounds * address),
                "memory": machine.us(rounds * memory),
                "latency": machine.us(rounds * chain / side_by_side),
            },
        )


@dataclass(frozen=True)
class SegmentKernel:
    """A persistent kernel, one workgroup a compute unit, that starts anew with each unit.

    Attributes:
        issue_clk: Of an item.
        items_per_unit: Of them.
        weight_segments: Of an item, scattered.
        token_segments: Of a unit's activation loads, for 16 distinct rows.
        weight_bytes: Of an item.
        hbm_round_trips: At the start of a unit.
        cache_round_trips: The same.
        token_bytes: Read of a token, and
        row_bytes: read and written of a row, over the whole launch.
    """

    issue_clk: float
    items_per_unit: int
    weight_segments: float
    token_segments: float
    weight_bytes: float
    hbm_round_trips: float
    cache_round_trips: float
    token_bytes: float
    row_bytes: float

    def predict(self, routing: Routing, machine: Machine = MACHINE) -> Prediction:
        """Return the time of a launch; ``routing`` in units of 16 rows."""
        items = routing.units * self.items_per_unit
        busy = min(items, machine.num_cus)
        rounds = max(1.0, items / machine.num_cus)
        address = machine.scattered_clk * self.weight_segments
        others = (self.token_bytes * routing.num_tokens + self.row_bytes * routing.rows) / items
        memory = _memory_clk(machine, self.weight_bytes, routing.first_reads, others, busy)
        chain = machine.chain_clk(self.hbm_round_trips, self.cache_round_trips)
        tokens = machine.scattered_clk * self.token_segments * _distinct_with_padding(routing)
        segments = routing.units / machine.num_cus + 1
        item = machine.overlapped((self.issue_clk + address, memory))
        total = rounds * item + segments * (tokens + chain)
        return Prediction(
            machine.us(total) + machine.launch_us,
            {
                "issue": machine.us(rounds * self.issue_clk),
                "address": machine.us(rounds * address + segments * tokens),
                "memory": machine.us(rounds * memory),
                "latency": machine.us(segments * chain),
            },
        )


@dataclass(frozen=True)
class StreamCounts:
    """What one worker executes: for each item, or for each change of unit.

    Attributes:
        vector: Vector instructions, and
        matrix: matrix instructions, of all the worker's waves.
        segments: 64-byte segments of contiguous loads, and of stores.
        row_segments: Of loads that go to a row each, for each distinct row.
        scattered_segments: Of loads of weights that do not lie in a row.
    """

    vector: float
    matrix: float
    segments: float
    row_segments: float = 0.0
    scattered_segments: float = 0.0

    @property
    def issue_clk(self) -> float:
        """Of a compute unit's vector units."""
        return (self.vector + self.matrix) * ISSUE_CLK / SIMDS


@dataclass(frozen=True)
class StreamKernel:
    """A persistent kernel whose workers share all items evenly and keep loads under way throughout.

    Attributes:
        item: Counts of an item.
        switch: Counts of a change of unit, over those of its items.
        weight_bytes: Of an item.
        items_per_unit: Of them.
        workers_per_group: Workers of a workgroup: 1 where its waves work together.
        groups_per_cu: Workgroups of a compute unit.
        bytes_under_way: Weight bytes on their way to a full compute unit whenever a wave waits.
        token_bytes: Read of a token, and
        row_bytes: read and written of a row, over the whole launch.
    """

    item: StreamCounts
    switch: StreamCounts
    weight_bytes: float
    items_per_unit: int
    workers_per_group: int
    groups_per_cu: int
    bytes_under_way: float
    token_bytes: float
    row_bytes: float

    def predict(self, routing: Routing, machine: Machine = MACHINE) -> Prediction:
        """Return the time of a launch that fills the device, or has a worker for each item."""
        start = machine.start_us + machine.us(machine.start_clk)
        if not routing.units:
            names = ("issue", "address", "memory", "matrix", "ring")
            return Prediction(start, {**dict.fromkeys(names, 0.0), "latency": start})
        items = routing.units * self.items_per_unit
        most_workers = machine.num_cus * self.groups_per_cu * self.workers_per_group
        workers = min(most_workers, items)
        busy = min(machine.num_cus, items / self.workers_per_group)
        rounds, workers_of_cu = items / busy, workers / busy
        # A share begins somewhere in a unit, so a worker sees one unit more than it has units.
        switches = items / busy if items <= most_workers else routing.units / busy + workers_of_cu
        issue = rounds * self.item.issue_clk + switches * self.switch.issue_clk
        rows = routing.rows_of_unit
        address = rounds * self._address_clk(self.item, rows, machine)
        address += switches * self._address_clk(self.switch, rows, machine)
        others = (self.token_bytes * routing.num_tokens + self.row_bytes * routing.rows) / items
        memory = rounds * _memory_clk(machine, self.weight_bytes, routing.first_reads, others, busy)
        present = workers_of_cu / (self.groups_per_cu * self.workers_per_group)
        under_way = self.bytes_under_way * present
        ring = rounds * self.weight_bytes * machine.hbm_clk / under_way
        matrix = rounds * self.item.matrix * MATRIX_CLK / SIMDS
        total = machine.overlapped((issue + address, memory, matrix, ring))
        drains = (switches / workers_of_cu - 1) * machine.switch_clk
        return Prediction(
            machine.us(total + drains) + start,
            {
                "issue": machine.us(issue),
                "address": machine.us(address),
                "memory": machine.us(memory),
                "matrix": machine.us(matrix),
                "ring": machine.us(ring),
                "latency": machine.us(drains) + start,
            },
        )

    @staticmethod
    def _address_clk(counts: StreamCounts, rows: float, machine: Machine) -> float:
        scattered = counts.row_segments * rows + counts.scattered_segments
        return counts.segments + machine.scattered_clk * scattered


def _distinct_with_padding(routing: Routing) -> float:
    """Distinct rows of a block of 16, as a part of 16: padding rows all read one token."""
    return (routing.rows_of_unit + 1) / 16


def _memory_clk(
    machine: Machine, weight_bytes: float, first: float, others: float, busy: float
) -> float:
    """Clocks of weights of which the part ``first`` comes from HBM, and of other bytes."""
    hbm = weight_bytes * first + others
    cache = weight_bytes * (1 - first)
    return machine.memory_clk(hbm, machine.hbm_tb_s, busy) + machine.memory_clk(
        cache, machine.cache_tb_s, busy
    )
