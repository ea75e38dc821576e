"""Run the launches of an expert layer on the interpreter, and what they are compared with."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from sglang_mi300a import mxfp4, stream_layout
from sglang_mi300a.moe.kernels import steps as launches
from sglang_mi300a.moe.kernels.restripe import restriped
from sglang_mi300a.moe.kernels.steps import Layer
from sglang_mi300a.moe.reference import expert_layer
from tests import repository
from tests.gfx942 import toolchain
from tests.gfx942.counters import Counters
from tests.gfx942.machine import Machine

HIDDEN = stream_layout.HIDDEN
SOURCE = repository.ROOT / "csrc" / "moe" / "moe.hip"


@cache
def machine() -> Machine:
    """Return the room's code object, loaded."""
    return Machine(toolchain.compile_hip(SOURCE))


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Return bf16 bits (uint16), to nearest, ties to even."""
    return torch.from_numpy(np.asarray(values, np.float32)).bfloat16().view(torch.uint16).numpy()


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """Return the float32 values of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Weights:
    """Experts as the checkpoint has them: MXFP4, or bf16 where the scales are None."""

    w13: np.ndarray
    w13_scale: np.ndarray | None
    w2: np.ndarray
    w2_scale: np.ndarray | None

    @property
    def num_experts(self) -> int:
        return len(self.w13)

    @property
    def inner(self) -> int:
        return self.w13.shape[1] // 2


