"""One small expert layer on a rung, compared with the reference.

The layer has the served model's sizes but few experts, every code and seven octaves of scales,
tokens of several batches, and slots without an expert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sglang_mi300a import layout as layouts
from sglang_mi300a import mxfp4
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher.failure import LauncherError
from sglang_mi300a.moe.reference import expert_layer
from sglang_mi300a.moe.rungs import Experts, ExpertSizes, Rung

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
    small = replace(sizes, num_experts=NUM_EXPERTS, top_k=_TOP_K, weights="mxfp4")
    plain = _weights(small)
    try:
        prepared = rung.prepare(_experts(small, plain, device))
        found = [_distance(rung, prepared, small, plain, device, n) for n in batches]
    except (UserError, LauncherError, RuntimeError, ValueError) as error:
        return SelfTest(rung.name, None, batches, str(error))
    return SelfTest(rung.name, max(found, key=lambda x: (np.isnan(x), x)), batches)


def _weights(sizes: ExpertSizes) -> dict[str, np.ndarray[Any, np.dtype[np.uint8]]]:
    draw = np.random.default_rng(0)
    result = {}
    for projection, rows, k in (
        ("w13", 2 * sizes.inner, sizes.hidden),
        ("w2", sizes.hidden, sizes.inner),
    ):
        shape = (sizes.num_experts, rows, k // 2)
        result[f"{projection}_weight"] = draw.integers(0, 256, shape, dtype=np.uint8)
        shape = (sizes.num_experts, rows, k // mxfp4.BLOCK)
        result[f"{projection}_weight_scale"] = draw.integers(114, 121, shape, dtype=np.uint8)
    return result


def _experts(
    sizes: ExpertSizes, plain: dict[str, np.ndarray[Any, np.dtype[np.uint8]]], device: torch.device
) -> Experts:
    layout = layouts.named(sizes.layout, where="self-test of the expert layer")
    stored: dict[str, list[np.ndarray[Any, np.dtype[np.uint8]]]] = {}
    for expert in range(sizes.num_experts):
        for projection in ("w13", "w2"):
            names = (f"{projection}_weight", f"{projection}_weight_scale")
            for name, data in layout.apply({n: plain[n][expert] for n in names}).items():
                stored.setdefault(name, []).append(data)
    tensors = {n: torch.from_numpy(np.stack(parts)).to(device) for n, parts in stored.items()}
    return Experts("self-test", sizes, tensors)


def _distance(
    rung: Rung,
    prepared: Any,
    sizes: ExpertSizes,
    plain: dict[str, np.ndarray[Any, np.dtype[np.uint8]]],
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
    tensors = {name: torch.from_numpy(array) for name, array in plain.items()}
    want = expert_layer(
        hidden.float(),
        tensors["w13_weight"],
        tensors["w13_weight_scale"],
        tensors["w2_weight"],
        tensors["w2_weight_scale"],
        ids,
        weights,
    ).double()
    got = rung.apply(prepared, hidden.to(device), ids.to(device), weights.to(device))
    return float((got.cpu().double() - want).norm() / want.norm())
