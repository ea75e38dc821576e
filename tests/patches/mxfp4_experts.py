"""Run in a process of its own: MXFP4 experts on an SGLang's Triton runner, interpreted or compiled.

SGLang's code runs from its Quark scheme down to its kernels. Stood in for is what it has for
accelerators only: the name of the device, the dispatch of its operators, the sorting of tokens by
expert; and the server's settings.
"""

import importlib.util
import os
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

from sglang_mi300a import mxfp4, torchvision_schemas
from sglang_mi300a.cpu_engine import recipe
from tests.moe.kernels.running import Batch, Weights

_MOE = "sglang.srt.layers.moe.moe_runner"
_SCHEME = "sglang.srt.layers.quantization.quark.schemes.quark_w4a4_mxfp4_moe"
_GROUPS = {"qscheme": "per_group"}
_TILES = {"BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1}


@dataclass(frozen=True)
class Product:
    """Arguments of one launch of the kernel for 4 and 8 bits.

    Attributes:
        hidden: bf16 bits ``[tokens, k]``.
        weight: uint8 ``[experts, rows, bytes]``.
        scale: uint8, or bf16 bits, ``[experts, rows, groups]``.
        ids: int32 ``[tokens, slots]``.
        zero: uint8 zero points, or None.
        bits: Of a weight.
        tile: Rows of tokens of a program.
    """

    hidden: np.ndarray
    weight: np.ndarray
    scale: np.ndarray
    ids: np.ndarray
    zero: np.ndarray | None = None
    bits: int = 4
    tile: int = 16


def use(root: str) -> str:
    """Import the SGLang in a directory; return the kernels' file."""
    sys.path[:0] = [str(recipe.standins_path()), root]
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    torchvision_schemas.define_missing()
    from sglang.srt.utils import common

    register = common.direct_register_custom_op

    def register_on_cpus_too(op_name: str, op_func: Any, **more: Any) -> None:
        register(op_name, op_func, **more)
        common.sglang_lib.impl(op_name, op_func, "CPU")

    with mock.patch.object(common, "direct_register_custom_op", register_on_cpus_too):
        from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
    from sglang.kernels.ops.moe import fused_moe_triton_kernels
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config

    settings = SimpleNamespace(
        deterministic=SimpleNamespace(enable_deterministic_inference=False),
        moe=SimpleNamespace(enable_fused_moe_sum_all_reduce=False),
    )
    for module in (fused_moe, fused_moe_triton_config):
        module.get_exec = lambda: settings
    fused_moe_triton_config.get_device_name = lambda: "CPU"
    fused_moe.moe_align_block_size = _sorted_by_expert
    return str(fused_moe_triton_kernels.__file__)


def layer(weights: Weights, batch: Batch, backend: str = "auto") -> np.ndarray:
    """Return what a layer of the Quark scheme gives, loaded and called as SGLang does; bf16 bits.

    Args:
        weights: The experts, MXFP4.
        batch: The tokens.
        backend: As ``--moe-runner-backend``.
    """
    from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig
    from sglang.srt.layers.moe.token_dispatcher import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    num_experts, double_inner, half_hidden = weights.w13.shape
    experts = torch.nn.Module()
    with _backend(backend):
        scheme = _scheme()
        scheme.create_weights(
            experts, num_experts, 2 * half_hidden, double_inner // 2, torch.bfloat16
        )
        elsewhere = int((batch.ids < 0).any())
        config = MoeRunnerConfig(num_experts=num_experts + elsewhere, num_local_experts=num_experts)
        scheme.create_moe_runner(experts, config)
        for name, values in (
            ("w13_weight", weights.w13),
            ("w13_weight_scale", weights.w13_scale),
            ("w2_weight", weights.w2),
            ("w2_weight_scale", weights.w2_scale),
        ):
            getattr(experts, name).data.copy_(_tensor(values))
        scheme.process_weights_after_loading(experts)
    chosen = StandardTopKOutput(_tensor(batch.weights), _tensor(batch.ids), None)
    hidden = _tensor(batch.hidden).view(torch.bfloat16)
    out = scheme.apply_weights(experts, StandardDispatchOutput(hidden, None, chosen))
    return out.hidden_states.view(torch.uint16).numpy()


def runner_of(*, fp4_cores: bool, use_aiter: bool, backend: str) -> str | None:
    """Return the runner that a layer gets on a device; None if it gets none."""
    with (
        _backend(backend),
        mock.patch(f"{_SCHEME}.is_gfx95_supported", return_value=fp4_cores),
        mock.patch(f"{_SCHEME}._use_aiter", use_aiter),
        mock.patch(f"{_SCHEME}.MoeRunner", lambda backend, config: backend.value),
    ):
        scheme = _scheme()
        scheme.create_moe_runner(torch.nn.Module(), None)
    return getattr(scheme, "runner", None)


def product(one: Product) -> np.ndarray:
    """Return one launch's result ``[tokens, slots, rows]``; bf16 bits."""
    import triton.language as tl
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import invoke_fused_moe_kernel

    num_tokens, slots = one.ids.shape
    num_experts, rows, num_bytes = one.weight.shape
    k = num_bytes * 8 // one.bits
    scale = _tensor(one.scale)
    out = torch.full((num_tokens, slots, rows), torch.nan, dtype=torch.bfloat16)
    invoke_fused_moe_kernel(
        _tensor(one.hidden).view(torch.bfloat16), _tensor(one.weight), None, out, None,
        scale if scale.dtype == torch.uint8 else scale.view(torch.bfloat16),
        None if one.zero is None else _tensor(one.zero),
        torch.ones(one.ids.shape), _tensor(one.ids),
        *_sorted_by_expert(_tensor(one.ids), one.tile, num_experts),
        mul_routed_weight=False,
        top_k=slots,
        config={"BLOCK_SIZE_M": one.tile} | _TILES,
        compute_type=tl.bfloat16,
        use_fp8_w8a8=False, use_int8_w8a8=False,
        use_int8_w8a16=one.bits == 8, use_int4_w4a16=one.bits == 4,
        per_channel_quant=False,
        block_shape=[0, k // scale.shape[2]],
    )  # fmt: skip
    return out.view(torch.uint16).numpy()


def compiled(file: str, target: Any, bits: int = 4, scale: str = "*u8") -> str:
    """Return what Triton makes of the kernel in a file for a device, without one.

    Args:
        file: Of the kernels; the rest of SGLang is the one in use.
        target: Which device.
        bits: Of a weight.
        scale: Type of the scales; ``*u8`` is MXFP4.
    """
    import triton
    from triton.compiler import ASTSource

    spec = importlib.util.spec_from_file_location("kernels_of_a_file", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = module.fused_moe_kernel_gptq_awq
    pointers = {
        **{"a_ptr": "*bf16", "b_ptr": "*u8", "c_ptr": "*bf16", "b_scale_ptr": scale},
        **{"topk_weights_ptr": "*fp32", "sorted_token_ids_ptr": "*i32", "expert_ids_ptr": "*i32"},
        "num_tokens_post_padded_ptr": "*i32",
    }
    constants = {
        **{"N": 512, "K": 4096, "group_size": mxfp4.BLOCK, "b_zp_ptr": None, "has_zp": False},
        **{"stride_ak": 1, "stride_bk": 1, "stride_cn": 1, "stride_bsk": 1},
        **{"MUL_ROUTED_WEIGHT": False, "top_k": 10, "compute_type": triton.language.bfloat16},
        **{"use_int4_w4a16": bits == 4, "use_int8_w8a16": bits == 8},
        **{"even_Ks": True, "filter_expert": True, "BLOCK_SIZE_M": 16, **_TILES},
    }
    if "use_mxfp4_w4a16" in kernel.arg_names:
        constants["use_mxfp4_w4a16"] = scale == "*u8"
    of_numbers = {name: pointers.get(name, "i32") for name in kernel.arg_names}
    signature = of_numbers | dict.fromkeys(constants, "constexpr")
    assert set(signature) == set(kernel.arg_names)
    result = triton.compile(ASTSource(kernel, signature, constexprs=constants), target=target)
    return result.asm["amdgcn" if target.backend == "hip" else "ptx"]


def _scheme() -> Any:
    from sglang.srt.layers.quantization.quark.schemes import QuarkW4A4MXFp4MoE

    return QuarkW4A4MXFp4MoE(_GROUPS, _GROUPS)


def _backend(name: str) -> Any:
    from sglang.srt.layers.moe.utils import MoeRunnerBackend
    from sglang.srt.runtime_context import get_flags

    return get_flags().moe.override(runner_backend=MoeRunnerBackend(name))


def _sorted_by_expert(
    ids: torch.Tensor, tile: int, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return slots by expert, each expert's padded to whole tiles; tiles' experts; the length."""
    flat = ids.flatten().tolist()
    slots, experts = [], []
    for expert in range(-1, num_experts):
        of_expert = [slot for slot, one in enumerate(flat) if one == expert]
        of_expert += [len(flat)] * (-len(of_expert) % tile)
        slots += of_expert
        experts += [expert] * (len(of_expert) // tile)
    return tuple(torch.tensor(one, dtype=torch.int32) for one in (slots, experts, [len(slots)]))


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array))
