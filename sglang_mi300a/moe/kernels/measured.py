"""Measured times of the expert layer, each with the prediction that it is evidence for or against.

They come from tables of ``tune moe`` (a layer's two stages) and from results of ``kernels bench``
(parts of a layer). Routing is taken as its expectation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from sglang_mi300a import cost_model
from sglang_mi300a.cost_model import Machine
from sglang_mi300a.errors import UserError
from sglang_mi300a.model_refit import Measurement
from sglang_mi300a.moe.kernels import catalogue, prediction
from sglang_mi300a.moe.kernels.catalogue import WeightFormat
from sglang_mi300a.moe.kernels.prediction import KernelCounts, Shape
from sglang_mi300a.tables import Cell, Table

_BENCH_KEYS = {"device", "shape", "weights", "samples", "batches", "answers"}


def of_table(table: Table, counts: Mapping[str, KernelCounts], where: str) -> list[Measurement]:
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
        weights, num_tokens = str(row["weights"]), _whole(row["m"])
        try:
            if shape not in prediction.SHAPES:
                raise ValueError(f"no shape {shape}")
            predict = _both_stages(shape, weights, num_tokens, row, counts)
        except (KeyError, ValueError) as error:
            found_row = f"a row of {weights}, tile {row['tile']}, {shape} ({error})"
            raise _unknown(where, found_row) from error
        found.append(
            Measurement(
                claim=f"expert layer {shape.name} {weights}",
                num_tokens=num_tokens,
                what=f"both stages, tile {row['tile']}",
                us=float(row["us"] or 0),
                predict=predict,
                band_percent=cost_model.band_percent(num_tokens),
            )
        )
    return found


def _both_stages(
    shape: Shape,
    weights: str,
    num_tokens: int,
    row: Mapping[str, Cell],
    counts: Mapping[str, KernelCounts],
) -> Callable[[Machine], float]:
    """Return what predicts a row; KeyError or ValueError where nothing does."""
    tile = _whole(row["tile"])
    stages = []
    for op in ("gate_up", "down"):
        kernel = catalogue.matrix_kernel(op, cast("WeightFormat", weights), tile, shape.inner)
        groups = _whole(row[f"{op}_groups"])
        stages.append(prediction.stream_kernel(kernel, counts[kernel.name], shape.inner, groups))
    work = prediction.routing(num_tokens, tile, shape)
    return lambda machine: sum(stage.predict(work, machine).us for stage in stages)


def is_bench(result: object) -> bool:
    """Return whether a result is one of ``kernels bench --json``."""
    return isinstance(result, dict) and set(result) == _BENCH_KEYS


def of_bench(
    result: Mapping[str, Any], counts: Mapping[str, KernelCounts], where: str
) -> list[Measurement]:
    """Return the parts of a layer that ``kernels bench --json`` timed.

    Args:
        result: What it printed.
        counts: Of the kernels, by name.
        where: Named in errors.

    Raises:
        UserError: It is not as that command prints it, or of a shape or kernel not known.
    """
    try:
        shape = next(one for one in prediction.SHAPES if one.name == result["shape"])
        weights = cast("WeightFormat", str(result["weights"]))
        found = []
        for batch in result["batches"]:
            num_tokens, tile = _whole(batch["num_tokens"]), _whole(batch["tile"])
            for part in prediction.PARTS:
                if part not in batch["measured_us"]:
                    continue
                found.append(
                    Measurement(
                        claim=f"{part} {shape.name} {weights}",
                        num_tokens=num_tokens,
                        what=f"{part}, tile {tile}",
                        us=_time(batch["measured_us"][part], f"{where}: M {num_tokens}, {part}"),
                        predict=_part(part, num_tokens, tile, shape, weights, counts),
                        band_percent=cost_model.band_percent(num_tokens),
                    )
                )
        return found
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise _unknown(
            where,
            f"{type(error).__name__} {error} in a result of shape "
            f"{result.get('shape')!r}, weights {result.get('weights')!r}",
        ) from error


def _part(
    part: str,
    num_tokens: int,
    tile: int,
    shape: Shape,
    weights: WeightFormat,
    counts: Mapping[str, KernelCounts],
) -> Callable[[Machine], float]:
    work = prediction.routing(num_tokens, tile, shape)

    def predict(machine: Machine) -> float:
        return prediction.part_us(part, work, weights, shape.inner, counts, machine)

    predict(cost_model.MACHINE)  # KeyError or ValueError here, where it can be told
    return predict


def _time(value: object, where: str) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise UserError(
            where,
            found=f"{value!r} us",
            allowed="a positive finite time",
            do="measure again: sglang-mi300a kernels bench --json",
        )
    return float(value)


def _whole(value: object) -> int:
    return int(str(value))


def _unknown(where: str, found: str) -> UserError:
    return UserError(
        where,
        found=found,
        allowed="kernels and shapes that this version ships",
        do="ingest it with the version that made it",
    )
