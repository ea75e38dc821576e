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


def launch_tokens(chunk_tokens: int, top_k: int) -> int:
    """Return the tokens of one launch, at most; a longer batch is run in parts.

    Args:
        chunk_tokens: Longest prefill pass (``--chunked-prefill-size``); 0 or less = not bounded.
        top_k: Experts of a token.
    """
    most = min(MOST_TOKENS, steps.MOST_PAIRS // top_k)
    return min(chunk_tokens, most) if chunk_tokens > 0 else most


def largest_layer(
    *, max_tokens: int, top_k: int, num_experts: int, hidden: int, inner: int
) -> Layer:
    """Return the layer with the largest workspace, whatever its weights and ids.

    Args:
        max_tokens: :func:`launch_tokens`.
        top_k: Experts of a token.
        num_experts: Local experts.
        hidden: Hidden size.
        inner: Neurons of an expert on a rank.
    """
    return Layer(
        num_tokens=max_tokens,
        top_k=top_k,
        num_experts=num_experts,
        hidden=hidden,
        inner=inner,
        weights="subnormals",  # the one format that copies the activations
        token_tile=TOKEN_TILES[0],
        num_cus=1,  # grids do not change it
        shared_expert=True,
    )


def reserved_bytes(
    *, max_tokens: int, top_k: int, num_experts: int, hidden: int, inner: int
) -> int:
    """Return what a process keeps for its expert layers, of :func:`largest_layer`."""
    return workspace_bytes(
        largest_layer(
            max_tokens=max_tokens,
            top_k=top_k,
            num_experts=num_experts,
            hidden=hidden,
            inner=inner,
        )
    )


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
