"""How long the launches of an expert layer take on a device, each alone, in microseconds.

Weights are random bytes: what they say does not change the time. Before each sample a buffer larger
than the Infinity Cache is written, so that weights come from HBM as they do between 60 layers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from sglang_mi300a.moe import launching
from sglang_mi300a.moe.kernels import prediction, steps
from sglang_mi300a.moe.kernels.catalogue import WeightFormat
from sglang_mi300a.moe.kernels.prediction import Shape
from sglang_mi300a.moe.kernels.steps import Layer, Step
from sglang_mi300a.stream_layout import HIDDEN

_CACHE_BYTES = 512 << 20
"""Twice the Infinity Cache. Source: AMD CDNA 3 white paper, 256 MB a socket."""

_UNIT_WORDS = 4  # of a work unit; the first is its expert


class Timer(Protocol):
    """What times work on a device."""

    def samples_us(self, work: Callable[[], object], count: int) -> list[float]:
        """Return ``count`` times of ``work``, after one that is not counted."""


class EventTimer:
    """HIP events around each sample, weights not cached.

    Args:
        device: The device; its current stream is used.
    """

    def __init__(self, device: torch.device) -> None:
        self._overwritten = torch.empty(_CACHE_BYTES, dtype=torch.uint8, device=device)
        self._device = device

    def samples_us(self, work: Callable[[], object], count: int) -> list[float]:
        """Return ``count`` times of ``work``, after one that is not counted."""
        work()
        pairs = []
        for number in range(count):
            self._overwritten.fill_(number % 2)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize(self._device)
        return [begin.elapsed_time(end) * 1e3 for begin, end in pairs]


@dataclass(frozen=True)
class Weights:
    """Streams of one layer, uint8 ``[experts, bytes]``, and what they are."""

    w13: torch.Tensor
    w2: torch.Tensor
    shape: Shape


def random_weights(shape: Shape, weights: WeightFormat, device: torch.device) -> Weights:
    """Return streams of random bytes on a device."""
    layer = _layer(shape, weights, 1, 16, 1)
    w13, w2 = (
        torch.empty(
            (shape.experts, layer.stream_bytes(op) // shape.experts),
            dtype=torch.uint8,
            device=device,
        ).random_(0, 256)
        for op in ("gate_up", "down")
    )
    return Weights(w13, w2, shape)


class TimedLayer:
    """One batch through one layer, launch by launch.

    Attributes:
        layer: Sizes.
        ids: int32 ``[tokens, 10]``, drawn uniformly, each expert once a token.
        rows_of_experts: Rows that each local expert gets.

    Args:
        weights: Streams.
        weight_format: What they hold.
        num_tokens: Rows of the activations.
        tile: Rows of a work unit.
        timer: What times.
        seed: Of the routing.
    """

    def __init__(
        self,
        weights: Weights,
        weight_format: WeightFormat,
        num_tokens: int,
        tile: int,
        timer: Timer,
        seed: int = 0,
    ) -> None:
        device = weights.w13.device
        self.layer = _layer(
            weights.shape, weight_format, num_tokens, tile, launching.num_compute_units(device)
        )
        self._timer = timer
        self._device = device
        experts = max(prediction.EXPERTS, weights.shape.experts)
        draw = torch.Generator().manual_seed(seed)
        ids = torch.rand((num_tokens, experts), generator=draw).topk(self.layer.top_k).indices
        ids[ids >= weights.shape.experts] = -1  # another rank's
        self.ids = ids.to(torch.int32).to(device)
        here = ids[ids >= 0]
        self.rows_of_experts = torch.bincount(here, minlength=weights.shape.experts).tolist()
        self._buffers = self._make_buffers(weights)

    def _make_buffers(self, weights: Weights) -> dict[str, torch.Tensor | None]:
        tokens, top_k = self.ids.shape
        device = self._device
        buffers: dict[str, torch.Tensor | None] = {
            name: torch.zeros(num_bytes, dtype=torch.uint8, device=device).view(
                launching.DTYPES[name]
            )
            for name, num_bytes in steps.scratch_bytes(self.layer).items()
        }
        hidden = torch.ones((tokens, HIDDEN), dtype=torch.bfloat16, device=device)
        buffers |= {
            steps.SCALED: torch.zeros_like(hidden),
            steps.HIDDEN_STATES: hidden,
            steps.TOPK_IDS: self.ids,
            steps.TOPK_WEIGHTS: torch.full((tokens, top_k), 1 / top_k, device=device),
            steps.W13_STREAM: weights.w13,
            steps.W2_STREAM: weights.w2,
            steps.OUT: torch.empty_like(hidden),
        }
        return buffers

    def _median_us(self, step: Step, count: int) -> float:
        def work() -> None:
            launching.launch(step, self._buffers, self._device)

        return statistics.median(self._timer.samples_us(work, count))

    def sort_us(self, count: int) -> float:
        """Return the time of sorting; the other launches need it done."""
        return self._median_us(steps.sort_pairs(self.layer), count)

    def sum_us(self, count: int) -> float:
        """Return the time of the slot sum."""
        return self._median_us(steps.sum_slots(self.layer), count)

    def stage_us(
        self, op: str, count: int, *, groups: int = 0, weights: WeightFormat | None = None
    ) -> float:
        """Return the time of a stage.

        Args:
            op: ``gate_up`` or ``down``.
            count: Samples, of which the median is taken.
            groups: Workgroups a compute unit; 0 = as many as it holds.
            weights: Another format, to time a part.
        """
        layer = replace(
            self.layer,
            gate_up_groups=groups,
            down_groups=groups,
            weights=weights or self.layer.weights,
        )
        step = steps.gate_up(layer) if op == "gate_up" else steps.down(layer)
        return self._median_us(step, count)

    def read_one_expert_only(self) -> None:
        """Make every work unit read local expert 0, whose weights then stay in the L2 caches."""
        work = self._buffers[steps.WORK]
        assert work is not None
        work.view(-1, _UNIT_WORDS)[1:, 0] = 0

    def run_us(self, run: Callable[..., object], count: int) -> float:
        """Return the time of another way to run this batch, given states, ids and weights."""
        names = (steps.HIDDEN_STATES, steps.TOPK_IDS, steps.TOPK_WEIGHTS)
        given = [self._buffers[name] for name in names]
        return statistics.median(self._timer.samples_us(lambda: run(*given), count))


def stage_bytes(layer: Layer, op: str, experts: int) -> float:
    """Return the stream bytes of so many experts in one stage."""
    return layer.stream_bytes(op) / layer.num_experts * experts


def _layer(shape: Shape, weights: WeightFormat, num_tokens: int, tile: int, num_cus: int) -> Layer:
    return Layer(
        num_tokens=num_tokens,
        top_k=prediction.TOP_K,
        num_experts=shape.experts,
        hidden=HIDDEN,
        inner=shape.inner,
        weights=weights,
        token_tile=tile,
        num_cus=num_cus,
    )