@cache
def random_weights(num_experts: int, inner: int, *, bf16: bool = False, seed: int = 0) -> Weights:
    """Return random experts: every code, scales of seven octaves; values about 0.02 in size."""
    rng = np.random.default_rng(seed)
    if bf16:
        w13 = to_bf16(rng.standard_normal((num_experts, 2 * inner, HIDDEN)) * 0.02)
        w2 = to_bf16(rng.standard_normal((num_experts, HIDDEN, inner)) * 0.02)
        return Weights(w13, None, w2, None)

    def codes(rows, k):
        return rng.integers(0, 256, (num_experts, rows, k // 2), dtype=np.uint8)

    def scales(rows, k):
        return rng.integers(114, 121, (num_experts, rows, k // mxfp4.BLOCK), dtype=np.uint8)

    return Weights(
        codes(2 * inner, HIDDEN),
        scales(2 * inner, HIDDEN),
        codes(HIDDEN, inner),
        scales(HIDDEN, inner),
    )


def streams_of(weights: Weights, format_: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (w13, w2) streams of all experts, as the kernels of a weight format read them."""

    def stream(projection, packed, scale):
        if scale is None:
            parts = [stream_layout.split_bf16(projection, one.view(np.uint8)) for one in packed]
        else:
            pairs = zip(packed, scale, strict=True)
            parts = [stream_layout.split_mxfp4(projection, p, s) for p, s in pairs]
        if format_ == "bf8":
            parts = [restriped(part) for part in parts]
        result = np.concatenate(parts)
        result.flags.writeable = False
        return result

    return (
        stream("w13", weights.w13, weights.w13_scale),
        stream("w2", weights.w2, weights.w2_scale),
    )


@dataclass(frozen=True)
class Batch:
    """Tokens and their routing.

    Attributes:
        hidden: bf16 bits ``[tokens, 4096]``.
        ids: int32 ``[tokens, k]``.
        weights: float32 ``[tokens, k]``.
        expert_map: int32 ``[global ids]`` or None.
    """

    hidden: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    expert_map: np.ndarray | None = None


ROUTINGS = ("uniform", "one expert", "concentrated", "with padding", "nothing here")


def batch(num_tokens: int, num_experts: int, top_k: int, routing: str, seed: int = 0) -> Batch:
    """Return random tokens with one of the routings."""
    rng = np.random.default_rng([seed, num_tokens, num_experts, top_k])
    popularity = np.ones(num_experts)
    if routing == "concentrated":
        popularity = 0.3 ** np.arange(num_experts)
    noise = rng.gumbel(size=(num_tokens, num_experts))
    ids = np.argsort(-(np.log(popularity) + noise), axis=1)[:, :top_k].astype(np.int32)
    if routing == "one expert":
        ids[:] = -1
        ids[:, 0] = num_experts - 1
    elif routing == "with padding":
        ids[rng.random(ids.shape) < 0.4] = -1
        ids[num_tokens // 2 :: 3] = -1  # whole tokens too
    elif routing == "nothing here":
        ids[:] = -1
    weights = rng.random((num_tokens, top_k)).astype(np.float32)
    weights /= weights.sum(axis=1, keepdims=True)
    hidden = to_bf16(rng.standard_normal((num_tokens, HIDDEN)))
    return Batch(hidden, ids, weights)


def layer_of(weights: Weights, batch: Batch, format_: str, token_tile: int, num_cus: int) -> Layer:
    """Return the sizes of a problem."""
    return Layer(
        num_tokens=len(batch.ids),
        top_k=batch.ids.shape[1],
        num_experts=weights.num_experts,
        hidden=HIDDEN,
        inner=weights.inner,
        weights=format_,
        token_tile=token_tile,
        num_cus=num_cus,
        num_global_ids=0 if batch.expert_map is None else len(batch.expert_map),
    )


@dataclass(frozen=True)
class Run:
    """What the launches left.

    Attributes:
        out: bf16 bits ``[tokens, 4096]``.
        buffers: Every buffer by name, uint8.
        counters: Of each launch, by kernel.
    """

    out: np.ndarray
    buffers: dict[str, np.ndarray]
    counters: dict[str, Counters]


def run(
    layer: Layer,
    streams: tuple[np.ndarray, np.ndarray],
    batch: Batch,
    *,
    wave_order: str = "forward",
    seed: int = 0,
    launched: tuple[launches.Step, ...] | None = None,
) -> Run:
    """Run the launches of a layer; scratch starts as rubbish that is no number."""

    def rubbish(size):
        return np.full(max(size, 1), 0xFF, np.uint8)

    def fixed(array):
        copy = np.ascontiguousarray(array)
        copy.flags.writeable = False
        return copy

    buffers = {name: rubbish(size) for name, size in launches.scratch_bytes(layer).items()}
    buffers |= {
        launches.HIDDEN_STATES: fixed(batch.hidden),
        launches.TOPK_IDS: fixed(batch.ids),
        launches.TOPK_WEIGHTS: fixed(batch.weights),
        launches.W13_STREAM: streams[0],
        launches.W2_STREAM: streams[1],
        launches.OUT: rubbish(layer.num_tokens * layer.hidden * 2),
    }
    if batch.expert_map is not None:
        buffers[launches.EXPERT_MAP] = fixed(batch.expert_map)
    counters = {}
    for step in launched or launches.steps(layer):
        counters[step.kernel] = launch(step, buffers, wave_order, seed)
    out = buffers[launches.OUT].view(np.uint16).reshape(layer.num_tokens, layer.hidden)
    return Run(out, buffers, counters)


def launch(step: launches.Step, buffers, wave_order="forward", seed=0) -> Counters:
    """Run one launch; reading what was never written is an error."""
    values = [
        buffers[a.buffer] if isinstance(a, launches.Pointer) and a.buffer else None
        if isinstance(a, launches.Pointer)
        else np.uint32(a.value)
        if isinstance(a, launches.Uint32)
        else np.float32(a.value)
        for a in step.arguments
    ]
    counters = machine().launch(
        step.kernel, step.grid, (step.threads,), values, wave_order=wave_order, seed=seed
    )
    assert counters.uninitialised_reads == ()
    return counters


def expected(weights: Weights, batch: Batch) -> np.ndarray:
    """Return the float32 result from exactly dequantised weights."""
    ids = batch.ids
    if batch.expert_map is not None:
        known = (ids >= 0) & (ids < len(batch.expert_map))
        ids = np.where(known, batch.expert_map[np.where(known, ids, 0)], -1)
    hidden = torch.from_numpy(from_bf16(batch.hidden))
    ids = torch.from_numpy(ids)
    router = torch.from_numpy(batch.weights)
    if weights.w13_scale is None:
        return _expected_bf16(weights, hidden, ids, router)
    tensors = [torch.from_numpy(t) for t in (weights.w13, weights.w13_scale)]
    tensors += [torch.from_numpy(t) for t in (weights.w2, weights.w2_scale)]
    return expert_layer(hidden, *tensors, ids, router).numpy()


def _expected_bf16(weights, hidden, ids, router):
    out = torch.zeros_like(hidden)
    for expert in range(weights.num_experts):
        w13 = torch.from_numpy(from_bf16(weights.w13[expert]))
        w2 = torch.from_numpy(from_bf16(weights.w2[expert]))
        token, slot = (ids == expert).nonzero(as_tuple=True)
        gate, up = (hidden[token] @ w13.T).chunk(2, dim=1)
        result = (torch.nn.functional.silu(gate) * up) @ w2.T
        out.index_add_(0, token, result * router[token, slot].unsqueeze(1))
    return out.numpy()


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    """Return the relative L2 distance; 0 where both are zero."""
    size = np.linalg.norm(want)
    distance = np.linalg.norm(got.astype(np.float64) - want)
    return float(distance / size) if size else float(distance)


__all__ = ["replace"]
