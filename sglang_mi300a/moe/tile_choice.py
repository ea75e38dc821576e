"""How many tokens of an expert a workgroup takes at once."""

from __future__ import annotations

_LAST_OF_16 = 640
"""Up to this batch a tile of 16 tokens is predicted to be the faster one (E3)."""


def choose_tile(num_tokens: int) -> int:
    """Return the token tile, 16 or 32, for a batch of ``num_tokens`` (1 or more)."""
    return 16 if num_tokens <= _LAST_OF_16 else 32
