"""The launches of an expert layer and the parts of its first stage, timed beside predictions.

Three timings of the first stage say where the cost model is right: the stream's loads alone, the
decode alone (all units read one expert, which the L2 caches then hold), and the same arithmetic on
weights in a checkpoint's order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglang_mi300a import cost_model
from sglang_mi300a.cost_model import MACHINE
from sglang_mi300a.moe.kernels import prediction
from sglang_mi300a.moe.kernels.catalogue import WeightFormat
from sglang_mi300a.moe.layer_timing import TimedLayer, Timer, Weights, stage_bytes

LEAST_TB_S = 3.0
"""A stream slower than that contradicts the model, which has 3.5."""

_CHECKPOINT_SIZES = (512, 256)
_ASKED_AT = 337


@dataclass(frozen=True)
class PartTimes:
    """One batch: medians in microseconds, measured; and predicted from executed counts.

    Attributes:
        num_tokens: Rows of the activations.
        tile: Rows of a unit.
        experts: Distinct experts that the batch chose.
        first_stage_bytes: Their streams' bytes.
        measured_us: By part: ``sort``, ``gate_up``, ``down``, ``sum_slots``, ``loads_only``,
            ``decode_only``, and ``checkpoint`` where its kernel fits the sizes.
        predicted_us: The same parts but sorting and the sum.
    """

    num_tokens: int
    tile: int
    experts: int
    first_stage_bytes: float
    measured_us: Mapping[str, float]
    predicted_us: Mapping[str, float]

    @property
    def layer_us(self) -> float:
        """The four launches of the layer."""
        return sum(self.measured_us[name] for name in ("sort", "gate_up", "down", "sum_slots"))

    def tb_s(self, part: str) -> float:
        """Return the rate at which a part of the first stage reads weights."""
        return self.first_stage_bytes / self.measured_us[part] / 1e6


def time_parts(
    weights: Weights,
    weight_format: WeightFormat,
    num_tokens: int,
    tile: int,
    timer: Timer,
    samples: int,
) -> PartTimes:
    """Return the times of one batch.

    Args:
        weights: Streams.
        weight_format: What they hold, ``subnormals`` or ``bf8``.
        num_tokens: Rows of the activations.
        tile: Rows of a unit.
        timer: What times.
        samples: Of each part; the median is taken.
    """
    layer = TimedLayer(weights, weight_format, num_tokens, tile, timer)
    measured = {
        "sort": layer.sort_us(samples),
        "gate_up": layer.stage_us("gate_up", samples),
        "down": layer.stage_us("down", samples),
        "sum_slots": layer.sum_us(samples),
        "loads_only": layer.stage_us("gate_up", samples, weights="loads_only"),
    }
    shape = weights.shape
    if (shape.experts, shape.inner) == _CHECKPOINT_SIZES:
        measured["checkpoint"] = layer.stage_us("gate_up", samples, weights="checkpoint")
    layer.read_one_expert_only()
    measured["decode_only"] = layer.stage_us("gate_up", samples)
    experts = sum(rows > 0 for rows in layer.rows_of_experts)
    work = cost_model.counted_routing(num_tokens, tile, layer.rows_of_experts)
    counts = prediction.shipped_counts()
    predicted = {
        part: prediction.part_us(part, work, weight_format, shape.inner, counts)
        for part in prediction.PARTS
        if part in measured
    }
    return PartTimes(
        num_tokens=num_tokens,
        tile=tile,
        experts=experts,
        first_stage_bytes=stage_bytes(layer.layer, "gate_up", experts),
        measured_us=measured,
        predicted_us=predicted,
    )


@dataclass(frozen=True)
class Answer:
    """What measurements say to a question that the cost model leaves open.

    Attributes:
        question: In words.
        measured: With its unit.
        predicted: Likewise.
        holds: Whether the model stands.
    """

    question: str
    measured: str
    predicted: str
    holds: bool


def answers(times: Sequence[PartTimes]) -> list[Answer]:
    """Return what the batch nearest to 337 tokens says, by its faster tile."""
    nearest = min(abs(one.num_tokens - _ASKED_AT) for one in times)
    at = min(
        (one for one in times if abs(one.num_tokens - _ASKED_AT) == nearest),
        key=lambda one: one.layer_us,
    )
    measured, predicted = at.measured_us, at.predicted_us
    found = []
    if "checkpoint" in measured:
        ratio = measured["checkpoint"] / measured["gate_up"]
        want = predicted["checkpoint"] / predicted["gate_up"]
        found.append(
            Answer(
                "what does the checkpoint's order cost (time over the stream's)?",
                f"{ratio:.2f}", f"{want:.2f}", _is_near(ratio, want),
            )
        )  # fmt: skip
    rate = at.tb_s("loads_only")
    want_rate = at.first_stage_bytes / predicted["loads_only"] / 1e6
    found.append(
        Answer(
            f"how fast does the stream alone run (below {LEAST_TB_S} TB/s the model is wrong)?",
            f"{rate:.2f} TB/s", f"{want_rate:.2f} TB/s", rate >= LEAST_TB_S,
        )
    )  # fmt: skip
    found.append(
        Answer(
            "how long is the decode alone, weights in the L2 caches?",
            f"{measured['decode_only']:.0f} us", f"{predicted['decode_only']:.0f} us",
            _is_near(measured["decode_only"], predicted["decode_only"]),
        )
    )  # fmt: skip
    exponent = overlap_exponent(
        measured["loads_only"], measured["decode_only"], measured["gate_up"]
    )
    found.append(
        Answer(
            "how well do loads and decode overlap (1 not at all, 3 nearly all)?",
            "perfectly" if exponent is None else f"{exponent:.2f}", f"{MACHINE.overlap:.2f}",
            exponent is None or exponent >= 1.3,
        )
    )  # fmt: skip
    return found


def overlap_exponent(one: float, other: float, both: float) -> float | None:
    """Return q of ``both = (one^q + other^q)^(1/q)``; None where both take no longer than one."""
    if both <= max(one, other):
        return None
    if both >= one + other:
        return 1.0
    low, high = 1.0, 64.0
    for _ in range(60):
        middle = (low + high) / 2
        total = math.exp(math.log(one**middle + other**middle) / middle)
        low, high = (middle, high) if total > both else (low, middle)
    return low


def _is_near(measured: float, predicted: float) -> bool:
    low, high = cost_model.BAND_PERCENT
    return 1 + low / 100 <= measured / predicted <= 1 + high / 100
