"""SGLang's Quark configuration and MXFP4 expert scheme, with our expert layer inside."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.quantization.quark.quark import QuarkConfig
from sglang.srt.layers.quantization.quark.schemes import QuarkMoEScheme
from sglang.srt.layers.quantization.quark.schemes.quark_w4a4_mxfp4_moe import QuarkW4A4MXFp4MoE
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
from sglang.srt.models.qwen2_moe import Qwen2MoeSparseMoeBlock
from sglang.srt.runtime_context import get_server_args
from sglang.srt.utils import set_weight_attrs

from sglang_mi300a import boot_report, hooking, settings
from sglang_mi300a import layout as layouts
from sglang_mi300a.errors import UserError
from sglang_mi300a.hooking import reached
from sglang_mi300a.moe import ladder, loaded, selftest
from sglang_mi300a.moe.hooks import DRAFT_HOOK
from sglang_mi300a.moe.kernels.workspace import launch_tokens
from sglang_mi300a.moe.on_rung import OnRung, take_bf16, take_shared, why_apart
from sglang_mi300a.moe.rungs import Experts, ExpertSizes, Rung


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
    """MXFP4 weights with activations in the model's own dtype (W4A16), on this process's rung.

    In the plain layout the parameters keep stock's names, shapes and loader attributes; in the
    kernels' layout they are ``w13_stream`` and ``w2_stream`` and nothing beside them. Stock's own
    steps after loading (scale shuffle, weight shuffle, float4 views) are for AITER's gfx950 kernels
    and are not run.

    Attributes:
        layer_name: Prefix of the layer.
        sizes: Of the layer; None until its parameters are made.
        on_rung: The layer on the process's rung; None until its weights are loaded.
    """

    def __init__(self, *args: Any, layer_name: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layer_name = layer_name
        self.sizes: ExpertSizes | None = None
        self.on_rung: OnRung | None = None

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **attributes: Any,
    ) -> None:
        """Choose the process's rung if none is yet, and create the parameters."""
        self.sizes = ExpertSizes(
            num_experts=num_experts,
            hidden=hidden_size,
            inner=intermediate_size_per_partition,
            top_k=layer.top_k,
            layout=_decided().expert_layout,
            activations=params_dtype,
        )
        process_rung(self.sizes, torch.get_default_device())
        if self.sizes.layout == layouts.PLAIN.id:
            super().create_weights(
                layer=layer,
                num_experts=num_experts,
                hidden_size=hidden_size,
                intermediate_size_per_partition=intermediate_size_per_partition,
                params_dtype=params_dtype,
                **attributes,
            )
        else:
            _register_streams(layer, self.sizes, attributes)
        for name, shape in _shapes(self.sizes).items():
            _expect(layer, self.layer_name, name, shape)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Refuse NaN scales and global expert ids; hand the weights to the rung, once."""
        if self.on_rung is not None:
            return
        assert self.sizes is not None
        found = loaded.global_ids(layer.dispatcher)
        if found:
            raise UserError(
                self.layer_name,
                found=found,
                allowed="local expert ids",
                do="pass --moe-runner-backend triton (the presets do)",
            )
        tensors = {name: getattr(layer, name).data for name in _shapes(self.sizes)}
        loaded.check_scales(self.layer_name, tensors)
        rung = process_rung(self.sizes, next(iter(tensors.values())).device)
        prepared = rung.prepare(Experts(self.layer_name, self.sizes, tensors))
        self.on_rung = OnRung(self.sizes, rung, prepared)

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
        assert self.on_rung is not None
        return StandardCombineInput(self.on_rung.apply(dispatch_output))


def process_rung(sizes: ExpertSizes, device: torch.device) -> Rung:
    """Return the rung of this process, chosen with its first MXFP4 layer and reported.

    Raises:
        UserError: None that the launcher's decision allows can run.
    """
    decided = _decided()
    choice = ladder.of_process(
        decided.device,
        device,
        sizes,
        allowed=decided.allowed_rung,
        rungs=ladder.makers(_max_tokens(sizes.top_k), getattr(torch, decided.moe_intermediate)),
    )
    if "experts" not in boot_report.facts():
        boot_report.add_fact("experts", choice.report())
    return choice.rung


def _decided() -> settings.Resolved:
    """Return the launcher's decision; a process that no launcher of ours started is a test's."""
    return settings.resolved() or settings.Resolved("", "cpu", "", 1, 1, 1, False, 0, 0, 0, "")


def _max_tokens(top_k: int) -> int:
    """Return the tokens of one launch at most: a chunk of a prefill, if the kernels take it."""
    return launch_tokens(int(get_server_args().chunked_prefill_size or 0), top_k)


def _shapes(sizes: ExpertSizes) -> dict[str, tuple[int, ...]]:
    """Return name and shape of one layer's parameters."""
    hidden, inner = sizes.hidden, sizes.inner
    layout = layouts.named(sizes.layout, where="expert layout")
    shapes = {}
    for projection, rows, k in (("w13", 2 * inner, hidden), ("w2", hidden, inner)):
        for tensor in layout.stored(layouts.mxfp4_tensors(projection, rows, k)):
            shapes[tensor.name] = (sizes.num_experts, *tensor.shape)
    return shapes


