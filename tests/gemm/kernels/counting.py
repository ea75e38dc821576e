"""What the skinny kernels execute, counted in the interpreter.

A workgroup executes so much once and so much for each step along K. Two launches of different K
give both numbers exactly; a third must then come out to the instruction.
"""

from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from sglang_mi300a.cost_model import StreamCounts
from sglang_mi300a.gemm.kernels import catalogue
from sglang_mi300a.gemm.kernels.catalogue import SkinnyKernel
from sglang_mi300a.gemm.kernels.prediction import WorkgroupCounts
from tests.gemm.kernels import running
from tests.gfx942.counters import Counters
from tests.gfx942.machine import Machine

_REGISTERS, _REGISTER_GRANULE, _SIMDS, _MOST_WAVES, _LDS = 512, 8, 4, 8, 65536


def launch(kernel: SkinnyKernel, rounds: int, on: Machine | None = None) -> Counters:
    """Run one workgroup of a full unit; each wave takes ``rounds`` rounds of its ring."""
    k = kernel.k_multiple * rounds
    return running.run(kernel, kernel.tokens, (kernel.rows,), k, on=on).counters


@cache
def counted(kernel: SkinnyKernel) -> WorkgroupCounts:
    """Return a kernel's counts.

    Raises:
        AssertionError: A third launch does not come out as the two say.
    """
    rounds = (1, 2, 4)
    steps = [kernel.ring * n for n in rounds]
    one, two, four = (_totals(launch(kernel, n)) for n in rounds)
    step = (two - one) / (steps[1] - steps[0])
    once = one - steps[0] * step
    assert np.array_equal(once + steps[2] * step, four), (once, step, four)
    return WorkgroupCounts(StreamCounts(*step.tolist()), StreamCounts(*once.tolist()))


def _totals(counters: Counters) -> np.ndarray:
    memory = [one for one in counters.memory if one.line.mnemonic.startswith("buffer_")]
    classes = counters.by_class
    return np.array([classes["valu"], classes["mfma"], sum(one.segments for one in memory)], float)


def as_data(kernel: SkinnyKernel) -> dict[str, Any]:
    """Return a kernel's counts as the committed file holds them."""
    counts = counted(kernel)
    return {"name": kernel.name, "step": asdict(counts.step), "once": asdict(counts.once)}


def loop(kernel: SkinnyKernel, on: Machine):
    """Return (line, class) of what a wave executes for each round of its ring, in order."""
    counters = launch(kernel, 4, on)
    often = max(
        count
        for count, kind in zip(counters.executed, counters.classes, strict=True)
        if kind == "mfma"
    )
    rows = zip(counters.lines, counters.classes, counters.executed, strict=True)
    return [(line, kind) for line, kind, count in rows if count == often]


def workgroups_per_cu(kernel: SkinnyKernel, on: Machine) -> int:
    """Return how many workgroups a compute unit holds by the code object's registers and LDS."""
    facts = on.kernel(kernel.name)
    granules = -(-facts.vgprs // _REGISTER_GRANULE)
    waves = _SIMDS * min(_REGISTERS // (granules * _REGISTER_GRANULE), _MOST_WAVES)
    return min(waves // kernel.waves, _LDS // facts.lds_bytes)


def segments_per_weight_load(kernel: SkinnyKernel) -> float:
    """Return the 64-byte segments of a load of 1 KiB of weights, all its lanes at work."""
    counters = launch(kernel, 2)
    loads = [o for o in counters.memory if o.line.mnemonic == "buffer_load_dwordx4"]
    return sum(o.segments for o in loads) / (sum(o.lanes for o in loads) / catalogue.LANES)
