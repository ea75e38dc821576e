"""What the matrix kernels execute, counted in the interpreter at the true K and item sizes.

A worker executes so much once, so much for each item and so much more for each change of unit.
Three launches of different sizes give the three numbers exactly; a fourth must then come out to the
instruction. One expert is enough: the numbers do not depend on which unit is whose.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from sglang_mi300a.cost_model import StreamCounts
from sglang_mi300a.moe.kernels import catalogue, steps, work_split
from sglang_mi300a.moe.kernels.catalogue import MatrixKernel
from tests.gfx942.counters import Counters
from tests.gfx942.machine import Machine
from tests.moe.kernels import running

SERVED_INNER = 256
"""Neurons of an expert on one rank of four: what kernels that take any number are counted with."""

_CHECKPOINT_EXPERTS = 512
_NUM_CUS = 2
_UNITS = (1, 2, 5)
_CHECKED_UNITS = 3
_FULL_SEGMENTS = 16


@dataclass(frozen=True)
class Counted:
    """A kernel's counts.

    Attributes:
        item: Of one worker for an item.
        switch: More, for a change of unit.
        start: Once. May be negative: the last item's loads for the ring touch nothing.
        segments_per_weight_load: 64-byte segments of a load of 1 KiB of weights.
    """

    item: StreamCounts
    switch: StreamCounts
    start: StreamCounts
    segments_per_weight_load: float


@dataclass(frozen=True)
class _Launched:
    totals: np.ndarray  # vector, matrix, segments, those of weights that do not lie in a row
    size: tuple[int, int, int]  # workers, items, changes of unit
    record_segments: int
    record_loads: float


def inner_of(kernel: MatrixKernel) -> int:
    """Return the neurons that a kernel is counted with."""
    return kernel.inner or SERVED_INNER


def items_per_unit(kernel: MatrixKernel, inner: int) -> int:
    """Return the items of a unit."""
    rows = 2 * inner if kernel.op == "gate_up" else running.HIDDEN
    return rows // kernel.item_rows


def launch(kernel: MatrixKernel, rows: Sequence[int], num_cus: int, on: Machine) -> Counters:
    """Run a kernel over units of so many rows each, all of one expert, on ``num_cus`` units."""
    inner = inner_of(kernel)
    weights = running.random_weights(1, inner, bf16=kernel.weights == "bf16")
    batch = running.random_batch(len(rows) * kernel.token_tile, 1, 1, "uniform")
    layer = running.layer_of(weights, batch, kernel.weights, kernel.token_tile, num_cus=num_cus)
    buffers = running.buffers_of(layer, weights, batch)
    if kernel.weights == "checkpoint":  # made for all of a rank's experts
        layer = replace(layer, num_experts=_CHECKPOINT_EXPERTS)
        empty = np.zeros(layer.stream_bytes("gate_up"), np.uint8)  # touched where it is read only
        empty.flags.writeable = False
        buffers[steps.W13_STREAM] = empty
    by_expert = work_split.sort_pairs(batch.ids, 1, kernel.token_tile)
    by_expert.work[1 : 1 + len(rows), 2] = rows
    buffers[steps.WORK][: by_expert.work.nbytes] = by_expert.work.reshape(-1).view(np.uint8)
    buffers[steps.TOKENS][:] = by_expert.tokens.view(np.uint8)
    for name in (steps.SCALED, steps.INNER):  # values do not matter here
        if name in buffers:
            buffers[name][:] = 0
    step = {"gate_up": steps.gate_up, "down": steps.down}[kernel.op](layer)
    return running.launch(step, buffers, on=on)


@cache
def counted(kernel: MatrixKernel, on: Machine) -> Counted:
    """Return a kernel's counts.

    Raises:
        AssertionError: A fourth launch does not come out as the three say.
    """
    full = {units: _measure(kernel, units, kernel.token_tile, on) for units in _UNITS}
    one = {units: _measure(kernel, units, 1, on) for units in _UNITS}
    start, item, switch = _solve(full)
    _, _, switch_of_one = _solve(one)
    check = _measure(kernel, _CHECKED_UNITS, kernel.token_tile, on)
    predicted = np.array(check.size) @ np.array([start, item, switch])
    assert np.allclose(predicted, check.totals, rtol=0, atol=1e-6), (predicted, check.totals)

    row_segments = (switch[2] - switch_of_one[2]) / (kernel.token_tile - 1)
    switch[2] -= row_segments * kernel.token_tile
    return Counted(
        item=_stream_counts(item),
        switch=_stream_counts(switch, row_segments),
        start=_stream_counts(start),
        segments_per_weight_load=check.record_segments / check.record_loads,
    )


def _measure(kernel: MatrixKernel, units: int, rows: int, on: Machine) -> _Launched:
    counters = launch(kernel, [rows] * units, _NUM_CUS, on)
    items = items_per_unit(kernel, inner_of(kernel))
    workers = min(_NUM_CUS * kernel.workgroups_per_cu * kernel.workers, units * items)
    shares = [work_split.share_of(w, workers, units * items) for w in range(workers)]
    changes = sum((share.stop - 1) // items - share.start // items for share in shares)
    memory = [one for one in counters.memory if one.line.mnemonic.startswith("buffer_")]
    _, steady = steady_lines(counters)
    records = {line.pc for line, _ in steady if is_record(line)}
    of_records = [one for one in memory if one.line.pc in records]
    record_segments = sum(one.segments for one in of_records)
    record_loads = sum(one.lanes for one in of_records) / catalogue.LANES
    scattered = 0
    if record_segments > _FULL_SEGMENTS * record_loads:
        loads = {line.pc for line, kind in steady if kind == "vmem_load"}
        of_loop = [one for one in memory if one.line.pc in loads]
        # The rest of the loop's loads, of a tile's tokens, is one segment.
        scattered = sum(one.segments for one in of_loop if one.segments > one.executed)
    segments = sum(one.segments for one in memory) - scattered
    vector, matrix = counters.by_class["valu"], counters.by_class["mfma"]
    return _Launched(
        np.array([vector, matrix, segments, scattered], float),
        (workers, units * items, changes),
        record_segments,
        record_loads,
    )


def _stream_counts(totals: list[float], row_segments: float = 0.0) -> StreamCounts:
    vector, matrix, segments, scattered = totals
    return StreamCounts(vector, matrix, segments, row_segments, scattered)


def _solve(launched: dict[int, _Launched]) -> tuple[list[float], list[float], list[float]]:
    sizes = np.array([one.size for one in launched.values()], float)
    totals = np.array([one.totals for one in launched.values()])
    start, item, switch = (np.linalg.solve(sizes, totals).round(9) + 0.0).tolist()
    return start, item, switch


# -- the steady loop ------------------------------------------------------------------------------


@cache
def busy_run(kernel: MatrixKernel, on: Machine) -> tuple[Counters, int]:
    """Run a kernel over two and a half full units on one compute unit; return weights read, too."""
    tile = kernel.token_tile
    counters = launch(kernel, [tile, tile, tile // 2], 1, on)
    inner = inner_of(kernel)
    rows, k = (2 * inner, running.HIDDEN) if kernel.op == "gate_up" else (running.HIDDEN, inner)
    return counters, 3 * rows * k


def steady_lines(counters: Counters):
    """Return how often, and (line, class) of what a wave executes for each item, in loop order."""
    often = max(
        count
        for count, line in zip(counters.executed, counters.lines, strict=True)
        if is_record(line)
    )
    return often, [
        (line, kind)
        for line, kind, count in zip(
            counters.lines, counters.classes, counters.executed, strict=True
        )
        if count == often
    ]


def is_record(line) -> bool:
    """Return whether a line of the steady loop loads 1 KiB of weights."""
    return line.mnemonic == "buffer_load_dwordx4"


def waits(kernel: MatrixKernel, on: Machine) -> list[tuple[int, int]]:
    """Return (vmcnt, records that may still be under way behind it) of each wait of the loop.

    Memory operations complete in order, so a wait for at most n leaves the n youngest.
    """
    counters, _ = busy_run(kernel, on)
    _, steady = steady_lines(counters)
    found = []
    for place, (line, _) in enumerate(steady):
        if "vmcnt" in line.wait:
            loop = steady[place:] + steady[:place]  # its end is the youngest
            memory = [one for one, kind in loop if kind.startswith("vmem")]
            youngest = memory[max(len(memory) - line.wait["vmcnt"], 0) :]
            found.append((line.wait["vmcnt"], sum(map(is_record, youngest))))
    return found


def waves_by_registers(registers: int) -> int:
    """Return how many waves of so many vector registers a compute unit holds."""
    granules = -(-registers // catalogue.REGISTER_GRANULE)
    a_simd = catalogue.REGISTERS // (granules * catalogue.REGISTER_GRANULE)
    return catalogue.SIMDS * min(a_simd, catalogue.MAX_WAVES)


def workgroups_per_cu(kernel: MatrixKernel, on: Machine) -> int:
    """Return how many workgroups a compute unit holds by the code object's registers and LDS."""
    facts = on.kernel(kernel.name)
    by_registers = waves_by_registers(facts.vgprs) // kernel.waves
    return min(by_registers, catalogue.LDS_BYTES // facts.lds_bytes if facts.lds_bytes else 99)
