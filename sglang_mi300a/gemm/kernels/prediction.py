"""The predicted time of a skinny product (E3), from counts of what its kernel executes.

Counts come from the interpreter (``tests/gemm/kernels/counting.py``); the committed ones lie in
``tuning_tables/gemm/kernel_counts.jsonl``. Weights are read from HBM once and, where there are
more units than one, from the Infinity Cache after that; activations come from nearer caches, over
the path that also brings the weights to a compute unit.

No timing of a dense kernel of this kind is published: ±30 %.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from sglang_mi300a import shipped
from sglang_mi300a.cost_model import MACHINE, MATRIX_CLK, SIMDS, Machine, Prediction, StreamCounts
from sglang_mi300a.gemm.kernels.catalogue import KERNELS, SkinnyKernel

COUNTS_FILE = "gemm/kernel_counts.jsonl"
BAND_PERCENT = (-30, 30)


@dataclass(frozen=True)
class WorkgroupCounts:
    """What a workgroup of a full unit executes.

    Attributes:
        step: For each 32 values along K, of all its waves together: for 32 of each wave.
        once: Beside that.
    """

    step: StreamCounts
    once: StreamCounts

    def of(self, num_steps: float) -> StreamCounts:
        """Return the counts of a workgroup whose waves take so many steps each."""
        return StreamCounts(
            self.once.vector + num_steps * self.step.vector,
            self.once.matrix + num_steps * self.step.matrix,
            self.once.segments + num_steps * self.step.segments,
        )


@cache
def shipped_counts() -> Mapping[str, WorkgroupCounts]:
    """Return the committed counts of each kernel, by name."""
    lines = (shipped.tuning_tables() / COUNTS_FILE).read_text(encoding="utf-8").splitlines()
    return {
        row["name"]: WorkgroupCounts(StreamCounts(**row["step"]), StreamCounts(**row["once"]))
        for row in map(json.loads, lines)
    }


def predict(
    kernel: SkinnyKernel,
    counts: WorkgroupCounts,
    num_tokens: int,
    n: int,
    k: int,
    machine: Machine = MACHINE,
) -> Prediction:
    """Return the time of one launch.

    Args:
        kernel: Takes ``[n, k]``.
        counts: Of it.
        num_tokens: Rows of the activations.
        n: Weight rows, of both matrices where two are in the launch.
        k: Columns.
        machine: Constants.
    """
    units = -(-num_tokens // kernel.tokens)
    workgroups = units * (n // kernel.rows)
    busy = min(workgroups, machine.num_cus)
    rounds = workgroups / busy
    executed = counts.of(k / 32 / kernel.waves)
    # Lanes whose tokens do not exist load nothing.
    weight_segments = kernel.rows * k * 2 / 64
    token_part = num_tokens / (units * kernel.tokens)
    segments = weight_segments + (executed.segments - weight_segments) * token_part
    weight_bytes = kernel.rows * k * 2
    issue = rounds * executed.issue_clk
    address = rounds * segments
    first = 1 / units
    others = (num_tokens * k * 2 + num_tokens * n * 2) / workgroups
    memory = rounds * (
        machine.memory_clk(weight_bytes * first + others, machine.hbm_tb_s, busy)
        + machine.memory_clk(weight_bytes * (1 - first), machine.cache_tb_s, busy)
    )
    matrix = rounds * executed.matrix * MATRIX_CLK / SIMDS
    resident = min(kernel.workgroups_per_cu, rounds)
    under_way = kernel.weight_bytes_under_way * resident / kernel.workgroups_per_cu
    ring = rounds * weight_bytes * machine.hbm_clk / under_way
    # Each further workgroup in a place begins with empty registers; its neighbours fill the time.
    late = (rounds / resident - 1) * machine.chain_clk(1, 1) / resident
    total = machine.overlapped((issue + address, memory, matrix, ring, late))
    start = machine.start_us + machine.us(machine.start_clk)
    return Prediction(
        machine.us(total) + start,
        {
            "issue": machine.us(issue),
            "address": machine.us(address),
            "memory": machine.us(memory),
            "matrix": machine.us(matrix),
            "ring": machine.us(ring),
            "latency": machine.us(late) + start,
        },
    )


@dataclass(frozen=True)
class Choice:
    """The kernel for a product.

    Attributes:
        kernel: Which.
        prediction: Its time.
    """

    kernel: SkinnyKernel
    prediction: Prediction


def best(
    num_tokens: int, n: int, k: int, counts: Mapping[str, WorkgroupCounts] | None = None
) -> Choice | None:
    """Return the fastest kernel for a product by the model, or None if none takes it.

    Args:
        num_tokens: Rows of the activations.
        n: Weight rows.
        k: Columns.
        counts: By kernel; default: those shipped.
    """
    known = shipped_counts() if counts is None else counts
    choices = [
        Choice(kernel, predict(kernel, known[kernel.name], num_tokens, n, k))
        for kernel in KERNELS
        if kernel.takes(n, k)
    ]
    return min(choices, key=lambda choice: choice.prediction.us, default=None)
