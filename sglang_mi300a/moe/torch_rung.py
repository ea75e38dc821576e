"""The last rung: exact on any device, and slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sglang_mi300a.layout import PLAIN, STREAM_ID
from sglang_mi300a.moe.reference import dequantise, routed_sum
from sglang_mi300a.moe.rungs import Experts, ExpertSizes
from sglang_mi300a.moe.stream_tensors import joined

Matrix = Callable[[int], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Where one layer's weights are found, by expert.

    Attributes:
        w13: Expert to float32 ``[2 * inner, hidden]``.
        w2: Expert to float32 ``[hidden, inner]``.
        num_experts: Local experts.
    """

    w13: Matrix
    w2: Matrix
    num_experts: int


class TorchRung:
    """The reference, float32 inside.

    Attributes:
        intermediate_dtype: ``bfloat16`` rounds ``silu(gate) * up`` once, as the kernels do.
    """

    name = "torch"

    def __init__(self, intermediate_dtype: torch.dtype = torch.float32) -> None:
        self.intermediate_dtype = intermediate_dtype

    def can_run(self, device: torch.device, sizes: ExpertSizes) -> str | None:
        """Return None for MXFP4 in a known layout, else why not."""
        if sizes.weights != "mxfp4":
            return f"{sizes.weights} weights: SGLang's own layer runs them"
        if sizes.layout not in (PLAIN.id, STREAM_ID):
            return f"layout {sizes.layout}"
        return None

    def prepare(self, experts: Experts) -> Prepared:
        """Return where the weights are; nothing is moved or copied."""
        sizes, tensors = experts.sizes, experts.tensors
        if sizes.layout == PLAIN.id:

            def plain(projection: str) -> Matrix:
                weight = tensors[f"{projection}_weight"]
                scale = tensors[f"{projection}_weight_scale"]
                return lambda expert: dequantise(weight[expert], scale[expert])

            return Prepared(plain("w13"), plain("w2"), sizes.num_experts)
        w13, w2 = tensors["w13_stream"], tensors["w2_stream"]
        return Prepared(
            lambda expert: dequantise(*joined("w13", w13[expert], 2 * sizes.inner, sizes.hidden)),
            lambda expert: dequantise(*joined("w2", w2[expert], sizes.hidden, sizes.inner)),
            sizes.num_experts,
        )

    def apply(
        self,
        prepared: Prepared,
        hidden: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
    ) -> torch.Tensor:
        """Return the routed experts' sum for each token; reads ids on the host, so no capture."""
        return routed_sum(
            hidden,
            prepared.w13,
            prepared.w2,
            prepared.num_experts,
            topk_ids,
            topk_weights,
            intermediate_dtype=self.intermediate_dtype,
        )
