"""Which names of SGLang's kernel package the stand-in covers, and what happens to the others.

``convert_weight_packed`` must never be covered: SGLang takes its presence for AMX support and
would then ask for packed weights and for many more operators on some machines and not on others.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

NAMESPACE = "sgl_kernel"

Way = Literal["torch.ops.sgl_kernel", "sgl_kernel", "sgl_kernel.mamba"]


@dataclass(frozen=True)
class Covered:
    """One name that SGLang asks for.

    Attributes:
        name: The name.
        way: Where SGLang looks for it.
        module: Module of ``operators`` that holds the function of that name.
        mutates: Arguments it writes to (operators only; an imported function may write at will).
    """

    name: str
    way: Way
    module: str
    mutates: tuple[str, ...] = ()

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        found = importlib.import_module(f"sglang_mi300a.cpu_engine.operators.{self.module}")
        function: Callable[..., Any] = getattr(found, self.name)
        return function


def _covered(way: Way, module: str, *names: str) -> tuple[Covered, ...]:
    return tuple(Covered(name, way, module) for name in names)


COVERED: tuple[Covered, ...] = (
    *_covered(
        "sgl_kernel",
        "kv_bookkeeping",
        "assign_draft_cache_locs_contiguous_cpu",
        "assign_extend_cache_locs_cpu",
        "assign_req_to_token_pool_cpu",
        "build_draft_decode_metadata_cpu",
        "copy_all_layer_kv_cache_cpu",
        "fill_accept_out_cache_loc_cpu",
        "fill_bonus_tokens_cpu",
        "rotate_input_ids_cpu",
    ),
    *_covered(
        "sgl_kernel",
        "speculative_verify",
        "build_tree_kernel_efficient_cpu",
        "verify_tree_greedy_cpu",
    ),
    *_covered(
        "sgl_kernel.mamba", "convolution", "causal_conv1d_fn_cpu", "causal_conv1d_update_cpu"
    ),
    *_covered("sgl_kernel.mamba", "delta_rule", "chunk_gated_delta_rule_cpu"),
    *_covered("torch.ops.sgl_kernel", "gating", "fused_gdn_gating_cpu"),
    *_covered(
        "torch.ops.sgl_kernel",
        "norms",
        "fused_qk_gemma_rmsnorm_cpu",
        "fused_qk_gemma_rmsnorm_with_gate_cpu",
        "fused_rmsnorm_gated_cpu",
    ),
    *_covered(
        "torch.ops.sgl_kernel", "projections", "fused_qkvzba_split_reshape_cat_contiguous_cpu"
    ),
    Covered("fused_sigmoid_mul_cpu", "torch.ops.sgl_kernel", "gating", ("attn_output",)),
    Covered(
        "fused_sigmoid_gating_delta_rule_update_cpu",
        "torch.ops.sgl_kernel",
        "delta_rule",
        ("initial_state_source", "intermediate_states_buffer"),
    ),
    Covered("extend_attention_cpu", "torch.ops.sgl_kernel", "attention", ("o_extend",)),
    Covered(
        "decode_attention_cpu",
        "torch.ops.sgl_kernel",
        "attention",
        ("k_buffer", "v_buffer", "output"),
    ),
)


class UncoveredOperator(NotImplementedError, AttributeError):
    """``torch.ops.sgl_kernel.NAME`` is not covered; ``hasattr`` answers False."""


class UncoveredImport(ImportError, NotImplementedError):
    """``from sgl_kernel import NAME`` is not covered; a guarded import takes its other branch."""


def functions(way: Way) -> dict[str, Callable[..., Any]]:
    """Return the covered functions that SGLang looks for in one place, by name."""
    return {each.name: each.function for each in COVERED if each.way == way}


def not_covered(way: Way, name: str) -> str:
    """Return the message for a name that is not covered."""
    known = ", ".join(sorted(each.name for each in COVERED if each.way == way))
    return (
        f"{way}.{name} is not covered by sglang-mi300a's stand-in for SGLang's CPU kernels, which "
        f"serves Qwen3.5-MoE; covered in {way}: {known}"
    )


_libraries: list[Any] = []  # torch takes operators back when their library object dies


def register_operators() -> None:
    """Register the operators with torch; a second call does nothing."""
    import torch

    if _libraries:
        return
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    for each in COVERED:
        if each.way == "torch.ops.sgl_kernel":
            schema = torch.library.infer_schema(each.function, mutates_args=each.mutates)
            library.define(each.name + schema)
            library.impl(each.name, each.function, "CPU")
    _libraries.append(library)
    _name_what_is_missing()


def _name_what_is_missing() -> None:
    """Have ``torch.ops.sgl_kernel`` say what it does not cover."""
    import torch

    class Namespace(type(torch.ops.aten)):  # type: ignore[misc]  # torch names this class privately
        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError as error:
                if name.startswith("__"):
                    raise
                way: Way = "torch.ops.sgl_kernel"
                raise UncoveredOperator(not_covered(way, name)) from error

    setattr(torch.ops, NAMESPACE, Namespace(NAMESPACE))
