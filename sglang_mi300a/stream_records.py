"""Records of layout ``stream/1`` by native code (``csrc/host``), where that was built.

It does what :mod:`~sglang_mi300a.stream_layout` does in NumPy, some five times as fast, and lets
other Python threads run meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
import math

import numpy as np
from numpy.typing import NDArray

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import native_build

_FUNCTION = "mi300a_stream_records_1"  # of csrc/host/stream_records.h
_NUM_OUTER = 4
# What csrc/host/stream_records.cpp is written for.
_ROWS, _CODE_BYTES, _SCALE_BYTES = 16, 64, 4
_RECORD_BYTES = _ROWS * (_CODE_BYTES + _SCALE_BYTES)


class _Order(ctypes.Structure):
    _fields_ = (
        ("counts", ctypes.c_int64 * _NUM_OUTER),
        ("code_strides", ctypes.c_int64 * (_NUM_OUTER + 1)),
        ("scale_strides", ctypes.c_int64 * (_NUM_OUTER + 1)),
    )


class _Move(ctypes.Structure):
    _fields_ = (("mask", ctypes.c_uint64), ("left_by", ctypes.c_int64))


@functools.cache
def _function() -> ctypes._NamedFuncPointer | None:
    path = code_objects.compiled_folder("host") / native_build.HOST_FILE
    if not path.is_file():
        return None
    try:
        function: ctypes._NamedFuncPointer = getattr(ctypes.CDLL(str(path)), _FUNCTION)
    except (OSError, AttributeError) as error:
        raise UserError(
            str(path),
            found=str(error),
            allowed=f"the library of this version, with {_FUNCTION}",
            do="in a source tree `make setup`; else install the package again",
        ) from error
    function.argtypes = (
        *(ctypes.POINTER(_Order), ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.POINTER(_Move), ctypes.c_int32, ctypes.c_void_p),
    )
    function.restype = None
    return function


@functools.cache
def _as_array(moves: tuple[tuple[int, int], ...]) -> ctypes.Array[_Move]:
    if any(abs(left_by) > 63 for _, left_by in moves):
        raise ValueError(f"moves {moves}: a word has 64 bits")
    return (_Move * len(moves))(*(_Move(*move) for move in moves))


def is_built() -> bool:
    """Return whether the native code is there; a package without kernels has none.

    Raises:
        UserError: It is there, but cannot be loaded or is of another version.
    """
    return _function() is not None


def write(
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    moves: tuple[tuple[int, int], ...],
    records: NDArray[np.uint8],
) -> None:
    """Write records; :func:`is_built` must be true.

    Args:
        codes: uint8 ``[a, b, c, d, 16, 64]``, any strides but the last: rows of codes, in the order
            of the records.
        scales: uint8 ``[a, b, c, d, 16, 4]``, likewise: their scales.
        moves: (mask, distance) of the bits of a word that move alike; -63 to 63, negative to the
            right.
        records: uint8 ``[a * b * c * d, 1088]``, C-contiguous; written.

    Raises:
        ValueError: A shape, a type or a stride is another.
    """
    *outer, rows, width = codes.shape
    if (
        len(outer) != _NUM_OUTER
        or (rows, width) != (_ROWS, _CODE_BYTES)
        or scales.shape != (*outer, _ROWS, _SCALE_BYTES)
        or records.shape != (math.prod(outer), _RECORD_BYTES)
        or {codes.dtype, scales.dtype, records.dtype} != {np.dtype(np.uint8)}
        or (codes.strides[-1], scales.strides[-1]) != (1, 1)
        or not records.flags.c_contiguous
        or not records.flags.writeable
    ):
        raise ValueError(
            f"codes {codes.dtype} {codes.shape}, scales {scales.dtype} {scales.shape}, "
            f"records {records.dtype} {records.shape}: not as write() takes them"
        )
    function = _function()
    if function is None:
        raise ValueError("the native code was not built")
    order = _Order(tuple(outer), codes.strides[:-1], scales.strides[:-1])
    function(
        ctypes.byref(order),
        codes.ctypes.data,
        scales.ctypes.data,
        _as_array(moves),
        len(moves),
        records.ctypes.data,
    )
