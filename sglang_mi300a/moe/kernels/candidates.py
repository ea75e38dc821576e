"""What a table of tiles and grids may choose among, and the table that the cost model makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sglang_mi300a.cost_model import MACHINE, Machine
from sglang_mi300a.moe.kernels import catalogue, prediction
from sglang_mi300a.moe.kernels.catalogue import MatrixKernel, WeightFormat
from sglang_mi300a.moe.kernels.prediction import KernelCounts, Shape
from sglang_mi300a.tables import Cell, Table

OP = "moe_expert_layer"
FILE = "expert_layer.json"
KEY = ("experts", "inner", "weights", "m")
COLUMNS = (*KEY, "shape", "tile", "gate_up_groups", "down_groups", "basis", "us", "stock_us")

TILES = (16, 32)
TOKENS = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768),
    *(832, 896, 1024, 1280, 1536, 2048, 4096, 8192),
)
"""Each row serves the batches from the row before, exclusive, up to its own number of tokens."""

DEVICE = {"name": "AMD Instinct MI300A", "arch": "gfx942", "visible_cus": MACHINE.num_cus}


@dataclass(frozen=True)
class StageCandidate:
    """One way to launch a stage.

    Attributes:
        kernel: Of the catalogue; its tile is the layer's.
        groups: Workgroups launched a compute unit.
    """

    kernel: MatrixKernel
    groups: int


def of_stage(op: str, weights: WeightFormat, tile: int, inner: int) -> Iterator[StageCandidate]:
    """Yield the ways to launch a stage, most workgroups first: of equals the first is taken."""
    kernel = catalogue.matrix_kernel(op, weights, tile, inner)
    for groups in range(kernel.workgroups_per_cu, 0, -1):
        yield StageCandidate(kernel, groups)


def key(shape: Shape, weights: str, num_tokens: int) -> tuple[Cell, ...]:
    """Return a row's key."""
    return (shape.experts, shape.inner, weights, num_tokens)


def row(
    shape: Shape,
    weights: str,
    num_tokens: int,
    *,
    tile: int,
    groups: tuple[int, int],
    basis: str,
    us: float,
    stock_us: float | None,
) -> dict[str, Cell]:
    """Return a row.

    Args:
        shape: How the layer is cut.
        weights: Format.
        num_tokens: M.
        tile: Rows of a unit.
        groups: Workgroups a compute unit of both stages.
        basis: ``model`` or ``measured``.
        us: Both stages together, without sorting and the slot sum.
        stock_us: The whole layer on the rung below, where it was measured.
    """
    cells: dict[str, Cell] = dict(zip(KEY, key(shape, weights, num_tokens), strict=True))
    cells["shape"] = shape.name
    cells["tile"] = tile
    cells["gate_up_groups"], cells["down_groups"] = groups
    cells["basis"] = basis
    cells["us"] = round(us, 1)
    cells["stock_us"] = None if stock_us is None else round(stock_us, 1)
    return cells


def modelled(counts: Mapping[str, KernelCounts], made_by: str, machine: Machine = MACHINE) -> Table:
    """Return the table of the cost model's choices (E3).

    Args:
        counts: Of each matrix kernel, by name.
        made_by: The command that makes it.
        machine: Constants.
    """
    rows: dict[tuple[Cell, ...], Mapping[str, Cell]] = {}
    for shape in sorted(prediction.SHAPES, key=lambda one: (one.experts, one.inner)):
        for weights in sorted(catalogue.WEIGHT_FORMATS):
            for num_tokens in TOKENS:
                found = _fastest(counts, shape, weights, num_tokens, machine)
                rows[key(shape, weights, num_tokens)] = found
    return Table(
        op=OP,
        device=DEVICE,
        software={},
        made={"by": made_by, "evidence": "E3", "model": machine.digest},
        key=KEY,
        columns=COLUMNS,
        rows=rows,
    )


def _fastest(
    counts: Mapping[str, KernelCounts],
    shape: Shape,
    weights: WeightFormat,
    num_tokens: int,
    machine: Machine,
) -> dict[str, Cell]:
    best: tuple[float, StageCandidate, StageCandidate] | None = None
    for tile in TILES:
        work = prediction.routing(num_tokens, tile, shape)
        stages = []
        for op in ("gate_up", "down"):
            timed = [
                (
                    prediction.stream_kernel(
                        one.kernel, counts[one.kernel.name], shape.inner, one.groups
                    )
                    .predict(work, machine)
                    .us,
                    one,
                )
                for one in of_stage(op, weights, tile, shape.inner)
            ]
            stages.append(min(timed, key=lambda pair: pair[0]))
        us = stages[0][0] + stages[1][0]
        if best is None or us < best[0]:
            best = (us, stages[0][1], stages[1][1])
    assert best is not None
    us, gate_up, down = best
    return row(
        shape,
        weights,
        num_tokens,
        tile=gate_up.kernel.token_tile,
        groups=(gate_up.groups, down.groups),
        basis="model",
        us=us,
        stock_us=None,
    )
