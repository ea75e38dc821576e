"""SGLang's Quark configuration and MXFP4 expert scheme, with our expert layer inside."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.quantization.quark.quark import QuarkConfig
from sglang.srt.layers.quantization.quark.schemes import QuarkMoEScheme
from sglang.srt.layers.quantization.quark.schemes.quark_w4a4_mxfp4_moe import QuarkW4A4MXFp4MoE

from sglang_mi300a import mxfp4, settings
from sglang_mi300a.errors import UserError
from sglang_mi300a.hooking import reached
from sglang_mi300a.moe.reference import expert_layer


class MI300AQuarkConfig(QuarkConfig):
    """Stock's Quark configuration; MXFP4 experts get :class:`FusedMxfp4MoE`."""

    def get_moe_scheme(self, module: torch.nn.Module, layer_name: str) -> QuarkMoEScheme:
        """Return our scheme where stock would return its MXFP4 scheme, else stock's."""
        scheme = super().get_moe_scheme(module, layer_name)
        if type(scheme) is not QuarkW4A4MXFp4MoE:
            return scheme
        return FusedMxfp4MoE(
            scheme.weight_quant,
            scheme.input_quant,
            is_checkpoint_mxfp4_serialized=scheme.is_checkpoint_mxfp4_serialized,
            dequantization_config=scheme.dequantization_config,
            layer_name=layer_name,
        )


class FusedMxfp4MoE(QuarkW4A4MXFp4MoE):
    """MXFP4 weights with activations in the model's own dtype (W4A16).

    Parameters keep stock's names, shapes and loader attributes. Stock's own steps after loading
    (scale shuffle, weight shuffle, float4 views) are for AITER's gfx950 kernels and are not run.
    """

    def __init__(self, *args: Any, layer_name: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layer_name = layer_name
        record = settings.resolved()
        rounded = record is not None and record.moe_intermediate == "bfloat16"
        self.intermediate_dtype = torch.bfloat16 if rounded else torch.float32

    def create_weights(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        """Create stock's parameters and check that none was padded for another kernel."""
        super().create_weights(layer, *args, **kwargs)
        inter = kwargs["intermediate_size_per_partition"]
        hidden = kwargs["hidden_size"]
        _expect(layer, self.layer_name, "w13_weight", (2 * inter, hidden // 2))
        _expect(layer, self.layer_name, "w13_weight_scale", (2 * inter, hidden // mxfp4.BLOCK))
        _expect(layer, self.layer_name, "w2_weight", (hidden, inter // 2))
        _expect(layer, self.layer_name, "w2_weight_scale", (hidden, inter // mxfp4.BLOCK))

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Refuse NaN scales; change nothing (may run more than once)."""
        for name in ("w13_weight_scale", "w2_weight_scale"):
            bad = getattr(layer, name).data == mxfp4.SCALE_NAN
            if bad.any():
                expert, row, block = bad.nonzero()[0].tolist()
                raise UserError(
                    f"{self.layer_name}.{name}",
                    found=f"scale 0xFF (NaN) at expert {expert}, row {row}, block {block}; "
                    f"{int(bad.sum())} in all",
                    allowed="E8M0 scales 0x00 to 0xFE",
                    do="fetch the checkpoint again, or `sglang-mi300a artifact verify`",
                )

    def create_moe_runner(self, layer: torch.nn.Module, moe_runner_config: MoeRunnerConfig) -> None:
        """Keep the configuration; refuse what our expert layer does not compute."""
        self.moe_runner_config = moe_runner_config
        unsupported = {
            "activation": moe_runner_config.activation != "silu",
            "is_gated": not moe_runner_config.is_gated,
            "apply_router_weight_on_input": moe_runner_config.apply_router_weight_on_input,
            "no_combine": moe_runner_config.no_combine,
            "routed_scaling_factor": moe_runner_config.routed_scaling_factor not in (None, 1.0),
            "swiglu_limit": moe_runner_config.swiglu_limit is not None,
            "gemm1_clamp_limit": moe_runner_config.gemm1_clamp_limit is not None,
            "num_fused_shared_experts": bool(moe_runner_config.num_fused_shared_experts),
        }
        asked = [
            f"{name}={getattr(moe_runner_config, name)}" for name, bad in unsupported.items() if bad
        ]
        if asked:
            raise UserError(
                self.layer_name,
                found=", ".join(asked),
                allowed="gated SiLU experts, routing weight applied to their output",
                do="serve this model without this package (--mi300a off)",
            )

    def apply_weights(self, layer: Any, dispatch_output: Any) -> StandardCombineInput:
        """Return the routed experts' sum for the dispatched tokens."""
        reached("moe.quark")
        reached("moe.quark_mxfp4")
        dispatcher: Any = layer.dispatcher
        if dispatcher.moe_ep_size > 1 and dispatcher.use_aiter_moe_runner:
            raise UserError(
                self.layer_name,
                found="global expert ids (AITER runner) with expert parallelism",
                allowed="local expert ids",
                do="pass --moe-runner-backend triton (the presets do)",
            )
        topk = dispatch_output.topk_output
        out = expert_layer(
            dispatch_output.hidden_states,
            layer.w13_weight.data,
            layer.w13_weight_scale.data,
            layer.w2_weight.data,
            layer.w2_weight_scale.data,
            topk.topk_ids,
            topk.topk_weights,
            intermediate_dtype=self.intermediate_dtype,
        )
        return StandardCombineInput(hidden_states=out)


def _expect(layer: torch.nn.Module, where: str, name: str, rows: tuple[int, int]) -> None:
    shape = tuple(getattr(layer, name).shape)
    if shape[1:] != rows:
        raise UserError(
            f"{where}.{name}",
            found=f"shape {shape}",
            allowed=f"[experts, {rows[0]}, {rows[1]}] (no padding)",
            do="use a torch with float4_e2m1fn_x2 or unset SGLANG_USE_AITER; choose a TP size that "
            "keeps whole 128-byte rows",
        )
