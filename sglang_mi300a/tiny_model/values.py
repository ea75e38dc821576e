"""Pseudo-random weights that depend on seed and tensor name only.

The numbers come from PCG64's raw words through integer arithmetic, so they are the same on every
platform and with every numpy; a tensor keeps its values whichever other tensors are drawn.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_PARTS = 8
"""16-bit words added up for one value: a sum of 8 uniforms is close enough to a normal."""


class Values:
    """Draws tensors of one seed by name."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _raw(self, name: str, num_words: int) -> NDArray[np.uint64]:
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        source = np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "little")))
        return np.asarray(source.random_raw(num_words), dtype="<u8")

    def normal(
        self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0
    ) -> NDArray[np.float32]:
        """Return float32 ``shape``, nearly normal, bounded at mean +- 4.9 std."""
        num_values = int(np.prod(shape))
        words = self._raw(name, num_values * _PARTS // 4).view("<u2").reshape(num_values, _PARTS)
        total = words.astype(np.int64).sum(axis=1) * 2 - _PARTS * 65535
        # The variance of one 16-bit word times two is (65536**2 - 1) / 3.
        unit = np.sqrt(_PARTS * (65536.0**2 - 1) / 3)
        return np.asarray(total * (std / unit) + mean, dtype=np.float32).reshape(shape)

    def uniform(
        self, name: str, shape: tuple[int, ...], low: float, high: float
    ) -> NDArray[np.float32]:
        """Return float32 ``shape``, uniform in ``[low, high)``."""
        num_values = int(np.prod(shape))
        share = (self._raw(name, num_values) >> np.uint64(11)) * 2.0**-53
        return np.asarray(low + share * (high - low), dtype=np.float32).reshape(shape)
