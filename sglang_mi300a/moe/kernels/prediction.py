"""The predicted time of an expert layer's launches (E3), from counts of what its kernels execute.

Counts come from the interpreter (``benchmarks/moe_counts.py`` writes them down); the equations are
:mod:`sglang_mi300a.cost_model`'s. Uniform routing, weights not cached.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from sglang_mi300a import cost_model, shipped
from sglang_mi300a.cost_model import (
    MACHINE,
    Machine,
    Prediction,
    Routing,
    StreamCounts,
    StreamKernel,
)
from sglang_mi300a.moe.kernels import catalogue
from sglang_mi300a.moe.kernels.catalogue import MatrixKernel, WeightFormat
from sglang_mi300a.stream_layout import HIDDEN

EXPERTS = 512
TOP_K = 10

_BF16_BYTES = 2
_MXFP4_BYTES = 17 / 32
_TOKEN_BYTES = HIDDEN * _BF16_BYTES

SUM_START_US = 2.0
"""Of a launch with one round trip to memory."""


@dataclass(frozen=True)
class Shape:
    """How the layer is cut over the ranks.

    Attributes:
        name: ``TP4``, ``EP4``.
        experts: Local ones.
        inner: Neurons of each on the rank.
    """

    name: str
    experts: int
    inner: int


SHAPES = (
    Shape("EP4", 128, 1024),
    Shape("TP2", 512, 512),
    Shape("TP4", 512, 256),
    Shape("TP8", 512, 128),
)
"""Of this model, whose experts have 1024 neurons."""


@dataclass(frozen=True)
class KernelCounts:
    """What a worker of a kernel executes, and how many there are.

    Attributes:
        item: For each item.
        switch: More, for each change of unit.
        workgroups_per_cu: That a compute unit holds at once.
        ring_bytes_per_cu: Weight bytes on their way to it whenever a wave waits.
    """

    item: StreamCounts
    switch: StreamCounts
    workgroups_per_cu: int
    ring_bytes_per_cu: int


COUNTS_FILE = "executed_counts.jsonl"


def counts_text(counts: Mapping[str, KernelCounts]) -> str:
    """Return counts as text, a kernel a line."""
    rows = ({"kernel": name, **asdict(one)} for name, one in counts.items())
    return "".join(json.dumps(row) + "\n" for row in rows)


def shipped_counts() -> dict[str, KernelCounts]:
    """Return the counts of this package's kernels by name (E1)."""
    path = shipped.tuning_tables() / "moe" / COUNTS_FILE
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        name = row.pop("kernel")
        item, switch = StreamCounts(**row.pop("item")), StreamCounts(**row.pop("switch"))
        found[name] = KernelCounts(item, switch, **row)
    return found


def counts_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, KernelCounts]:
    """Return counts by kernel name, as ``benchmarks/moe_counts.py`` writes them down."""
    return {
        row["name"]: KernelCounts(
            item=StreamCounts(**row["item"]),
            switch=StreamCounts(**row["switch"]),
            workgroups_per_cu=row["workgroups_per_cu"],
            ring_bytes_per_cu=row["ring_bytes_per_cu"],
        )
        for row in rows
    }


def routing(num_tokens: int, tile: int, shape: Shape) -> Routing:
    """Return the work of ``num_tokens`` whose ten experts are drawn uniformly from all."""
    return cost_model.uniform_routing(
        num_tokens, tile, local=shape.experts, experts=EXPERTS, top_k=TOP_K
    )


def stream_kernel(
    kernel: MatrixKernel, counts: KernelCounts, inner: int, groups_per_cu: int | None = None
) -> StreamKernel:
    """Return a kernel of the catalogue as the cost model takes it.

    Args:
        kernel: Which.
        counts: Of it.
        inner: Neurons of an expert on the rank.
        groups_per_cu: Workgroups launched a compute unit; default: as many as it holds.
    """
    groups = counts.workgroups_per_cu if groups_per_cu is None else groups_per_cu
    is_first = kernel.op == "gate_up"
    rows, k = (2 * inner, HIDDEN) if is_first else (HIDDEN, inner)
    weight_bytes = _BF16_BYTES if kernel.weights == "bf16" else _MXFP4_BYTES
    inner_bytes = inner * _BF16_BYTES
    return StreamKernel(
        item=counts.item,
        switch=counts.switch,
        weight_bytes=kernel.item_rows * k * weight_bytes,
        items_per_unit=rows // kernel.item_rows,
        workers_per_group=kernel.workers,
        groups_per_cu=groups,
        bytes_under_way=counts.ring_bytes_per_cu * groups / counts.workgroups_per_cu,
        token_bytes=_TOKEN_BYTES if is_first else 0,
        row_bytes=inner_bytes if is_first else inner_bytes + _TOKEN_BYTES,
    )


PARTS = ("gate_up", "down", "loads_only", "checkpoint", "decode_only")
"""Of a layer: its two stages, and three ways of running the first that tell the model's terms."""


def part_us(
    part: str,
    work: Routing,
    weights: WeightFormat,
    inner: int,
    counts: Mapping[str, KernelCounts],
    machine: Machine = MACHINE,
) -> float:
    """Return the time of a part of a layer.

    Args:
        part: One of :data:`PARTS`.
        work: What routing gives it to do.
        weights: Format, ``subnormals`` or ``bf8``.
        inner: Neurons of an expert on the rank.
        counts: Of the kernels, by name.
        machine: Constants.

    Raises:
        KeyError: A kernel has no counts.
        ValueError: There is no such kernel.
    """
    op = "down" if part == "down" else "gate_up"
    runs = cast("WeightFormat", part) if part in ("loads_only", "checkpoint") else weights
    if part == "decode_only":
        # Weights that never leave the L2 caches.
        machine = replace(machine, hbm_tb_s=1e6, cache_tb_s=1e6, hbm_clk=machine.cache_clk)
    kernel = catalogue.matrix_kernel(op, runs, work.tile, inner)
    return stream_kernel(kernel, counts[kernel.name], inner).predict(work, machine).us


def both_stages(first: Prediction, second: Prediction) -> Prediction:
    """Return two launches, one after the other, as one."""
    terms = {name: us + second.terms_us[name] for name, us in first.terms_us.items()}
    return Prediction(first.us + second.us, terms)


def sum_slots_us(num_tokens: int) -> float:
    """Return the time of the slot sum: it reads a row a slot and writes one."""
    num_bytes = num_tokens * (TOP_K + 1) * _TOKEN_BYTES
    return SUM_START_US + num_bytes / (MACHINE.hbm_tb_s * 1e6)


def sort_pairs_us(num_tokens: int, round_trips: int) -> float:
    """Return the time of sorting, beside which other workgroups copy the activations.

    Args:
        num_tokens: Rows of the activations.
        round_trips: Loads that a wave of the sorting workgroup waits for, one after the other.
    """
    sorting = MACHINE.us(MACHINE.chain_clk(1, max(round_trips - 1, 0)))
    copying = 2 * num_tokens * _TOKEN_BYTES / (MACHINE.hbm_tb_s * 1e6)
    return MACHINE.start_us + max(sorting, copying)
