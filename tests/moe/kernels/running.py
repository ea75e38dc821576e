"""Run the launches of an expert layer on the interpreter, and what they are compared with."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from sglang_mi300a import mxfp4, stream_layout
from sglang_mi300a.moe.kernels import steps as launches
from sglang_mi300a.moe.kernels.restripe import restriped
from sglang_mi300a.moe.kernels.steps import Layer, Step
from sglang_mi300a.moe.kernels.work_split import local_experts
from sglang_mi300a.moe.reference import expert_layer
from tests.gfx942 import room
from tests.gfx942.counters import Counters
from tests.gfx942.machine import Machine
from tests.gfx942.room import COMPILERS, from_bf16, to_bf16

HIDDEN = stream_layout.HIDDEN

ONE_ROUNDING = 2.2e-3
"""Relative L2 of many values rounded to bf16 once: up to 2^-8 each, 1.7e-3 over all."""

THREE_ROUNDINGS = 3.2e-3
"""The same for inner values, rows and result, each rounded once: sqrt(3) * 1.7e-3 = 2.9e-3. The
best published kernel for these weights is at 2.3e-3 to 3.2e-3 by the same measure."""


def machine(compiler: str = COMPILERS[0]) -> Machine:
    """Return the room's code object, loaded."""
    return room.machine("moe", compiler)


# -- problems -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)  # by identity: one is a key of caches
class Weights:
    """Experts as the checkpoint has them: MXFP4, or bf16 bits where the scales are None.

    ``w13`` [experts, 2 * inner, ...], ``w2`` [experts, outputs, ...].
    """

    w13: np.ndarray
    w13_scale: np.ndarray | None
    w2: np.ndarray
    w2_scale: np.ndarray | None

    @property
    def num_experts(self) -> int:
        return len(self.w13)

    def dense(self, projection: str, expert: int) -> np.ndarray:
        """Return one expert's exact float32 matrix."""
        weight, scale = (
            (self.w13, self.w13_scale) if projection == "w13" else (self.w2, self.w2_scale)
        )
        if scale is None:
            return from_bf16(weight[expert])
        return mxfp4.dequantise(weight[expert], scale[expert])


