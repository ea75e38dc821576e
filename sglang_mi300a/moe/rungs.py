"""What a rung is: one way to run an expert layer, and what it is given.

Three stand in a ladder, best first: the gfx942 code object (``hip_rung``), Triton
(``triton_rung``), plain torch (``torch_rung``). A process takes one (``ladder``) and every expert
layer of its models runs on it. A rung reads experts in the layout that the process has loaded; one
that needs them otherwise rewrites them in place (``stream_tensors``), since a second copy of 47 GiB
has no room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch

WeightKind = Literal["mxfp4", "bf16"]


@dataclass(frozen=True)
class ExpertSizes:
    """What is known of a rank's expert layer before its weights are there.

    Attributes:
        num_experts: Local experts.
        hidden: Hidden size.
        inner: Neurons of an expert on this rank.
        top_k: Experts of a token.
        layout: Id of the layout of the weights, ``stream/1``.
        weights: What they are.
        activations: Type of the hidden states.
    """

    num_experts: int
    hidden: int
    inner: int
    top_k: int
    layout: str
    weights: WeightKind = "mxfp4"
    activations: torch.dtype = torch.bfloat16


@dataclass(frozen=True, eq=False)
class Experts:
    """A loaded expert layer.

    Attributes:
        name: Prefix of its parameters, for errors.
        sizes: Its sizes.
        tensors: Its weights by the last part of the parameter's name. With ``stream/1`` these are
            ``w13_stream`` and ``w2_stream``, uint8 ``[experts, bytes]``; with ``plain/1`` SGLang's
            ``w13_weight``, ``w13_weight_scale``, ``w2_weight`` and ``w2_weight_scale``. Experts in
            bf16 come as streams (``stream_layout.split_bf16``), whatever the layout.
    """

    name: str
    sizes: ExpertSizes
    tensors: Mapping[str, torch.Tensor]


class Rung(Protocol):
    """One way to run expert layers; stateless, one instance a process."""

    @property
    def name(self) -> str:
        """As users write it: ``hip``, ``triton``, ``torch``."""

    def can_run(self, device: torch.device, sizes: ExpertSizes) -> str | None:
        """Return None if it can run such layers on this device, else why not: a few words.

        Called before any weight is loaded; allocates and compiles nothing large. What it does not
        see, the self-test will.
        """

    def prepare(self, experts: Experts) -> Any:
        """Return what :meth:`apply` needs of a layer. Called once a layer, after its load.

        It may rewrite the tensors in place, and then alone knows what is in them.
        """

    def apply(
        self,
        prepared: Any,
        hidden: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
    ) -> torch.Tensor:
        """Return each token's weighted sum over its experts; nothing is reduced over ranks.

        Must be fit for graph capture: no synchronisation, no size read back from the device, and
        no allocation except through torch.

        Args:
            prepared: What :meth:`prepare` returned.
            hidden: ``[M, hidden]``, ``sizes.activations``, contiguous; M may be 0.
            topk_ids: int32 ``[M, top_k]``, local expert ids; negative = no expert of this rank.
            topk_weights: float32 ``[M, top_k]``.

        Returns:
            ``[M, hidden]`` like ``hidden``, a tensor of its own.
        """


@dataclass(frozen=True, eq=False)
class SharedExpert:
    """A bf16 expert that takes every token, weighed by a sigmoid gate.

    Attributes:
        w13_stream: uint8 ``[1, bytes]``, a bf16 stream.
        w2_stream: uint8 ``[1, bytes]``.
        gate: bf16 ``[hidden]``.
    """

    w13_stream: torch.Tensor
    w2_stream: torch.Tensor
    gate: torch.Tensor


@runtime_checkable
class TakesSharedExpert(Protocol):
    """A rung that can add a layer's shared expert to its routed ones in the same launches."""

    def with_shared(self, prepared: Any, shared: SharedExpert) -> Any:
        """Return ``prepared`` with the shared expert, of as many neurons as the routed ones."""


@runtime_checkable
class TellsFacts(Protocol):
    """A rung that has more to report than its name."""

    def facts(self, device: torch.device) -> dict[str, str]:
        """Return what the boot report says of it on a device, after its self-test."""
