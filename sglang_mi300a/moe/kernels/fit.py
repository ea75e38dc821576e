"""Whether the code object can run a model's expert layers: what is known before a device is."""

from __future__ import annotations

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError
from sglang_mi300a.layout import STREAM_ID
from sglang_mi300a.moe.kernels import steps
from sglang_mi300a.moe.kernels.catalogue import WeightFormat
from sglang_mi300a.moe.kernels.steps import Layer
from sglang_mi300a.moe.kernels.workspace import TOKEN_TILES, launch_tokens

ROOM = "moe"
_MXFP4_FORMATS: tuple[WeightFormat, ...] = ("subnormals", "bf8")
MAX_CUS = 304
"""Compute units of the largest gfx942 part; launches are checked for as many."""


def misfit(
    *, num_experts: int, hidden: int, inner: int, top_k: int, layout: str, weights: str = "mxfp4"
) -> str | None:
    """Return why the code object cannot run such experts, or None.

    Args:
        num_experts: Local experts.
        hidden: Hidden size.
        inner: Neurons of an expert on a rank.
        top_k: Experts of a token.
        layout: Id of the layout of the weights.
        weights: ``mxfp4`` or ``bf16``.
    """
    try:
        code_objects.load(ROOM)
    except UserError as error:
        return f"{error.where}: {error.found}; {error.do}"
    if weights == "mxfp4" and layout != STREAM_ID:
        return f"weights in layout {layout}, the kernels read {STREAM_ID}: run shard-weights again"
    formats = _MXFP4_FORMATS if weights == "mxfp4" else ("bf16",)
    for weight_format in formats:
        for tile in TOKEN_TILES:
            try:
                steps.check(
                    Layer(
                        num_tokens=launch_tokens(0, top_k),
                        top_k=top_k,
                        num_experts=num_experts,
                        hidden=hidden,
                        inner=inner,
                        weights=weight_format,
                        token_tile=tile,
                        num_cus=MAX_CUS,
                    )
                )
            except ValueError as error:
                return str(error)
    return None
