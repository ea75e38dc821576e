"""One small expert layer on a rung, compared with the reference.

The layer has the served model's sizes but few experts, every code and seven octaves of scales,
tokens of several batches, and slots without an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sglang_mi300a import layout as layouts
from sglang_mi300a import mxfp4
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher.failure import LauncherError
from sglang_mi300a.layout import Bytes
from sglang_mi300a.moe.reference import dequantise, routed_sum
from sglang_mi300a.moe.rungs import Experts, ExpertSizes, Rung
from sglang_mi300a.moe.stream_tensors import make_bf16_streams

TOLERANCE = 4e-3
"""Relative L2. Inner values, rows and result each rounded to bf16 once are at sqrt(3) * 1.7e-3 =
2.9e-3; a wrong weight, row or expert is at 1e-2 or far above."""

NUM_EXPERTS = 3
_TOP_K = 2
_SMALL, _LARGE = 9, 650
"""Tokens: below a tile of 16, and in tiles of 32."""


@dataclass(frozen=True)
class SelfTest:
    """What a rung gave.

    Attributes:
        rung: Its name.
        relative_l2: Largest distance over the batches; None where it gave nothing.
        batches: Tokens of each batch.
        error: What it stopped with, or "".
        tolerance: Largest distance that passes.
    """

    rung: str
    relative_l2: float | None
    batches: tuple[int, ...]
    error: str = ""
    tolerance: float = TOLERANCE

    @property
    def passed(self) -> bool:
        """Whether every batch was close enough; not so for NaN."""
        return self.relative_l2 is not None and self.relative_l2 < self.tolerance

    def in_words(self) -> str:
        """Return the result in one phrase."""
        if self.relative_l2 is None:
            return f"self-test failed: {self.error}"
        verdict = "passed" if self.passed else "FAILED"
        return f"self-test {verdict}: relative L2 {self.relative_l2:.2g} of {self.tolerance:.2g}"


def run(rung: Rung, device: torch.device, sizes: ExpertSizes) -> SelfTest:
    """Return how a rung does on a small layer like those of ``sizes``.

    Args:
        rung: One that says it can run there.
        device: The device; on the CPU only the small batch is run.
        sizes: Of the served layers; the number of experts is lowered.
    """
    batches = (_SMALL,) if device.type == "cpu" else (_SMALL, _LARGE)
    small = replace(sizes, num_experts=NUM_EXPERTS, top_k=_TOP_K)
    layer = _bf16_layer(small) if small.weights == "bf16" else _mxfp4_layer(small)
    tensors = {name: tensor.to(device) for name, tensor in layer.stored.items()}
    try:
        prepared = rung.prepare(Experts("self-test", small, tensors))
        found = [_distance(rung, prepared, small, layer, device, n) for n in batches]
    except (UserError, LauncherError, RuntimeError, ValueError) as error:
        return SelfTest(rung.name, None, batches, str(error))
    return SelfTest(rung.name, max(found, key=lambda x: (np.isnan(x), x)), batches)


@dataclass(frozen=True, eq=False)
class _Layer:
    """A small layer: as it is stored, and each expert's exact float32 matrices."""

    stored: dict[str, torch.Tensor]
    w13: Callable[[int], torch.Tensor]
    w2: Callable[[int], torch.Tensor]


def _matrices(sizes: ExpertSizes) -> tuple[tuple[str, int, int], ...]:
    """Return (projection, rows, K) of both projections."""
    return ("w13", 2 * sizes.inner, sizes.hidden), ("w2", sizes.hidden, sizes.inner)


def _mxfp4_layer(sizes: ExpertSizes) -> _Layer:
    draw = np.random.default_rng(0)
    plain: dict[str, Bytes] = {}
    for projection, rows, k in _matrices(sizes):
        shape = (sizes.num_experts, rows, k // 2)
        plain[f"{projection}_weight"] = draw.integers(0, 256, shape, dtype=np.uint8)
        shape = (sizes.num_experts, rows, k // mxfp4.BLOCK)
        plain[f"{projection}_weight_scale"] = draw.integers(114, 121, shape, dtype=np.uint8)
    layout = layouts.named(sizes.layout, where="self-test of the expert layer")
    stored: dict[str, list[Bytes]] = {}
    for expert in range(sizes.num_experts):
        for projection, _, _ in _matrices(sizes):
            names = (f"{projection}_weight", f"{projection}_weight_scale")
            for name, data in layout.apply({n: plain[n][expert] for n in names}).items():
                stored.setdefault(name, []).append(data)
    exact = {name: torch.from_numpy(array.copy()) for name, array in plain.items()}

    def matrix(projection: str) -> Callable[[int], torch.Tensor]:
        weight, scale = exact[f"{projection}_weight"], exact[f"{projection}_weight_scale"]
        return lambda expert: dequantise(weight[expert], scale[expert])

    tensors = {name: torch.from_numpy(np.stack(parts)) for name, parts in stored.items()}
    return _Layer(tensors, matrix("w13"), matrix("w2"))


def _bf16_layer(sizes: ExpertSizes) -> _Layer:
    draw = np.random.default_rng(0)
    exact, stored = {}, {}
    for projection, rows, k in _matrices(sizes):
        values = draw.standard_normal((sizes.num_experts, rows, k), np.float32) * np.float32(0.02)
        weights = torch.from_numpy(values).bfloat16()
        exact[projection] = weights.float()
        stored[f"{projection}_stream"] = make_bf16_streams(projection, weights)
    return _Layer(stored, exact["w13"].__getitem__, exact["w2"].__getitem__)


def _distance(
    rung: Rung,
    prepared: Any,
    sizes: ExpertSizes,
    layer: _Layer,
    device: torch.device,
    num_tokens: int,
) -> float:
    draw = np.random.default_rng(num_tokens)
    states = draw.standard_normal((num_tokens, sizes.hidden), np.float32)
    hidden = torch.from_numpy(states).to(sizes.activations)
    order = draw.random((num_tokens, sizes.num_experts)).argsort(axis=1)
    ids = torch.from_numpy(order[:, : sizes.top_k].astype(np.int32))
    ids[3, 0] = -1
    ids[5] = -1
    weights = torch.from_numpy(draw.random((num_tokens, sizes.top_k), np.float32))
    want = routed_sum(hidden.float(), layer.w13, layer.w2, sizes.num_experts, ids, weights)
    got = rung.apply(prepared, hidden.to(device), ids.to(device), weights.to(device))
    wide = want.double()
    return float((got.cpu().double() - wide).norm() / wide.norm())
