"""Bodies of this room's hooks; imported where they are installed, in ranks on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from sglang_mi300a import settings
from sglang_mi300a.cpu_engine.device_redirect import (
    CudaMeansCpu,
    nothing_to_wait_for,
    states_between_chunks,
)
from sglang_mi300a.cpu_engine.operators.experts import local_experts


def gated_norm(self: Any, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``rmsnorm(x) * weight * silu(z)``."""
    plain = self.norm_before_gate and self.group_size is None and self.bias is None
    if z is None or not plain or self.activation not in ("swish", "silu"):
        raise NotImplementedError(
            "gated norm on a CPU: covered is one group, no bias, gate after the norm, SiLU"
        )
    normed: torch.Tensor = torch.ops.sgl_kernel.fused_rmsnorm_gated_cpu(x, self.weight, z, self.eps)
    return normed


def allow_extra_buffer(
    original: Callable[..., None], self: Any, view: Any, model_arch: str
) -> None:
    """Run stock's checks of the extra buffer, all but that for an accelerator, under a preset."""
    if settings.resolved() is None:
        return original(self, view, model_arch)
    with states_between_chunks(original):
        return original(self, view, model_arch)


def state_pool_on_cpu(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """Build the state pool with its verification scratch in host memory."""
    with CudaMeansCpu():
        original(self, *args, **kwargs)


def without_pinning(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Prepare a batch without pinning memory for an accelerator."""
    with CudaMeansCpu():
        original(*args, **kwargs)


def extend_with_planned_lengths(
    original: Callable[..., Any],
    self: Any,
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    forward_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Attend with the lengths that were planned for this pass: drafted tokens included."""
    planned = with_lengths(forward_batch, self.extend_metadata[0])
    return original(self, q, k, v, layer, planned, *args, **kwargs)


def decode_with_planned_lengths(
    original: Callable[..., Any],
    self: Any,
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    forward_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Attend with the lengths that were planned for this draft step, one a branch."""
    if self.draft_decode_metadata is not None:
        forward_batch = with_lengths(forward_batch, self.draft_decode_metadata[1])
    return original(self, q, k, v, layer, forward_batch, *args, **kwargs)


def with_lengths(forward_batch: Any, seq_lens: torch.Tensor) -> Any:
    """Return a shallow copy of a batch that says ``seq_lens``; the batch itself is left alone."""
    changed = copy.copy(forward_batch)
    changed.seq_lens = seq_lens
    return changed


def share_embedding_and_head(
    original: Callable[..., None], self: Any, embed: Any, head: Any
) -> None:
    """Give the draft the target's embedding and head without waiting for an accelerator."""
    with nothing_to_wait_for():
        original(self, embed, head)


def experts_of_this_rank(
    original: Callable[..., Any],
    layer: Any,
    x: torch.Tensor,
    topk_output: Any,
    moe_runner_config: Any,
) -> Any:
    """Run unquantised experts, leaving out those of other ranks (id -1)."""
    if not bool((topk_output.topk_ids < 0).any()):
        return original(layer, x, topk_output, moe_runner_config)
    has_bias = getattr(layer, "w13_weight_bias", None) is not None
    if moe_runner_config.activation != "silu" or has_bias:
        raise NotImplementedError("expert parallelism on a CPU: covered is SiLU without bias")
    weights, ids = topk_output.topk_weights, topk_output.topk_ids
    return local_experts(x, layer.w13_weight, layer.w2_weight, weights, ids)


def allow_float32(result: list[torch.dtype], cls: Any) -> list[torch.dtype]:
    """Return the activation types of a quantisation, float32 among them."""
    return [*result, torch.float32]