def _register_streams(layer: torch.nn.Module, sizes: ExpertSizes, attributes: Any) -> None:
    for name, shape in _shapes(sizes).items():
        stream = torch.nn.Parameter(torch.empty(shape, dtype=torch.uint8), requires_grad=False)
        layer.register_parameter(name, stream)
        set_weight_attrs(stream, attributes)


def _expect(layer: torch.nn.Module, where: str, name: str, wanted: tuple[int, ...]) -> None:
    shape = tuple(getattr(layer, name).shape)
    if shape != wanted:
        raise UserError(
            f"{where}.{name}",
            found=f"shape {shape}",
            allowed=f"{wanted} (no padding)",
            do="use a torch with float4_e2m1fn_x2 or unset SGLANG_USE_AITER; choose a TP size that "
            "keeps whole 128-byte rows",
        )


def complete(model: torch.nn.Module, is_draft: bool) -> None:
    """Finish a loaded model: a bf16 draft's experts, and each layer's shared expert.

    What is taken and what is left to SGLang is added to the boot report.

    Args:
        model: Target or draft, loaded.
        is_draft: Which.
    """
    together = _decided().shared_expert == "together"
    shared, draft = Counter[str](), Counter[str]()
    for name, block in model.named_modules():
        if not isinstance(block, Qwen2MoeSparseMoeBlock):
            continue
        taken = getattr(block.experts.scheme, "on_rung", None)
        if taken is None and is_draft:
            taken = _take_draft(f"{name}.experts", block.experts, draft)
        if taken is None:
            continue
        why = why_apart(block, taken) if together else "asked for"
        shared[f"apart: {why}" if why else "together"] += 1
        if not why:
            take_shared(block, taken)
    fact = boot_report.facts().get("experts", {})
    part = "draft" if is_draft else "target"
    found = {f"{part}.shared_expert": dict(shared), f"{part}.bf16_experts": dict(draft)}
    boot_report.add_fact("experts", {**fact, **{k: v for k, v in found.items() if v}})


def _take_draft(name: str, layer: Any, counts: Counter[str]) -> OnRung | None:
    """Take a layer of bf16 experts onto the process's rung where that runs them, and is right."""
    reason = _why_stock(layer)
    if reason:
        counts[f"left to SGLang: {reason}"] += 1
        return None
    sizes, device = _bf16_sizes(layer), layer.w13_weight.device
    rung = ladder.taken(device)
    if rung is None:
        return None
    reason = rung.can_run(device, sizes) or _bf16_self_test(rung, device, sizes)
    if reason:
        print(f"sglang-mi300a: {name} left to SGLang: {reason}", file=sys.stderr, flush=True)
        counts[f"left to SGLang: {reason}"] += 1
        return None
    taken = take_bf16(name, layer, sizes, rung)
    layer.mi300a_on_rung = taken
    counts[f"on {rung.name}"] += 1
    return taken


def _why_stock(layer: Any) -> str:
    """Return why a float layer stays SGLang's, before its sizes are looked at."""
    method = layer.quant_method
    hook = hooking.installed().get(DRAFT_HOOK)
    if hook is None or hook.skipped or not hooking.is_live(hook)[0]:
        return f"hook {DRAFT_HOOK} is not in place"
    if type(method) is not UnquantizedFusedMoEMethod or method.with_bias:
        return f"{type(method).__name__} with or without bias"
    if method._aiter_runner is not None or method.use_triton_kernels:
        return "its weights are in another kernel's order"
    if layer.w13_weight.dtype is not torch.bfloat16:
        return f"weights of {layer.w13_weight.dtype}"
    return loaded.global_ids(layer.dispatcher)


def _bf16_sizes(layer: Any) -> ExpertSizes:
    num_experts, double_inner, hidden = layer.w13_weight.shape
    return ExpertSizes(
        num_experts=num_experts,
        hidden=hidden,
        inner=double_inner // 2,
        top_k=layer.top_k,
        layout=_decided().expert_layout,
        weights="bf16",
    )


def _bf16_self_test(rung: Rung, device: torch.device, sizes: ExpertSizes) -> str:
    test = selftest.run(rung, device, sizes)
    return "" if test.passed else test.in_words()


def apply_taken(original: Callable[..., Any], method: Any, layer: Any, dispatch_output: Any) -> Any:
    """Return a float expert layer's result: on our rung if it was taken, else SGLang's own."""
    taken = layer.__dict__.get("mi300a_on_rung")
    if taken is None:
        return original(method, layer, dispatch_output)
    return StandardCombineInput(taken.apply(dispatch_output))
