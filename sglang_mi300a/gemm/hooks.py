"""What the gemm room puts into SGLang: its own kernels, and rows padded to tuned ones.

The tables themselves need no hook: TunableOp and AITER read them where environment variables say.
"""

from __future__ import annotations

from typing import Any

from sglang_mi300a.gemm import padding
from sglang_mi300a.hooking import AnySeam, Hook, Reliance

_ARGS = "sglang.srt.server_args.ServerArgs"
_WHY_LISTS = "the rows that tables are tuned for follow from it"
_REMOVE_WHEN = "SGLang pads prefill to tuned row counts, or tables of any row count are cheap"


def _own_products() -> Any:
    from sglang_mi300a.gemm import own_products  # only ranks need it, and torch

    return own_products


def _linear(original: Any, self: Any, layer: Any, x: Any, bias: Any = None) -> Any:
    made = _own_products().made(x, getattr(layer, "weight", None), bias)
    if made is not None:
        return made
    rows = padding.of_this_process().rows_for(x, getattr(layer, "weight", None), bias)
    if rows <= x.shape[0]:
        return original(self, layer, x, bias)
    return original(self, layer, padding.padded(x, rows), bias)[: x.shape[0]]


def _lm_head(
    original: Any, self: Any, hidden_states: Any, lm_head: Any, embedding_bias: Any = None
) -> Any:
    weight, count = getattr(lm_head, "weight", None), hidden_states.shape[0]
    is_plain = not self.use_fp32_lm_head and not hasattr(lm_head, "set_lora")
    if is_plain and self.rl_on_policy_target is None:
        made = _own_products().made(hidden_states, weight, embedding_bias)
        if made is not None:
            return made
    rows = padding.of_this_process().rows_for(hidden_states, weight, embedding_bias)
    if rows <= count:
        return original(self, hidden_states, lm_head, embedding_bias)
    wider = padding.padded(hidden_states, rows)
    return original(self, wider, lm_head, embedding_bias)[:count]


def _mtp_projection(_: Any, self: Any, *__: Any, **___: Any) -> None:
    padding.pad_module(self.fc)


def _input_projections(_: Any, self: Any, *__: Any, **___: Any) -> None:
    _own_products().of_this_process().pair(self.in_proj_qkvz.weight, self.in_proj_ba.weight)


HOOKS: tuple[AnySeam, ...] = (
    Hook(
        name="gemm.linear",
        target="sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply",
        kind="around",
        call=_linear,
        needs=("self", "layer", "x", "bias"),
        required=False,
        reached_by="prefill",
        why="small batches run on our kernels; prefill has any row count, and one without a tuned "
        "solution runs up to four times slower; no option of SGLang changes either",
        remove_when=_REMOVE_WHEN,
    ),
    Hook(
        name="gemm.lm_head",
        target="sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
        kind="around",
        call=_lm_head,
        needs=("self", "hidden_states", "lm_head", "embedding_bias"),
        required=False,
        reached_by="prefill",
        why="the head is multiplied past the linear layers' method",
        remove_when=_REMOVE_WHEN,
    ),
    Hook(
        name="gemm.mtp_projection",
        target="sglang.srt.models.qwen3_5_mtp.Qwen3_5ForCausalLMMTP.__init__",
        kind="after",
        call=_mtp_projection,
        needs=("self",),
        required=False,
        only_with_draft=True,
        reached_by="load",
        why="the draft's first projection is a torch.nn.Linear, past the linear layers' method",
        remove_when=_REMOVE_WHEN,
    ),
    Hook(
        name="gemm.input_projections",
        target="sglang.srt.models.qwen3_5.Qwen3_5GatedDeltaNet.__init__",
        kind="after",
        call=_input_projections,
        needs=("self",),
        required=False,
        device="gfx942",
        reached_by="load",
        why="a linear attention's two projections have one input, and are one launch of our kernel",
        remove_when="SGLang projects with one matrix",
    ),
    Reliance(
        name="gemm.input_projections_forward",
        target="sglang.srt.models.qwen3_5.Qwen3_5GatedDeltaNet._forward_input_proj",
        required=False,
        device="gfx942",
        why="it makes the second projection right after the first, of the same tensor",
        remove_when="SGLang projects with one matrix",
    ),
    Reliance(
        name="gemm.decode_batch_sizes",
        target=f"{_ARGS}._generate_decode_cuda_graph_batch_sizes",
        required=False,
        why=_WHY_LISTS,
        remove_when=_REMOVE_WHEN,
    ),
    Reliance(
        name="gemm.prefill_token_counts",
        target=f"{_ARGS}._generate_prefill_cuda_graph_batch_sizes",
        required=False,
        why=_WHY_LISTS,
        remove_when=_REMOVE_WHEN,
    ),
    Reliance(
        name="gemm.captured_batch_sizes",
        target="sglang.srt.model_executor.runner.base_cuda_graph_runner.get_batch_sizes_to_capture",
        required=False,
        why=_WHY_LISTS,
        remove_when=_REMOVE_WHEN,
    ),
    Reliance(
        name="gemm.rows_of_a_request",
        target="sglang.srt.speculative.spec_utils.resolve_num_tokens_per_req",
        required=False,
        why=_WHY_LISTS,
        remove_when=_REMOVE_WHEN,
    ),
)
