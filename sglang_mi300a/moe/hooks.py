"""What the moe room puts into SGLang."""

from __future__ import annotations

import importlib
from typing import Any

from sglang_mi300a.hooking import AnySeam, Hook, Registration, Reliance

_QUARK = "sglang.srt.layers.quantization.quark"
_WHY = (
    "stock routes Quark MXFP4 experts to AITER, whose MXFP4 kernels exist for gfx950 only; on "
    "gfx942 the first forward aborts"
)
_REMOVE_WHEN = "SGLang or AITER runs Quark MXFP4 experts on gfx942"

DRAFT_HOOK = "moe.draft_experts"
"""The hook without which a bf16 draft's experts are not taken."""


def _draft_experts(original: Any, method: Any, layer: Any, dispatch_output: Any) -> Any:
    stock = importlib.import_module("sglang_mi300a.moe.stock")
    return stock.apply_taken(original, method, layer, dispatch_output)


HOOKS: tuple[AnySeam, ...] = (
    Registration(
        name="moe.quark",
        target="sglang.srt.layers.quantization.QUANTIZATION_METHODS",
        key="quark",
        declared_in="sglang.srt.layers.quantization.BASE_QUANTIZATION_METHODS",
        value="sglang_mi300a.moe.stock:MI300AQuarkConfig",
        reached_by="prefill",
        why=_WHY,
        remove_when=_REMOVE_WHEN,
    ),
    Registration(
        name="moe.quark_mxfp4",
        target="sglang.srt.layers.quantization.QUANTIZATION_METHODS",
        key="quark_mxfp4",
        declared_in="sglang.srt.layers.quantization.BASE_QUANTIZATION_METHODS",
        value="sglang_mi300a.moe.stock:MI300AQuarkConfig",
        required=False,  # reached only where the user writes --quantization quark_mxfp4
        reached_by="prefill",
        why=_WHY,
        remove_when=_REMOVE_WHEN,
    ),
    Hook(
        name=DRAFT_HOOK,
        target="sglang.srt.layers.quantization.unquant.UnquantizedFusedMoEMethod.apply",
        kind="around",
        call=_draft_experts,
        needs=("layer", "dispatch_output"),
        required=False,
        device="gfx942",
        reached_by="draft",
        only_with_draft=True,
        why="the MTP layer's bf16 experts, read whole in each draft step, run on our kernels; no "
        "registry leads to the method of a layer without quantisation",
        remove_when="SGLang's bf16 experts are as fast on gfx942, or drafts are MXFP4",
    ),
    Reliance(
        name="moe.shared_expert",
        target="sglang.srt.models.qwen2_moe.Qwen2MoeSparseMoeBlock._forward_shared_experts",
        why="a block whose shared_expert is None skips its branch; ours rides with the routed ones",
        remove_when="SGLang runs the shared expert in the expert layer",
    ),
    Reliance(
        name="moe.sparse_block",
        target="sglang.srt.models.qwen2_moe.Qwen2MoeSparseMoeBlock.forward",
        why="it adds the shared expert only where _forward_shared_experts gave something",
        remove_when="SGLang runs the shared expert in the expert layer",
    ),
    Reliance(
        name="moe.get_moe_scheme",
        target=f"{_QUARK}.quark.QuarkConfig.get_moe_scheme",
        why="our subclass overrides it for MXFP4 and leaves every other format to stock",
        remove_when=_REMOVE_WHEN,
    ),
    Reliance(
        name="moe.create_weights",
        target=f"{_QUARK}.schemes.quark_w4a4_mxfp4_moe.QuarkW4A4MXFp4MoE.create_weights",
        why="expert parameters keep stock's names, shapes and loader attributes",
        remove_when=_REMOVE_WHEN,
    ),
    Reliance(
        name="moe.fused_moe_method",
        target=f"{_QUARK}.quark.QuarkFusedMoEMethod.apply",
        why="it hands the dispatched tokens to the scheme's apply_weights",
        remove_when=_REMOVE_WHEN,
    ),
    Reliance(
        name="moe.dispatch",
        target="sglang.srt.layers.moe.token_dispatcher.standard.StandardDispatcher.dispatch",
        why="it decides whether expert ids arrive local (-1 = elsewhere) or global",
        remove_when=_REMOVE_WHEN,
    ),
)
