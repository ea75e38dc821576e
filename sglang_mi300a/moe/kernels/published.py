"""Published timings of other people's expert kernels, and what those kernels execute.

Both are for this model on an MI300A, by the same people. ``grid`` is theirs for stock SGLang: the
checkpoint's layout, 16-token blocks, tensor parallel (512 experts of 256 neurons a rank), uniform
routing. ``persistent`` is theirs for an engine of their own: whole experts (128 of 1024 neurons a
rank), the real router's choices. Times are measured by them (E4); counts are executed instructions
of code objects built from their descriptions.

Source: the public experiment records vibesys-playground/qwen3.5-397b-mi300a-sglang-vibesys-20260920
(commit 0bda0d4) and vibesys-playground/qwen3.5-397b-mi300a-bespoke-vibesys-20260920 (42ee9ac).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sglang_mi300a import cost_model
from sglang_mi300a.cost_model import GridKernel, SegmentKernel

_HIDDEN_BYTES = 8192
_INNER_BYTES = 512
_WHOLE_INNER_BYTES = 2048

GATE_UP = GridKernel(
    issue_clk=21_116,
    waves=8,
    workgroups_per_cu=1,
    workgroups_per_unit=8,
    weight_segments=8_713,
    token_segments=8_192,
    weight_bytes=139_264,
    hbm_round_trips=3,
    cache_round_trips=16,
    token_bytes=_HIDDEN_BYTES,
    row_bytes=_INNER_BYTES,
)
"""32 output columns a workgroup: from 160 blocks of 16 rows on."""

SMALL_GATE_UP = GridKernel(
    issue_clk=11_104,
    waves=4,
    workgroups_per_cu=8,
    workgroups_per_unit=16,
    weight_segments=5_128,
    token_segments=16_384,
    weight_bytes=69_632,
    hbm_round_trips=2,
    cache_round_trips=20,
    token_bytes=_HIDDEN_BYTES,
    row_bytes=_INNER_BYTES,
)
"""16 output columns a workgroup: below that."""

DOWN = GridKernel(
    issue_clk=1_752,
    waves=2,
    workgroups_per_cu=7,
    workgroups_per_unit=64,
    weight_segments=171,
    token_segments=512,
    weight_bytes=8_704,
    hbm_round_trips=2,
    cache_round_trips=15,
    token_bytes=0,
    row_bytes=_INNER_BYTES + _HIDDEN_BYTES,
)

PERSISTENT_GATE_UP = SegmentKernel(
    issue_clk=5_572,
    items_per_unit=64,
    weight_segments=4_352,
    token_segments=8_192,
    weight_bytes=69_632,
    hbm_round_trips=1,
    cache_round_trips=4,
    token_bytes=_HIDDEN_BYTES,
    row_bytes=_WHOLE_INNER_BYTES,
)
PERSISTENT_DOWN = SegmentKernel(
    issue_clk=2_516,
    items_per_unit=64,
    weight_segments=2_096,
    token_segments=8_192,
    weight_bytes=34_816,
    hbm_round_trips=1,
    cache_round_trips=4,
    token_bytes=0,
    row_bytes=_WHOLE_INNER_BYTES + _HIDDEN_BYTES,
)

LOCAL_EXPERTS = 128
POPULARITY_SIGMA = 0.80
LOAD_SHARE = 0.88
"""The real router's choices, as a lognormal popularity that gives the published numbers of distinct
experts (115, 122, 128 at 256, 512, 1024 tokens) and of units an expert (1.56, 2.65 at 1024, 2048)
within 2 %."""

Kernels = Literal["grid", "grid, gate_up alone", "small grid", "persistent"]


@dataclass(frozen=True)
class Timing:
    """One published time of the routed experts of a layer.

    Attributes:
        kernels: Which.
        num_tokens: M.
        measured_us: Published.
        model_us: What the model gave when its constants were fitted.
        weights_cached: The benchmark repeats one routing whose weights the Infinity Cache holds.
    """

    kernels: Kernels
    num_tokens: int
    measured_us: float
    model_us: float
    weights_cached: bool = False


TIMINGS = (
    Timing("grid", 16, 145.6, 157.8, weights_cached=True),
    Timing("grid", 64, 433.5, 441.3),
    Timing("grid", 337, 663.8, 674.5),
    Timing("grid", 919, 1167.1, 1153.9),
    Timing("grid", 2048, 2202.1, 2172.1),
    Timing("grid, gate_up alone", 64, 313.9, 299.8),
    Timing("small grid", 16, 169.8, 182.4, weights_cached=True),
    Timing("small grid", 64, 528.9, 513.7),
    Timing("persistent", 64, 307, 308),
    Timing("persistent", 256, 465, 476),
    Timing("persistent", 512, 562, 566),
    Timing("persistent", 1024, 758, 753),
    Timing("persistent", 2048, 1268, 1175),
)
"""What the model's three constants were fitted to."""


def predicted_us(timing: Timing) -> float:
    """Return what the model gives for a published timing."""
    tokens = timing.num_tokens
    if timing.kernels == "persistent":
        routing = cost_model.lognormal_routing(
            tokens, 16, sigma=POPULARITY_SIGMA, share=LOAD_SHARE, local=LOCAL_EXPERTS
        )
        both = (PERSISTENT_GATE_UP.predict(routing), PERSISTENT_DOWN.predict(routing))
        return sum(one.us for one in both) + cost_model.MACHINE.eager_us
    routing = cost_model.uniform_routing(tokens, 16)
    gate_up = SMALL_GATE_UP if timing.kernels == "small grid" else GATE_UP
    us = gate_up.predict(routing, weights_cached=timing.weights_cached).us
    if timing.kernels != "grid, gate_up alone":
        us += DOWN.predict(routing, weights_cached=timing.weights_cached).us
    return us
