"""The scratch memory of the expert layer: one buffer for all layers, laid out anew for each batch.

Its size follows from the largest batch, so it is one line of a memory plan, and no batch after
start-up allocates.
"""

from __future__ import annotations

from dataclasses import replace

from sglang_mi300a.moe.kernels import steps
from sglang_mi300a.moe.kernels.steps import Layer

ALIGN_BYTES = 256
TOKEN_TILES = (16, 32)

MOST_TOKENS = 8192
"""Tokens of one launch, at most; a longer batch is run in parts."""


def places(layer: Layer) -> dict[str, range]:
    """Return the bytes of each scratch buffer in the workspace, by name."""
    result = {}
    at = 0
    for name, size in steps.scratch_bytes(layer).items():
        result[name] = range(at, at + size)
        at += -(-size // ALIGN_BYTES) * ALIGN_BYTES
    return result


def workspace_bytes(layer: Layer) -> int:
    """Return the bytes that batches up to ``layer.num_tokens`` need, whatever their tile."""
    return max(
        next(reversed(places(replace(layer, token_tile=tile)).values())).stop
        for tile in TOKEN_TILES
    )
