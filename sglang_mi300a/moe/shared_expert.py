"""The shared expert in the launches of the routed ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
