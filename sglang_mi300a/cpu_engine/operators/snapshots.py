"""Snapshots of linear-attention states for the prefix cache, while decoding."""

from __future__ import annotations

import torch


def copy_tracked_states(
    conv_states_pool: torch.Tensor,
    ssm_states_pool: torch.Tensor,
    cache_indices: torch.Tensor,
    mamba_track_mask: torch.Tensor,
    mamba_track_indices: torch.Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """Copy the states of tracked requests to the lines their snapshots are taken in.

    Args:
        conv_states_pool: ``[layers, lines, ...]``.
        ssm_states_pool: ``[layers, lines, ...]``.
        cache_indices: ``[batch]``, each request's own line.
        mamba_track_mask: ``[batch]``, whether a snapshot is taken now.
        mamba_track_indices: ``[batch]``, the line it is taken in.
        batch_size: Requests; later rows are padding.
        check_freed_slots: Whether negative lines mean none.
    """
    chosen = mamba_track_mask[:batch_size].clone()
    if check_freed_slots:
        chosen &= (cache_indices[:batch_size] >= 0) & (mamba_track_indices[:batch_size] >= 0)
    sources = cache_indices[:batch_size][chosen].long()
    targets = mamba_track_indices[:batch_size][chosen].long()
    for pool in (conv_states_pool, ssm_states_pool):
        pool[:, targets] = pool[:, sources]