@cache
def random_weights(
    num_experts: int, inner: int, outputs: int = HIDDEN, *, bf16: bool = False, seed: int = 0
) -> Weights:
    """Return random experts: every code, scales of seven octaves; values about 0.02 in size."""
    rng = np.random.default_rng([seed, num_experts, inner, outputs])

    def matrix(rows, k):
        if bf16:
            return to_bf16(rng.standard_normal((num_experts, rows, k), np.float32) * 0.02), None
        codes = rng.integers(0, 256, (num_experts, rows, k // 2), dtype=np.uint8)
        scale = rng.integers(114, 121, (num_experts, rows, k // mxfp4.BLOCK), dtype=np.uint8)
        return codes, scale

    return Weights(*matrix(2 * inner, HIDDEN), *matrix(outputs, inner))


@cache
def stream_of(weights: Weights, projection: str, format_: str) -> np.ndarray:
    """Return the stream of all experts, as the kernels of a weight format read it; read-only."""
    packed, scale = (
        (weights.w13, weights.w13_scale) if projection == "w13" else (weights.w2, weights.w2_scale)
    )
    if scale is None:
        parts = [stream_layout.split_bf16(projection, one.view(np.uint8)) for one in packed]
    else:
        pairs = zip(packed, scale, strict=True)
        parts = [stream_layout.split_mxfp4(projection, p, s) for p, s in pairs]
    if format_ == "bf8":
        parts = [restriped(part) for part in parts]
    return read_only(np.concatenate(parts))


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a copy that refuses stores, in the interpreter too."""
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


@dataclass(frozen=True, eq=False)
class Shared:
    """A shared expert: bf16 weights of one expert and bf16 bits of its gate, ``[4096]``."""

    weights: Weights
    gate: np.ndarray


@cache
def random_shared(inner: int, outputs: int = HIDDEN) -> Shared:
    """Return a random shared expert."""
    gate = np.random.default_rng(inner).standard_normal(HIDDEN) * 0.02
    return Shared(random_weights(1, inner, outputs, bf16=True, seed=9), to_bf16(gate))


@dataclass(frozen=True, eq=False)
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


@cache
def random_batch(num_tokens: int, num_experts: int, top_k: int, routing: str, seed: int = 0):
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
    hidden = to_bf16(rng.standard_normal((num_tokens, HIDDEN), np.float32))
    return Batch(hidden, ids, weights)


def layer_of(
    weights: Weights,
    batch: Batch,
    format_: str,
    token_tile: int,
    *,
    num_cus: int = 2,
    shared: Shared | None = None,
) -> Layer:
    """Return the sizes of a problem."""
    return Layer(
        num_tokens=len(batch.ids),
        top_k=batch.ids.shape[1],
        num_experts=weights.num_experts,
        hidden=HIDDEN,
        inner=weights.w13.shape[1] // 2,
        weights=format_,
        token_tile=token_tile,
        num_cus=num_cus,
        num_global_ids=0 if batch.expert_map is None else len(batch.expert_map),
        shared_expert=shared is not None,
    )


# -- running --------------------------------------------------------------------------------------


def buffers_of(
    layer: Layer, weights: Weights, batch: Batch, shared: Shared | None = None
) -> dict[str, np.ndarray]:
    """Return all buffers by name; what launches write starts as rubbish that is no number."""
    written = launches.scratch_bytes(layer)
    written[launches.OUT] = layer.num_tokens * layer.hidden * launches.BF16_BYTES
    buffers = {name: np.full(max(size, 1), 0xFF, np.uint8) for name, size in written.items()}
    buffers |= {
        launches.HIDDEN_STATES: read_only(batch.hidden),
        launches.TOPK_IDS: read_only(batch.ids),
        launches.TOPK_WEIGHTS: read_only(batch.weights),
        launches.W13_STREAM: stream_of(weights, "w13", layer.weights),
        launches.W2_STREAM: stream_of(weights, "w2", layer.weights),
    }
    if batch.expert_map is not None:
        buffers[launches.EXPERT_MAP] = read_only(batch.expert_map)
    if shared is not None:
        buffers[launches.SHARED_W13_STREAM] = stream_of(shared.weights, "w13", "bf16")
        buffers[launches.SHARED_W2_STREAM] = stream_of(shared.weights, "w2", "bf16")
        buffers[launches.SHARED_GATE] = read_only(shared.gate)
    return buffers


def launch(
    step: Step,
    buffers: dict[str, np.ndarray],
    order: str = "forward",
    seed: int = 0,
    on: Machine | None = None,
) -> Counters:
    """Run one launch and return its counters; a read of what was never written is an error."""

    def value(argument):
        if isinstance(argument, launches.Pointer):
            return buffers[argument.buffer] if argument.buffer else None
        kind = np.uint32 if isinstance(argument, launches.Uint32) else np.float32
        return kind(argument.value)

    values = [value(argument) for argument in step.arguments]
    counters = (on or machine()).launch(
        step.kernel, step.grid, (step.threads,), values, wave_order=order, seed=seed
    )
    assert counters.uninitialised_reads == ()
    return counters


@dataclass(frozen=True)
class Result:
    """What the launches of a layer left.

    Attributes:
        out: bf16 bits ``[tokens, 4096]``.
        buffers: Every buffer by name.
        counters: Of each launch, by kernel.
    """

    out: np.ndarray
    buffers: dict[str, np.ndarray]
    counters: dict[str, Counters]


def run(
    layer: Layer,
    weights: Weights,
    batch: Batch,
    shared: Shared | None = None,
    *,
    order: str = "forward",
    seed: int = 0,
) -> Result:
    """Run the launches of a layer."""
    buffers = buffers_of(layer, weights, batch, shared)
    counters = {s.kernel: launch(s, buffers, order, seed) for s in launches.steps(layer)}
    out = buffers[launches.OUT].view(np.uint16).reshape(layer.num_tokens, layer.hidden)
    return Result(out, buffers, counters)


# -- what is expected -----------------------------------------------------------------------------


def silu(values: np.ndarray) -> np.ndarray:
    """Return ``x * sigmoid(x)`` in float64."""
    wide = values.astype(np.float64)
    return wide / (1 + np.exp(-wide))


def expert_inner(weights: Weights, expert: int, hidden: np.ndarray) -> np.ndarray:
    """Return ``silu(gate) * up`` of float32 rows, not rounded."""
    gate, up = np.split(hidden @ weights.dense("w13", expert).T, 2, axis=1)
    return (silu(gate) * up).astype(np.float32)


def expected(weights: Weights, batch: Batch, shared: Shared | None = None) -> np.ndarray:
    """Return the float32 result of a layer from exactly dequantised weights, nothing rounded."""
    ids = local_experts(batch.ids, weights.num_experts, batch.expert_map)
    hidden = from_bf16(batch.hidden)
    if weights.w13_scale is not None:
        tensors = (weights.w13, weights.w13_scale, weights.w2, weights.w2_scale)
        torch_tensors = [torch.from_numpy(np.array(t)) for t in (hidden, *tensors)]
        router = torch.from_numpy(np.array(batch.weights))
        out = expert_layer(*torch_tensors, torch.from_numpy(ids), router).numpy()
    else:
        out = np.zeros_like(hidden)
        for expert in range(weights.num_experts):
            token, slot = (ids == expert).nonzero()
            inner = expert_inner(weights, expert, hidden[token])
            rows = inner @ weights.dense("w2", expert).T
            np.add.at(out, token, rows * batch.weights[token, slot][:, None])
    if shared is not None:
        rows = expert_inner(shared.weights, 0, hidden) @ shared.weights.dense("w2", 0).T
        logits = hidden.astype(np.float64) @ from_bf16(shared.gate)
        out = out + (rows / (1 + np.exp(-logits))[:, None]).astype(np.float32)
    return out
