"""Unquantised experts of one rank, where the other ranks hold the rest."""

from __future__ import annotations

import torch
from torch.nn import functional


def local_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
) -> torch.Tensor:
    """Return each token's weighted sum over those of its experts that this rank holds.

    Args:
        x: ``[tokens, hidden]``.
        w13: ``[local experts, 2 * intermediate, hidden]``, gate rows before up rows.
        w2: ``[local experts, hidden, intermediate]``.
        topk_weights: ``[tokens, top_k]``.
        topk_ids: ``[tokens, top_k]``, local ids; negative for experts of other ranks.
    """
    out = torch.zeros(x.shape, dtype=torch.float32)
    for expert in topk_ids.unique().tolist():
        if expert < 0:
            continue
        token, choice = (topk_ids == expert).nonzero(as_tuple=True)
        gate, up = functional.linear(x[token], w13[expert]).float().chunk(2, dim=-1)
        inner = (functional.silu(gate) * up).to(x.dtype)
        added = functional.linear(inner, w2[expert]).float()
        out.index_add_(0, token, added * topk_weights[token, choice].float().unsqueeze(-1))
    return out.to(x.dtype)
