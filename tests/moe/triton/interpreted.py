"""Triton's interpreter on the CPU, in a process of its own, with bf16 arithmetic that is right.

Triton decides when it is imported whether kernels are interpreted, so this happens in a process
that starts with ``TRITON_INTERPRET``. Its bf16 is wrong in three ways (3.7.1): a conversion to it
truncates or loses the carry into the exponent, one from it spoils subnormals, and a product
multiplies bit patterns. Kernels see none of that here.
"""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import torch

from sglang_mi300a import stream_layout
from sglang_mi300a.moe import selftest, triton_rung
from sglang_mi300a.moe.rungs import Experts, ExpertSizes
from sglang_mi300a.moe.triton_rung import LaunchShape, Prepared, TritonRung
from tests.gfx942 import room
from tests.moe.kernels import running
from tests.moe.kernels.running import Batch, Weights

WIDE = LaunchShape(16, 512, 4, 3, 1024, 4, 4, 3)
"""Many weight rows a program, few programs: the interpreter's time goes by operations."""


def start() -> ProcessPoolExecutor:
    """Return a process that interprets; submit functions of a module to it."""
    with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _correct_interpreter)
        pool.submit(os.getpid).result()
    return pool


# -- in that process ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What the launches of a layer left: bf16 bits of the result, and the scratch's bytes."""

    out: np.ndarray
    scratch: dict[str, np.ndarray]


def layer(
    weights: Weights,
    batch: Batch,
    layout: str,
    shape: LaunchShape = WIDE,
    *,
    keeps_subnormals: bool = True,
    backwards: bool = False,
) -> Result:
    """Run the launches of a layer; scratch and result start as rubbish that is no number.

    Args:
        weights: The experts.
        batch: The tokens.
        layout: ``stream/1`` or ``plain/1``.
        shape: Of the launches.
        keeps_subnormals: What is assumed of the matrix unit.
        backwards: Run each launch's programs last to first.
    """
    num_tokens = len(batch.ids)
    sizes = sizes_of(weights, batch, layout)
    shape = triton_rung.fitted(shape, sizes)
    wanted = triton_rung.scratch(sizes, num_tokens, shape.tile)
    wanted["out"] = (batch.hidden.shape, torch.bfloat16)
    written = {name: _rubbish(*one) for name, one in wanted.items()}
    prepared = TritonRung().prepare(Experts("test", sizes, tensors_of(weights, layout)))
    given = {
        **prepared.words,
        **written,
        "hidden_states": _tensor(batch.hidden).view(torch.bfloat16),
        "topk_ids": _tensor(batch.ids),
        "topk_weights": _tensor(batch.weights),
    }
    with _programs_backwards() if backwards else mock.patch.dict({}):
        for one in triton_rung.launches(
            sizes, num_tokens, shape, keeps_subnormals=keeps_subnormals
        ):
            triton_rung.start(one, num_tokens, given)
    out = written.pop("out").view(torch.uint16).numpy()
    return Result(out, {name: one.view(torch.uint8).numpy() for name, one in written.items()})


def sorted_pairs(ids: np.ndarray, num_experts: int, tile: int) -> dict[str, np.ndarray]:
    """Run the two launches that sort; return ``work`` and ``row_pairs``, int32."""
    num_tokens, top_k = ids.shape
    sizes = ExpertSizes(num_experts, 512, 128, top_k, "stream/1")
    shape = triton_rung.fitted(replace(WIDE, tile=tile), sizes)
    wanted = triton_rung.scratch(sizes, num_tokens, tile)
    given = {name: _rubbish(*one) for name, one in wanted.items()}
    given["hidden_states"] = torch.zeros(num_tokens, sizes.hidden, dtype=torch.bfloat16)
    given["topk_ids"] = _tensor(ids)
    for one in triton_rung.launches(sizes, num_tokens, shape, keeps_subnormals=True)[:2]:
        triton_rung.start(one, num_tokens, given)
    return {name: given[name].numpy() for name in ("work", "row_pairs")}


def self_test(sizes: ExpertSizes) -> selftest.SelfTest:
    """Run the self-test that a process makes before it takes the rung."""
    return selftest.run(TritonRung(), torch.device("cpu"), sizes)


def result_of_no_tokens(sizes: ExpertSizes) -> tuple[int, ...]:
    """Return the shape of the result where there is no token."""
    nothing = torch.zeros(0, sizes.hidden, dtype=torch.bfloat16)
    slots = torch.zeros(0, sizes.top_k)
    return tuple(TritonRung().apply(Prepared(sizes, {}), nothing, slots.int(), slots).shape)


def why_not(sizes: ExpertSizes) -> str | None:
    """Return why the rung does not run such layers here."""
    return TritonRung().can_run(torch.device("cpu"), sizes)


def sizes_of(weights: Weights, batch: Batch, layout: str) -> ExpertSizes:
    """Return the sizes of a problem."""
    return ExpertSizes(
        num_experts=weights.num_experts,
        hidden=running.HIDDEN,
        inner=weights.w13.shape[1] // 2,
        top_k=batch.ids.shape[1],
        layout=layout,
        weights="bf16" if weights.w13_scale is None else "mxfp4",
    )


def tensors_of(weights: Weights, layout: str) -> dict[str, torch.Tensor]:
    """Return the parameters of a layer, by name."""
    if weights.w13_scale is None:
        return {
            "w13_weight": _tensor(weights.w13).view(torch.bfloat16),
            "w2_weight": _tensor(weights.w2).view(torch.bfloat16),
        }
    if layout == "plain/1":
        return {
            "w13_weight": _tensor(weights.w13),
            "w13_weight_scale": _tensor(weights.w13_scale),
            "w2_weight": _tensor(weights.w2),
            "w2_weight_scale": _tensor(weights.w2_scale),
        }
    return {
        stream_layout.stream_name(projection): _tensor(
            running.stream_of(weights, projection, "subnormals")
        ).reshape(weights.num_experts, -1)
        for projection in stream_layout.PROJECTIONS
    }


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _rubbish(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    num_bytes = int(np.prod(size)) * dtype.itemsize
    return torch.full((num_bytes,), 0xFF, dtype=torch.uint8).view(dtype).reshape(size)


@contextmanager
def _programs_backwards() -> Iterator[None]:
    from triton.runtime.interpreter import InterpreterBuilder

    forwards = InterpreterBuilder.set_grid_idx

    def backwards(self, *place):
        last_first = [dim - 1 - index for dim, index in zip(self.grid_dim, place, strict=True)]
        forwards(self, *last_first)

    with mock.patch.object(InterpreterBuilder, "set_grid_idx", backwards):
        yield


def _correct_interpreter() -> None:
    import triton.language as tl
    from triton.runtime import interpreter

    convert, dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def convert_float(values, source, target, rounding_mode):
        if (source, target) == (tl.bfloat16, tl.float32):
            return room.from_bf16(values)
        if (source, target) == (tl.float32, tl.bfloat16):
            return room.to_bf16(values)
        return convert(values, source, target, rounding_mode)

    def widened(operand):
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        return interpreter.TensorHandle(room.from_bf16(operand.data), tl.float32)

    def create_dot(self, a, b, *rest):
        return dot(self, widened(a), widened(b), *rest)

    interpreter._convert_float = convert_float
    interpreter.InterpreterBuilder.create_dot = create_dot
    # A function called by a kernel patches the language again, which takes most of the time. For
    # those of the kernel's own module it is patched.
    call = interpreter.InterpretedFunction.__call__

    def call_patched(self, *args, **kwargs):
        if self.fn.__module__.startswith("triton."):
            return call(self, *args, **kwargs)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call_patched
