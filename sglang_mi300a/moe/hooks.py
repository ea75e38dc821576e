"""What the moe room puts into SGLang."""

from __future__ import annotations

from sglang_mi300a.hooking import AnySeam, Registration, Reliance

_QUARK = "sglang.srt.layers.quantization.quark"
_WHY = (
    "stock routes Quark MXFP4 experts to AITER, whose MXFP4 kernels exist for gfx950 only; on "
    "gfx942 the first forward aborts"
)
_REMOVE_WHEN = "SGLang or AITER runs Quark MXFP4 experts on gfx942"

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
