"""The kernels' arguments, as the launcher checks them against the code object and each call."""

from __future__ import annotations

from functools import cache

from sglang_mi300a.launcher.signature import Buffer, Scalar, Signature
from sglang_mi300a.moe.kernels import catalogue

Arguments = tuple[Buffer | Scalar, ...]

_WORD = 4
"""Bytes that ids and routing weights, read one by one, are aligned to."""


def _given(name: str, dtype: str, shape: tuple[str | None, ...], align: int = 16) -> Buffer:
    return Buffer(name, dtype, shape, align_bytes=align, optional=True)


def _scratch(name: str, dtype: str, *, written: bool = False, optional: bool = False) -> Buffer:
    return Buffer(name, dtype, (None,), written=written, workspace=True, optional=optional)


def _u32(*names: str) -> Arguments:
    return tuple(Scalar(name, "u32") for name in names)


_STREAM = Buffer("stream", "uint8", (None, None))

_SORT_PAIRS: Arguments = (
    Buffer("topk_ids", "int32", ("num_tokens", "top_k"), align_bytes=_WORD),
    *_u32("num_tokens", "top_k"),
    _given("expert_map", "int32", ("num_ids",), _WORD),
    *_u32("num_ids", "num_experts", "log2_tile"),
    _scratch("work", "int32", written=True),
    _scratch("tokens", "int32", written=True),
    _scratch("pair_rows", "int32", written=True),
    Buffer("activations", "bfloat16", ("num_tokens", None)),
    Buffer("scaled", "bfloat16", ("num_tokens", None), True, workspace=True, optional=True),
    Scalar("factor", "f32"),
    _scratch("shared_work", "int32", written=True, optional=True),
    _given("shared_gate", "bfloat16", (None,)),
    _scratch("shared_weights", "float32", written=True, optional=True),
)

_GATE_UP: Arguments = (
    _STREAM,
    *_u32("stream_bytes"),
    Buffer("activations", "bfloat16", (None, None)),
    *_u32("activation_bytes"),
    _scratch("tokens", "int32"),
    *_u32("token_bytes"),
    _scratch("work", "int32"),
    _scratch("inner", "bfloat16", written=True),
    *_u32("log2_items", "num_workers"),
    _given("shared_stream", "uint8", (None, None)),
    *_u32("shared_stream_bytes"),
    _given("shared_activations", "bfloat16", (None, None)),
    _scratch("shared_work", "int32", optional=True),
    *_u32("num_shared_workers"),
)

_DOWN: Arguments = (
    _STREAM,
    *_u32("stream_bytes"),
    _scratch("inner", "bfloat16"),
    _scratch("work", "int32"),
    _scratch("result", "bfloat16", written=True),
    *_u32("log2_items", "num_workers"),
    _given("shared_stream", "uint8", (None, None)),
    *_u32("shared_stream_bytes"),
    _scratch("shared_work", "int32", optional=True),
    *_u32("num_shared_workers"),
)

_SUM_SLOTS: Arguments = (
    _scratch("rows", "bfloat16"),
    *_u32("row_bytes"),
    _scratch("pair_rows", "int32"),
    Buffer("weights", "float32", ("num_tokens", "top_k"), align_bytes=_WORD),
    *_u32("num_tokens", "top_k"),
    _scratch("shared_weights", "float32", optional=True),
    Buffer("out", "bfloat16", ("num_tokens", "columns"), written=True),
    *_u32("columns"),
)

_READ_BACK: Arguments = (
    Buffer("stream", "uint8", (None,)),
    *_u32("stream_bytes"),
    Buffer("values", "float32", (None,), written=True),
)

_RESTRIPE: Arguments = (
    Buffer("stream", "uint8", (None, None), written=True),
    *_u32("num_records", "num_workers"),
)

_OTHERS: dict[str, tuple[Arguments, int]] = {
    catalogue.SORT_PAIRS: (_SORT_PAIRS, catalogue.SORT_THREADS),
    catalogue.SUM_SLOTS: (_SUM_SLOTS, catalogue.SUM_THREADS),
    catalogue.RESTRIPE: (_RESTRIPE, catalogue.RESTRIPE_THREADS),
    **dict.fromkeys(catalogue.DEQUANTISE.values(), (_READ_BACK, catalogue.LANES)),
}


@cache
def signature(kernel: str) -> Signature:
    """Return the signature of a kernel of the room's code object.

    Raises:
        KeyError: The room has no such kernel.
    """
    if kernel in _OTHERS:
        return Signature(kernel, *_OTHERS[kernel])
    row = {row.name: row for row in (*catalogue.MATRIX_KERNELS, *catalogue.TIMED_KERNELS)}[kernel]
    return Signature(kernel, _GATE_UP if row.op == "gate_up" else _DOWN, row.threads)


def kernels() -> tuple[str, ...]:
    """Return the names of all kernels."""
    rows = (*catalogue.MATRIX_KERNELS, *catalogue.TIMED_KERNELS)
    return (*(row.name for row in rows), *_OTHERS)
