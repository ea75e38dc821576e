"""Elementwise gates: attention output, shared expert, and the delta rule's decay and step."""

from __future__ import annotations

import torch
from torch.nn import functional


def fused_sigmoid_mul_cpu(
    attn_output: torch.Tensor, gate: torch.Tensor, inplace: bool = False
) -> torch.Tensor:
    """Return ``attn_output * sigmoid(gate)``, written into ``attn_output`` if ``inplace``.

    Args:
        attn_output: ``[tokens, heads * head_dim]``.
        gate: The same shape, or ``[tokens, heads, head_dim]``.
        inplace: Whether to overwrite and return ``attn_output`` itself.
    """
    gated = attn_output.float() * torch.sigmoid(gate.reshape(attn_output.shape).float())
    if inplace:
        return attn_output.copy_(gated)
    return gated.to(attn_output.dtype)


def add_gated_shared_expert(
    hidden_states: torch.Tensor,
    gate_weight: torch.Tensor,
    shared_output: torch.Tensor,
    final_hidden_states: torch.Tensor,
) -> None:
    """Add ``sigmoid(hidden_states . gate_weight) * shared_output`` to ``final_hidden_states``.

    Args:
        hidden_states: ``[tokens, d]``.
        gate_weight: ``[d]``.
        shared_output: ``[tokens, d]``.
        final_hidden_states: ``[tokens, d]``, updated in place.
    """
    gate = torch.sigmoid(hidden_states.float() @ gate_weight.float())
    final_hidden_states.copy_(
        final_hidden_states.float() + gate.unsqueeze(-1) * shared_output.float()
    )


def fused_gdn_gating_cpu(
    A_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the delta rule's log decay and step size of each token and head.

    Args:
        A_log: ``[heads]``, log of the decay rate.
        a: ``[tokens, heads]``, input-dependent time step before softplus.
        b: ``[tokens, heads]``, step size before sigmoid.
        dt_bias: ``[heads]``, added to ``a``.

    Returns:
        ``g = -exp(A_log) * softplus(a + dt_bias)`` and ``beta = sigmoid(b)``, both
        ``[1, tokens, heads]``, float32.
    """
    return log_decay(A_log, a, dt_bias).unsqueeze(0), torch.sigmoid(b.float()).unsqueeze(0)


def log_decay(
    A_log: torch.Tensor,
    a: torch.Tensor,
    dt_bias: torch.Tensor,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
) -> torch.Tensor:
    """Return ``-exp(A_log) * softplus(a + dt_bias)``, float32, the shape of ``a``."""
    step = functional.softplus(a.float() + dt_bias.float(), softplus_beta, softplus_threshold)
    return -A_log.float().exp() * step
