"""The tensors that captured graphs refer to: kept alive here, since a graph keeps only addresses.

A graph that saw a workspace reads and writes it in every replay, long after the Python code that
allocated it returned. torch's own pools keep what was allocated during the capture; a workspace was
allocated before. There is no event for a graph's end, so what is kept stays until :func:`release`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_kept: dict[tuple[int, int, str], torch.Tensor] = {}


def keep(tensor: torch.Tensor) -> None:
    """Keep a tensor's memory alive; a second time for the same memory adds nothing."""
    storage = tensor.untyped_storage()
    _kept.setdefault((storage.data_ptr(), storage.nbytes(), str(tensor.device)), tensor)


def kept_bytes() -> int:
    """Return how much memory is kept, in bytes."""
    return sum(num_bytes for _, num_bytes, _ in _kept)


def release() -> None:
    """Let everything go: only when no graph that captured a launch will be replayed again."""
    _kept.clear()
