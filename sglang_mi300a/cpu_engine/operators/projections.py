"""Taking the merged input projection of a linear-attention layer apart."""

from __future__ import annotations

import torch


def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    mixed_qkvz: torch.Tensor,
    mixed_ba: torch.Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the convolution's input, the output gate and the delta rule's two gates.

    Args:
        mixed_qkvz: ``[tokens, all q | all k | all v | all z]``.
        mixed_ba: ``[tokens, all b | all a]``.
        num_heads_qk: Query heads, and key heads.
        num_heads_v: Value heads.
        head_qk: Values of a query or key head.
        head_v: Values of a value head.

    Returns:
        ``q | k | v`` ``[tokens, 2 * num_heads_qk * head_qk + num_heads_v * head_v]``,
        ``z`` ``[tokens, num_heads_v, head_v]``, ``b`` and ``a`` ``[tokens, num_heads_v]``; all
        contiguous.
    """
    values = num_heads_v * head_v
    qkv, z = mixed_qkvz.split([2 * num_heads_qk * head_qk + values, values], dim=-1)
    b, a = mixed_ba.split([num_heads_v, num_heads_v], dim=-1)
    # Copies even where a slice is contiguous already (no tokens, say): an operator's results must
    # not share memory with its arguments.
    return qkv.clone(), z.reshape(-1, num_heads_v, head_v).clone(), b.clone(), a.clone()
