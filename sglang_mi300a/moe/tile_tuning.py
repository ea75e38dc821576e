"""Time every tile and grid of an expert layer on a device, and make a table of what is fastest.

Results are kept as they come, a line a batch, so that a run goes on where the last one stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_mi300a.errors import UserError
from sglang_mi300a.moe.kernels import candidates
from sglang_mi300a.moe.kernels.candidates import StageCandidate
from sglang_mi300a.moe.kernels.catalogue import WeightFormat
from sglang_mi300a.moe.kernels.prediction import Shape
from sglang_mi300a.moe.layer_timing import TimedLayer, Timer, Weights
from sglang_mi300a.tables import Cell, Table

STOCK_SAMPLES = 3
"""Of what would run without these kernels: it is slow."""

SECONDS_A_BATCH = 5.0
"""Estimate, for plans: 20 samples of every candidate, and the rung below."""

Run = Callable[..., object]


@dataclass(frozen=True)
class Tuned:
    """The fastest launch of one batch.

    Attributes:
        num_tokens: M.
        tile: Rows of a unit.
        gate_up_groups: Workgroups a compute unit in the first stage, and
        down_groups: in the second.
        us: Both stages.
        around_us: Sorting and the slot sum.
        stock_us: The whole layer on the rung below.
    """

    num_tokens: int
    tile: int
    gate_up_groups: int
    down_groups: int
    us: float
    around_us: float
    stock_us: float

    @property
    def is_faster(self) -> bool:
        """Whether the whole layer is faster than the rung below."""
        return self.us + self.around_us < self.stock_us


class TuningRecord:
    """Results so far, one JSON line each; a torn last line is as if it were not there.

    Attributes:
        path: Their file.
        results: By number of tokens.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[int, Tuned] = {}
        if not path.is_file():
            return
        text = path.read_text(encoding="utf-8")
        whole, _, torn = text.rpartition("\n")
        try:
            for line in whole.splitlines():
                one = Tuned(**json.loads(line))
                self.results[one.num_tokens] = one
        except (TypeError, ValueError) as error:
            raise UserError(
                f"results so far in {path}",
                found=str(error),
                allowed="a JSON line a batch, as this command writes them",
                do="remove the file; the batches are timed again",
            ) from error
        if torn:
            path.write_text(whole + "\n" if whole else "", encoding="utf-8")

    def add(self, one: Tuned) -> None:
        """Keep a result."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(one)) + "\n")
        self.results[one.num_tokens] = one


def tune_batch(
    weights: Weights,
    weight_format: WeightFormat,
    num_tokens: int,
    timer: Timer,
    stock: Run,
    samples: int,
) -> Tuned:
    """Return the fastest launch of a batch.

    Args:
        weights: Streams.
        weight_format: What they hold.
        num_tokens: M.
        timer: What times.
        stock: What would run otherwise, given states, ids and routing weights.
        samples: Of each candidate; the median is taken.
    """
    shape = weights.shape
    found: list[Tuned] = []
    stock_us = 0.0
    for tile in candidates.TILES:
        layer = TimedLayer(weights, weight_format, num_tokens, tile, timer)
        stock_us = stock_us or layer.run_us(stock, min(samples, STOCK_SAMPLES))
        around_us = layer.sort_us(samples)
        stages: list[tuple[float, StageCandidate]] = []
        for op in ("gate_up", "down"):
            timed = [
                (layer.stage_us(op, samples, groups=one.groups), one)
                for one in candidates.of_stage(op, weight_format, tile, shape.inner)
            ]
            stages.append(min(timed, key=lambda pair: pair[0]))
        around_us += layer.sum_us(samples)
        found.append(
            Tuned(
                num_tokens=num_tokens,
                tile=tile,
                gate_up_groups=stages[0][1].groups,
                down_groups=stages[1][1].groups,
                us=stages[0][0] + stages[1][0],
                around_us=around_us,
                stock_us=stock_us,
            )
        )
    return min(found, key=lambda one: one.us + one.around_us)


def table_of(
    results: Sequence[Tuned],
    shape: Shape,
    weight_format: WeightFormat,
    *,
    device: Mapping[str, Cell],
    software: Mapping[str, str],
    made: Mapping[str, Cell],
) -> Table | None:
    """Return the table of what is faster than the rung below, or None if nothing is."""
    rows: dict[tuple[Cell, ...], dict[str, Cell]] = {}
    for one in sorted(results, key=lambda tuned: tuned.num_tokens):
        if one.is_faster:
            rows[candidates.key(shape, weight_format, one.num_tokens)] = candidates.row(
                shape,
                weight_format,
                one.num_tokens,
                tile=one.tile,
                groups=(one.gate_up_groups, one.down_groups),
                basis="measured",
                us=one.us,
                stock_us=one.stock_us,
            )
    if not rows:
        return None
    return Table(
        op=candidates.OP,
        device=device,
        software=software,
        made=made,
        key=candidates.KEY,
        columns=candidates.COLUMNS,
        rows=rows,
    )


def merged(new: Table, old: Table | None) -> Table:
    """Return a new table with the rows of an old one for other sizes or weights.

    Args:
        new: Of one shape and weight format.
        old: Made on the same device with the same software, or None.
    """
    if old is None:
        return new
    same = (dict(new.device), dict(new.software)) == (dict(old.device), dict(old.software))
    ours = {key[:3] for key in new.rows}
    kept = {key: row for key, row in old.rows.items() if same and key[:3] not in ours}
    rows = {**kept, **new.rows}
    ordered = {key: rows[key] for key in sorted(rows, key=_place)}
    return Table(new.op, new.device, new.software, new.made, new.key, new.columns, ordered)


def _place(key: tuple[Cell, ...]) -> tuple[int, int, str, int]:
    experts, inner, weights, num_tokens = key
    return int(str(experts)), int(str(inner)), str(weights), int(str(num_tokens))
