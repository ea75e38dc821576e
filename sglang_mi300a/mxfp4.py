"""The MXFP4 number format: E2M1 elements, two a byte, with one E8M0 scale per 32 along K.

A byte holds two elements; the low nibble is the even K index. An element is sign (bit 3) and a
3-bit magnitude code. A scale byte ``s`` means ``2**(s - 127)``: 0x00 is ``2**-127`` (a float32
subnormal) and 0xFF is NaN.

Source: OCP Microscaling Formats (MX) Specification v1.0, sections 5.3.3 and 5.4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
"""Elements along K that share one scale."""

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Value of each 3-bit magnitude code."""

SCALE_NAN = 0xFF
SCALE_ONE = 127
"""The neutral scale byte, 2**0."""

# Scale bytes that every shipped decode takes exactly when a block holds any non-zero code: a decode
# places scale s as exponent s + 62 of a float32, which ends at 254.
EXACT_SCALE_MIN = 0
EXACT_SCALE_MAX = 192


def element_values() -> NDArray[np.float32]:
    """Return the 16 element values by code, float32 ``[16]`` (code 8 is minus zero)."""
    positive = np.array(MAGNITUDES, dtype=np.float32)
    return np.concatenate([positive, -positive])


def scale_values() -> NDArray[np.float32]:
    """Return the 256 scale values by byte, float32 ``[256]``; entry 255 is NaN."""
    exponents = np.arange(SCALE_NAN, dtype=np.int32) - 127
    finite = np.ldexp(np.float64(1.0), exponents).astype(np.float32)
    return np.append(finite, np.float32(np.nan))


