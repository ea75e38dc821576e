"""Root-mean-square norms of Qwen3.5: plain weight with a SiLU gate, and Gemma's ``1 + weight``."""

from __future__ import annotations

import torch
from torch.nn import functional


def fused_rmsnorm_gated_cpu(
    x: torch.Tensor, weight: torch.Tensor, z: torch.Tensor, eps: float
) -> torch.Tensor:
    """Return ``rmsnorm(x) * weight * silu(z)`` over the last dimension.

    Args:
        x: ``[..., d]``.
        weight: ``[d]``.
        z: Gate, the shape of ``x``.
        eps: Added to the mean square.
    """
    if x.shape != z.shape:
        raise ValueError(f"fused_rmsnorm_gated_cpu: x is {list(x.shape)}, z {list(z.shape)}")
    normed = _unit_mean_square(x, eps) * weight.float()
    return (normed * functional.silu(z.float())).to(x.dtype)


def fused_qk_gemma_rmsnorm_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return query and key, each head normed and scaled by ``1 + weight``.

    Args:
        q: ``[..., num_q_heads * head_dim]``, strided or not.
        k: ``[..., num_k_heads * head_dim]``.
        q_weight: ``[head_dim]``.
        k_weight: ``[head_dim]``.
        eps: Added to the mean square.
        head_dim: Values a head.

    Returns:
        ``[tokens * num_q_heads, head_dim]`` and ``[tokens * num_k_heads, head_dim]``, contiguous.
    """
    return (
        _gemma_norm(q.reshape(-1, head_dim), q_weight, eps),
        _gemma_norm(k.reshape(-1, head_dim), k_weight, eps),
    )


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    head_dim: int,
    num_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return normed query, normed key and the gate that lay between the query's heads.

    Args:
        q_gate: ``[tokens, num_heads * 2 * head_dim]``: for each head its query, then its gate.
        k: ``[tokens, num_k_heads * head_dim]``.
        q_weight: ``[head_dim]``.
        k_weight: ``[head_dim]``.
        eps: Added to the mean square.
        head_dim: Values a head.
        num_heads: Query heads.

    Returns:
        ``[tokens * heads, head_dim]`` each, contiguous.
    """
    by_head = q_gate.reshape(-1, num_heads, 2, head_dim)
    q = by_head[:, :, 0].reshape(-1, head_dim)
    gate = by_head[:, :, 1].reshape(-1, head_dim).contiguous()
    normed_k = _gemma_norm(k.reshape(-1, head_dim), k_weight, eps)
    return _gemma_norm(q, q_weight, eps), normed_k, gate


def _gemma_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return (_unit_mean_square(x, eps) * (1.0 + weight.float())).to(x.dtype).contiguous()


def _unit_mean_square(x: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
