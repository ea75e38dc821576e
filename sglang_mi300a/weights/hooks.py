"""What the weights room relies on in SGLang; it changes nothing there.

Artifacts are cut without SGLang at hand, so its cutting rules are pinned too: if one changes, an
artifact must not be loaded as if it had not.
"""

from __future__ import annotations

from sglang_mi300a.hooking import AnySeam, Reliance

_LOADER = "sglang.srt.model_loader.loader"
_LINEAR = "sglang.srt.layers.linear"
_EXPERTS = "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE"
_NEVER = "never: the rule is what has to stay the same"


def _rule(name: str, target: str, why: str, *, only_with_draft: bool = False) -> Reliance:
    return Reliance(
        name=f"weights.{name}",
        target=target,
        why=why,
        remove_when=_NEVER,
        only_with_draft=only_with_draft,
    )


HOOKS: tuple[AnySeam, ...] = (
    _rule(
        "get_model_loader",
        f"{_LOADER}.get_model_loader",
        "it imports sglang.private.private_model_loader for --load-format private",
    ),
    _rule("base_loader", f"{_LOADER}.BaseModelLoader", "our loader is a subclass"),
    _rule(
        "initialize_model",
        f"{_LOADER}._initialize_model",
        "our loader builds the stock model with it",
    ),
    _rule(
        "quantization_config",
        f"{_LOADER}._get_quantization_config",
        "our loader builds the stock model with what it returns",
    ),
    _rule(
        "postprocess",
        f"{_LOADER}.DefaultModelLoader.load_weights_and_postprocess",
        "our loader ends with stock's own last steps, given no weights",
    ),
    _rule(
        "target_names",
        "sglang.srt.models.qwen3_5.Qwen3_5MoeForConditionalGeneration.load_weights",
        "which checkpoint tensors make which parameter of the target",
    ),
    _rule(
        "delta_net",
        "sglang.srt.models.qwen3_5.Qwen3_5GatedDeltaNet.__init__",
        "how the delta net's projections are fused",
    ),
    _rule(
        "attention",
        "sglang.srt.models.qwen3_5.Qwen3_5AttentionDecoderLayer.__init__",
        "how query, gate, key and value heads are fused and shared",
    ),
    _rule(
        "draft_names",
        "sglang.srt.models.qwen3_5_mtp.Qwen3_5ForCausalLMMTP.load_weights",
        "which checkpoint tensors make which parameter of the draft",
        only_with_draft=True,
    ),
    _rule(
        "draft_model",
        "sglang.srt.models.qwen3_5_mtp.Qwen3_5ForCausalLMMTP.__init__",
        "that the draft's embedding and head are the target's",
        only_with_draft=True,
    ),
    _rule(
        "draft_quantisation",
        "sglang.srt.models.qwen3_5_mtp._mtp_quant_config",
        "how the draft's precision follows from the configuration our loader hands over",
        only_with_draft=True,
    ),
    _rule(
        "excluded_modules",
        "sglang.srt.layers.quantization.quark.utils._is_equal_or_regex_match",
        "our loader excludes all of an MXFP4 draft but its experts by one pattern",
        only_with_draft=True,
    ),
    _rule(
        "conv_shards",
        "sglang.srt.layers.attention.mamba.mamba.mamba_v2_sharded_weight_loader",
        "which channels of the convolution a rank takes",
    ),
    _rule(
        "merged_columns",
        f"{_LINEAR}.MergedColumnParallelLinear.weight_loader",
        "which rows of fused projections a rank takes",
    ),
    _rule(
        "qkv",
        f"{_LINEAR}.QKVParallelLinear.weight_loader",
        "which heads a rank takes",
    ),
    _rule(
        "row_parallel",
        f"{_LINEAR}.RowParallelLinear.weight_loader",
        "which columns of output projections a rank takes",
    ),
    _rule(
        "vocabulary",
        "sglang.srt.layers.vocab_parallel_embedding.VocabParallelEmbedding.weight_loader",
        "which rows of embedding and head a rank takes, and that padding is zero",
    ),
    _rule("expert_rows", f"{_EXPERTS}._load_w13", "gate rows first, then up rows, of each expert"),
    _rule("expert_columns", f"{_EXPERTS}._load_w2", "which columns of down projections"),
    _rule(
        "expert_ids",
        f"{_EXPERTS}._map_global_expert_id_to_local_expert_id",
        "which experts an expert-parallel rank holds",
    ),
    _rule(
        "gemma_weight",
        "sglang.srt.layers.layernorm.GemmaRMSNorm._weight_loader",
        "it derives a norm's buffer from its weight",
    ),
)