def dequantise(packed: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the exact float32 values of packed MXFP4 weights.

    Args:
        packed: uint8 ``[..., K // 2]``, low nibble = even K.
        scales: uint8 ``[..., K // 32]``.

    Returns:
        float32 ``[..., K]``, exact for scale bytes up to 252: an element has two significant bits,
        and 0.5 * 2**-127 is 2**-128, a float32 subnormal. Above, large elements become infinite.

    Raises:
        ValueError: Shapes do not belong together.
    """
    if packed.shape[:-1] != scales.shape[:-1] or packed.shape[-1] * 2 != scales.shape[-1] * BLOCK:
        raise ValueError(
            f"packed {packed.shape} and scales {scales.shape} do not belong together: "
            f"K/2 = {packed.shape[-1]} needs K/32 = {packed.shape[-1] * 2 / BLOCK:g} scales a row"
        )
    k = packed.shape[-1] * 2
    # One byte names two values: they are fetched together, as one number of 8 bytes.
    values = _pairs().take(packed).view(np.float32)
    blocks = values.reshape(*packed.shape[:-1], k // BLOCK, BLOCK)
    with np.errstate(over="ignore"):
        blocks *= scale_values()[scales][..., None]
    return blocks.reshape(*packed.shape[:-1], k)


def _pairs() -> NDArray[np.uint64]:
    """Return the two element values of each byte, float32 side by side, uint64 ``[256]``."""
    byte = np.arange(256)
    table = element_values()
    both = np.stack([table[byte & 0xF], table[byte >> 4]], axis=-1)
    return both.view(np.uint64)[:, 0]


def quantise(values: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return ``(packed, scales)``: values rounded to MXFP4 with the best scale of each block.

    For each block of 32 the scale is chosen, among the smallest power of two that holds the
    block's largest magnitude and the one below it (which saturates that magnitude to 6), by least
    squared error; elements round to nearest, ties to the even code. An all-zero block gets the
    neutral scale.

    Args:
        values: float array ``[..., K]``, K a multiple of 32, finite.

    Returns:
        uint8 ``[..., K // 2]`` and uint8 ``[..., K // 32]``.

    Raises:
        ValueError: K is not a multiple of 32, or a value is not finite.
    """
    if values.shape[-1] % BLOCK:
        raise ValueError(f"K = {values.shape[-1]} is not a multiple of {BLOCK}")
    x = np.asarray(values, dtype=np.float32)
    if not np.isfinite(x).all():
        raise ValueError("cannot quantise values that are not finite")
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
    largest = np.abs(blocks).max(axis=-1)
    _, exponent = np.frexp(largest / np.float32(6.0))
    # frexp gives largest/6 = m * 2**e with m in [0.5, 1): 2**e holds it, unless m is exactly 0.5.
    exact_power = np.ldexp(np.float32(0.5), exponent) * np.float32(6.0) == largest
    holds = np.where(exact_power, exponent - 1, exponent)

    best_codes = np.zeros(blocks.shape, dtype=np.uint8)
    best_scale = np.full(largest.shape, SCALE_ONE, dtype=np.uint8)
    best_error = np.full(largest.shape, np.inf, dtype=np.float64)
    for offset in (0, -1):
        byte = np.clip(holds + offset + 127, EXACT_SCALE_MIN, EXACT_SCALE_MAX).astype(np.int32)
        scale = np.ldexp(np.float64(1.0), byte - 127)[..., None]
        codes = _nearest_codes(blocks / scale)
        error = ((element_values()[codes] * scale - blocks) ** 2).sum(axis=-1)
        better = error < best_error
        best_codes = np.where(better[..., None], codes, best_codes)
        best_scale = np.where(better, byte, best_scale).astype(np.uint8)
        best_error = np.where(better, error, best_error)
    best_scale = np.where(largest == 0, SCALE_ONE, best_scale).astype(np.uint8)

    codes = best_codes.reshape(x.shape)
    packed = (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)
    return packed, best_scale


def _nearest_codes(scaled: NDArray[Any]) -> NDArray[np.uint8]:
    """Return E2M1 codes of values already divided by their scale; saturates at 6."""
    magnitudes = np.array(MAGNITUDES, dtype=np.float64)
    midpoints = (magnitudes[1:] + magnitudes[:-1]) / 2
    size = np.abs(scaled)
    below = np.searchsorted(midpoints, size, side="left")  # a tie goes to the lower code ...
    tie = np.isin(size, midpoints) & (below % 2 == 1)  # ... unless that one is odd
    codes = (below + tie).astype(np.uint8)
    sign = np.signbit(scaled).astype(np.uint8) << 3
    return np.where(codes == 0, 0, codes | sign).astype(np.uint8)


@dataclass(frozen=True)
class ScaleScan:
    """What :func:`scan_scales` found in one tensor.

    Attributes:
        nan_blocks: Blocks whose scale byte is 0xFF.
        inexact_blocks: Blocks with a non-zero code whose scale lies outside
            ``EXACT_SCALE_MIN..EXACT_SCALE_MAX``.
        neutralised_blocks: All-zero blocks whose out-of-range scale was rewritten to the neutral.
        first_bad: Index of the first refused block (row-major over the scales), or -1.
    """

    nan_blocks: int
    inexact_blocks: int
    neutralised_blocks: int
    first_bad: int

    @property
    def refused(self) -> bool:
        """Whether the tensor must not be served."""
        return self.nan_blocks > 0 or self.inexact_blocks > 0


def scan_scales(
    packed: NDArray[np.uint8], scales: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], ScaleScan]:
    """Apply the one scale rule; return the scales to store and what was found.

    The rule: 0xFF is refused. A scale outside the range that every shipped decode takes exactly is
    refused where the block has any non-zero code, and rewritten to the neutral byte where all its
    codes are zero.

    Args:
        packed: uint8 ``[..., K // 2]``.
        scales: uint8 ``[..., K // 32]``.

    Returns:
        The scales (a copy only if one was rewritten) and a :class:`ScaleScan`.
    """
    outside = (scales < EXACT_SCALE_MIN) | (scales > EXACT_SCALE_MAX)
    if not outside.any():
        return scales, ScaleScan(0, 0, 0, -1)
    blocks = packed.reshape(*scales.shape, BLOCK // 2)
    zero = ((blocks & 0x77) == 0).all(axis=-1)
    is_nan = scales == SCALE_NAN
    inexact = outside & ~is_nan & ~zero
    rewritten = outside & ~is_nan & zero
    bad = np.flatnonzero(is_nan | inexact)
    scan = ScaleScan(
        nan_blocks=int(is_nan.sum()),
        inexact_blocks=int(inexact.sum()),
        neutralised_blocks=int(rewritten.sum()),
        first_bad=int(bad[0]) if bad.size else -1,
    )
    if not rewritten.any():
        return scales, scan
    return np.where(rewritten, SCALE_ONE, scales).astype(np.uint8), scan
