"""The expert layer in plain torch: what every kernel is compared with, and the last rung.

    out[m] = sum_j  w[m, j] * W2[e] @ (silu(W1[e] @ x[m]) * (W3[e] @ x[m])),   e = ids[m, j]

in float32 from exactly dequantised MXFP4 weights. The sum over j runs in slot order, so the result
does not depend on which experts share a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch

from sglang_mi300a import mxfp4


@lru_cache(maxsize=8)
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (byte -> its two element values, scale byte -> value) on ``device``."""
    # By numpy: SGLang builds models with another default device and dtype of torch.
    elements, byte = mxfp4.element_values(), np.arange(256)
    pairs = np.stack([elements[byte & 0xF], elements[byte >> 4]], axis=1)
    return (
        torch.from_numpy(pairs).to(device),
        torch.from_numpy(mxfp4.scale_values()).to(device),
    )


def dequantise(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the exact float32 values of packed MXFP4 weights.

    Args:
        packed: uint8 ``[..., K // 2]``, low nibble = even K.
        scales: uint8 ``[..., K // 32]``.

    Returns:
        float32 ``[..., K]``.
    """
    pairs, scale_values = _tables(packed.device)
    values = pairs[packed.long()].reshape(*scales.shape, mxfp4.BLOCK)
    scaled = values * scale_values[scales.long()].unsqueeze(-1)
    return scaled.reshape(*packed.shape[:-1], packed.shape[-1] * 2)


def expert_layer(
    hidden: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    *,
    intermediate_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return the routed experts' weighted sum for each token.

    Args:
        hidden: ``[M, H]``, any float dtype.
        w13: uint8 ``[E, 2 * I, H // 2]``; rows ``0..I-1`` gate, ``I..2I-1`` up.
        w13_scale: uint8 ``[E, 2 * I, H // 32]``.
        w2: uint8 ``[E, H, I // 2]``.
        w2_scale: uint8 ``[E, H, I // 32]``.
        topk_ids: int ``[M, k]``, local expert ids; negative = no expert here (padding, or an
            expert of another rank), which contributes zero.
        topk_weights: float ``[M, k]``.
        intermediate_dtype: ``bfloat16`` rounds ``silu(gate) * up`` once, as the kernels do.

    Returns:
        ``[M, H]`` in ``hidden``'s dtype, rounded once from float32.

    Raises:
        ValueError: An id is not below E.
    """
    return routed_sum(
        hidden,
        lambda expert: dequantise(w13[expert], w13_scale[expert]),
        lambda expert: dequantise(w2[expert], w2_scale[expert]),
        len(w13),
        topk_ids,
        topk_weights,
        intermediate_dtype=intermediate_dtype,
    )


def routed_sum(
    hidden: torch.Tensor,
    w13: Callable[[int], torch.Tensor],
    w2: Callable[[int], torch.Tensor],
    num_experts: int,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    *,
    intermediate_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return :func:`expert_layer` of weights that are found expert by expert.

    Args:
        hidden: As there.
        w13: Expert to float32 ``[2 * I, H]``.
        w2: Expert to float32 ``[H, I]``.
        num_experts: Local experts.
        topk_ids: As there.
        topk_weights: As there.
        intermediate_dtype: As there.

    Raises:
        ValueError: An id is not below ``num_experts``.
    """
    num_tokens, top_k = topk_ids.shape
    ids = topk_ids.long()
    used = torch.unique(ids)
    if used.numel() and int(used[-1]) >= num_experts:
        raise ValueError(f"expert id {int(used[-1])} of {num_experts} local experts")
    x = hidden.float()
    weights = topk_weights.float()
    slots = x.new_zeros(num_tokens, top_k, hidden.shape[1])
    for expert in used[used >= 0].tolist():
        token, slot = (ids == expert).nonzero(as_tuple=True)
        gate, up = (x[token] @ w13(expert).T).chunk(2, dim=1)
        inner = (torch.nn.functional.silu(gate) * up).to(intermediate_dtype).float()
        slots[token, slot] = (inner @ w2(expert).T) * weights[token, slot].unsqueeze(1)
    total = x.new_zeros(num_tokens, hidden.shape[1])
    for slot_index in range(top_k):
        total = total + slots[:, slot_index]
    return total.to(hidden.dtype)
