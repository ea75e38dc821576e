"""The question to the matrix unit at start-up: does a decode give every weight exactly?

The device reads a small stream back through a decode and its matrix unit (``moe_dequantise_*``). On
hardware that drops bf16 subnormals every 0.5 comes back as 0 and the decode is not used.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sglang_mi300a import mxfp4, stream_layout
from sglang_mi300a.layout import Bytes
from sglang_mi300a.moe.kernels import restripe
from sglang_mi300a.moe.kernels.catalogue import EXACT_SCALES, WeightFormat

SCALES = (0, 64, mxfp4.SCALE_ONE, EXACT_SCALES["subnormals"][-1])
_ROWS = 2 * stream_layout.ROWS
_K = stream_layout.RECORD_K
NUM_RECORDS = 2


def _plain() -> tuple[Bytes, Bytes]:
    row, k = np.meshgrid(np.arange(_ROWS), np.arange(_K), indexing="ij")
    codes = ((row + 3 * k) % 16).astype(np.uint8)  # each code at each place of a word, by rows
    scales = np.array(SCALES, np.uint8)[(np.arange(_ROWS)[:, None] + np.arange(4)) % len(SCALES)]
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return packed, scales


def stream(weights: WeightFormat) -> Bytes:
    """Return what the device shall read, uint8 ``[2 * 1088]``."""
    result = stream_layout.split_mxfp4("w2", *_plain())
    return restripe.restriped(result) if weights == "bf8" else result


def values() -> NDArray[np.float32]:
    """Return what it must give, float32 ``[2, 128, 16]``."""
    return by_record(mxfp4.dequantise(*_plain()))


def by_record(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return ``[records, 128, 16]``: a ``w2`` of K = 128 in the order of ``moe_dequantise_*``."""
    parts = matrix.reshape(-1, stream_layout.ROWS, 2, _K)
    return np.ascontiguousarray(parts.transpose(0, 2, 3, 1)).reshape(-1, _K, stream_layout.ROWS)


def is_exact(read: NDArray[np.float32]) -> bool:
    """Return whether the device gave every value; zeros may have either sign."""
    return bool(np.array_equal(read.reshape(-1), values().reshape(-1)))
