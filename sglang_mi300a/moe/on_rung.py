"""An expert layer of the served model on the process's rung, and what rides with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sglang_mi300a.moe import stream_tensors
from sglang_mi300a.moe.rungs import Experts, ExpertSizes, Rung, SharedExpert, TakesSharedExpert

_ALIGN_BYTES = 16


@dataclass
class OnRung:
    """A loaded layer and what runs it.

    Attributes:
        sizes: Of the layer.
        rung: What runs it.
        prepared: What the rung made of its weights.
    """

    sizes: ExpertSizes
    rung: Rung
    prepared: Any

    def apply(self, dispatch_output: Any) -> torch.Tensor:
        """Return the experts' sum for what SGLang's dispatcher hands over."""
        topk = dispatch_output.topk_output
        return self.rung.apply(
            self.prepared,
            dispatch_output.hidden_states.contiguous(),
            topk.topk_ids.to(torch.int32).contiguous(),
            topk.topk_weights.to(torch.float32).contiguous(),
        )


def take_bf16(name: str, layer: Any, sizes: ExpertSizes, rung: Rung) -> OnRung:
    """Rewrite a layer's bf16 experts in place for a rung; return them on it.

    From here on only the rung can read them.

    Args:
        name: Prefix of the layer.
        layer: SGLang's ``FusedMoE`` with ``w13_weight`` and ``w2_weight``.
        sizes: Of the layer.
        rung: One that can run it.
    """
    tensors = {
        f"{projection}_stream": stream_tensors.make_bf16_streams(
            projection, getattr(layer, f"{projection}_weight").data
        )
        for projection in ("w13", "w2")
    }
    return OnRung(sizes, rung, rung.prepare(Experts(name, sizes, tensors)))


def why_apart(block: Any, taken: OnRung) -> str:
    """Return why a sparse block's shared expert cannot ride with its routed ones, or "".

    Args:
        block: SGLang's ``Qwen2MoeSparseMoeBlock``.
        taken: Its routed experts.
    """
    sizes = taken.sizes
    shared, gate = block.shared_expert, block.shared_expert_gate
    if shared is None or gate is None:
        return "the layer has none, or no gate for it"
    if not isinstance(taken.rung, TakesSharedExpert):
        return f"rung {taken.rung.name} does not take it"
    wanted = {
        "gate_up_proj": (shared.gate_up_proj, (2 * sizes.inner, sizes.hidden)),
        "down_proj": (shared.down_proj, (sizes.hidden, sizes.inner)),
        "shared_expert_gate": (gate, (1, sizes.hidden)),
    }
    for name, (module, shape) in wanted.items():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.dtype is not torch.bfloat16:
            return f"{name} is not in bfloat16"
        if tuple(weight.shape) != shape:
            return f"{name} is {tuple(weight.shape)}, beside routed experts it would be {shape}"
        if not weight.is_contiguous() or weight.data_ptr() % _ALIGN_BYTES:
            return f"{name} is not contiguous, or not at a multiple of {_ALIGN_BYTES} bytes"
    return ""


def take_shared(block: Any, taken: OnRung) -> None:
    """Let a sparse block's shared expert ride with its routed ones.

    Its weights are rewritten in place, and the block no longer sees it: SGLang's own branch is
    skipped by its own condition.
    """
    assert isinstance(taken.rung, TakesSharedExpert)
    shared = block.shared_expert
    make = stream_tensors.make_bf16_streams
    riding = SharedExpert(
        w13_stream=make("w13", shared.gate_up_proj.weight.data.unsqueeze(0)),
        w2_stream=make("w2", shared.down_proj.weight.data.unsqueeze(0)),
        gate=block.shared_expert_gate.weight.data.view(-1),
    )
    taken.prepared = taken.rung.with_shared(taken.prepared, riding)
    block.shared_expert = None
