"""Measured times of the expert layer beside predicted ones, and constants that fit them better.

Of the cost model's constants two move the times of this package's kernels by whole percents: the
bandwidth of HBM, and the exponent with which resources overlap. Both are from other people's work.
Measured times (E4) say how wrong a prediction is, and give both anew; the others, the clocks of a
scattered segment among them, such times hardly tell (a tenth more moves them by less than 1 % on
average). The shipped constants stay as they are: what comes out here is kept in a folder of the
user's, to be judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from sglang_mi300a import cost_model
from sglang_mi300a.cost_model import MACHINE, Machine, Routing, StreamKernel
from sglang_mi300a.errors import UserError
from sglang_mi300a.moe.kernels import catalogue, prediction
from sglang_mi300a.moe.kernels.catalogue import WeightFormat
from sglang_mi300a.moe.kernels.prediction import KernelCounts, Shape
from sglang_mi300a.tables import Cell, Table

FEWEST_ROWS = 12
FEWEST_BATCH_SIZES = 4
"""Fewer cannot tell two constants apart from noise."""

HBM_TB_S = (1.5, 5.3)
"""Up to the specification's."""
OVERLAP = (1.05, 4.0)
"""From hardly any overlap to nearly perfect."""
_STEPS = 9
_ROUNDS = 6


@dataclass(frozen=True)
class Timed:
    """One measured layer and what predicts it.

    Attributes:
        num_tokens: Rows of the activations.
        us: Measured, both stages together.
        work: What the routing gives it to do.
        stages: Its two kernels.
    """

    num_tokens: int
    us: float
    work: Routing
    stages: tuple[StreamKernel, StreamKernel]

    def predicted_us(self, machine: Machine = MACHINE) -> float:
        """Return what the cost model says."""
        return sum(stage.predict(self.work, machine).us for stage in self.stages)

    def ratio(self, machine: Machine = MACHINE) -> float:
        """Return measured over predicted."""
        return self.us / self.predicted_us(machine)

    def is_inside(self) -> bool:
        """Return whether it lies in the band that predictions are quoted with."""
        small = self.num_tokens <= cost_model.SMALL_BATCH
        low, high = cost_model.SMALL_BATCH_BAND_PERCENT if small else cost_model.BAND_PERCENT
        return 1 + low / 100 <= self.ratio() <= 1 + high / 100


@dataclass(frozen=True)
class Refit:
    """Constants from measured times.

    Attributes:
        machine: With the two constants changed.
        before: Root mean square of ln(measured / predicted) with the shipped constants, and
        after: with these.
    """

    machine: Machine
    before: float
    after: float


def timed(table: Table, counts: Mapping[str, KernelCounts], where: str) -> list[Timed]:
    """Return the measured rows of a table of expert layers.

    Args:
        table: With operation ``moe_expert_layer``.
        counts: Of the kernels, by name.
        where: Named in errors.

    Raises:
        UserError: A row is of a kernel without counts, or of a shape the model is not cut to.
    """
    found = []
    for row in table.rows.values():
        if row["basis"] != "measured":
            continue
        shape = Shape(str(row["shape"]), _whole(row["experts"]), _whole(row["inner"]))
        num_tokens, tile = _whole(row["m"]), _whole(row["tile"])
        try:
            stages = _stages(shape, str(row["weights"]), tile, row, counts)
        except (KeyError, ValueError) as error:
            raise UserError(
                where,
                found=f"a row of {row['weights']}, tile {tile}, {shape} ({error})",
                allowed="kernels and shapes that this version ships",
                do="ingest it with the version that made it",
            ) from error
        work = prediction.routing(num_tokens, tile, shape)
        found.append(Timed(num_tokens, float(row["us"] or 0), work, stages))
    return found


def _stages(
    shape: Shape,
    weights: str,
    tile: int,
    row: Mapping[str, Cell],
    counts: Mapping[str, KernelCounts],
) -> tuple[StreamKernel, StreamKernel]:
    """Return the two kernels of a row; KeyError or ValueError where there are none."""
    if shape not in prediction.SHAPES:
        raise ValueError(f"no shape {shape}")
    found = []
    for op in ("gate_up", "down"):
        kernel = catalogue.matrix_kernel(op, cast("WeightFormat", weights), tile, shape.inner)
        groups = _whole(row[f"{op}_groups"])
        found.append(prediction.stream_kernel(kernel, counts[kernel.name], shape.inner, groups))
    return found[0], found[1]


def _whole(value: object) -> int:
    return int(str(value))


def error_of(rows: Sequence[Timed], machine: Machine) -> float:
    """Return the root mean square of ln(measured / predicted)."""
    return math.sqrt(sum(math.log(row.ratio(machine)) ** 2 for row in rows) / len(rows))


def refit(rows: Sequence[Timed], machine: Machine = MACHINE) -> Refit | None:
    """Return the constants that predict measured rows best; None if there are too few rows.

    A grid that is laid anew round its best point, each time finer.
    """
    if len(rows) < FEWEST_ROWS or len({row.num_tokens for row in rows}) < FEWEST_BATCH_SIZES:
        return None
    best, widths = machine, [HBM_TB_S, OVERLAP]
    for _ in range(_ROUNDS):
        grids = [np.linspace(low, high, _STEPS) for low, high in widths]
        tried = [
            replace(machine, hbm_tb_s=float(bandwidth), overlap=float(overlap))
            for bandwidth in grids[0]
            for overlap in grids[1]
        ]
        best = min([best, *tried], key=lambda one: error_of(rows, one))
        steps = [(high - low) / (_STEPS - 1) for low, high in widths]
        centre = (best.hbm_tb_s, best.overlap)
        widths = [
            (max(limit[0], at - step), min(limit[1], at + step))
            for at, step, limit in zip(centre, steps, (HBM_TB_S, OVERLAP), strict=True)
        ]
    return Refit(best, error_of(rows, machine), error_of(rows, best))
