"""Settings that stock SGLang takes and gets wrong: refused with the reason, or put right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import pool_sizes
from sglang_mi300a.pools.prefill_accumulation import Limits
from sglang_mi300a.pools.turn_tail import refusals
from sglang_mi300a.settings import ACCUMULATE

STATE_DTYPE = "SGLANG_MAMBA_SSM_DTYPE"
_SKIP_DECODE_LOCK = "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"
_CPP_TREE = "SGLANG_EXPERIMENTAL_CPP_RADIX_TREE"
_TREE_CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
_TRUE = ("1", "true", "yes", "y")  # as SGLang reads its switches


@dataclass(frozen=True)
class PutRight:
    """What has to be changed so that SGLang does what was asked.

    Attributes:
        fields: ``ServerArgs`` fields, by name.
        notes: What to tell the user, a line each.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def put_right(
    fields: Mapping[str, Any], environment: Mapping[str, str], model_context_tokens: int
) -> PutRight:
    """Return what to change in the settings of a launch.

    Args:
        fields: Every field of ``ServerArgs``, preset and user's own merged.
        environment: Variables as ranks will see them.
        model_context_tokens: Longest context of the model.

    Raises:
        UserError: A setting that SGLang would take and not do, or do wrong.
    """
    refuse_stripped_thinking(fields)
    refuse_overruled_state_dtype(fields, environment)
    refuse_what_turn_tail_does_not_support(fields, environment)
    Limits.from_text(environment.get(ACCUMULATE), ACCUMULATE)
    return compensated_fraction(fields, model_context_tokens)


def refuse_stripped_thinking(fields: Mapping[str, Any]) -> None:
    """Refuse ``--strip-thinking-cache``: on a hybrid model later answers come out wrong.

    Raises:
        UserError: It is given.
    """
    if fields.get("strip_thinking_cache"):
        raise UserError(
            "--strip-thinking-cache",
            found="given for a model with linear-attention states",
            allowed="not with such models: SGLang cuts the cached tokens back to the prompt and "
            "stores the state of prompt and reply under them, so the next turn continues from "
            "tokens it does not have",
            do="leave the flag out",
        )


def refuse_overruled_state_dtype(fields: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Refuse a dtype of states in the environment that SGLang would overwrite without a word.

    Raises:
        UserError: Environment and ``--mamba-ssm-dtype`` differ; with replay the latter is float32
            where it is not given.
    """
    asked, flag = environment.get(STATE_DTYPE), fields.get("mamba_ssm_dtype")
    if flag is None and fields.get("enable_linear_replayssm_spec"):
        flag = "float32"
    if asked and flag is not None and asked != flag:
        raise UserError(
            f"environment variable {STATE_DTYPE}",
            found=f"{asked!r}, which SGLang overwrites with --mamba-ssm-dtype {flag}",
            allowed=f"{flag!r}, or nothing",
            do=f"unset {STATE_DTYPE}; to have {asked} states pass --mamba-ssm-dtype {asked}",
        )


def scheduler_of(fields: Mapping[str, Any], environment: Mapping[str, str]) -> pool_sizes.Scheduler:
    """Return the scheduling that SGLang makes of these settings."""
    strategy, overlap = pool_sizes.resolved_strategy(
        str(fields.get("mamba_radix_cache_strategy", "auto")),
        overlap=not fields.get("disable_overlap_schedule", False),
        page_tokens=int(fields.get("page_size") or 1),
    )
    return pool_sizes.Scheduler(
        overlap=overlap,
        strategy=strategy,
        radix_cache=not fields.get("disable_radix_cache", False),
        skip_decode_lock=environment.get(_SKIP_DECODE_LOCK) == "1",
    )


def refuse_what_turn_tail_does_not_support(
    fields: Mapping[str, Any], environment: Mapping[str, str]
) -> None:
    """Refuse, before any rank starts, what the prefix cache would refuse in each rank.

    Raises:
        UserError: The first such setting, by its name.
    """
    if fields.get("radix_cache_backend") != refusals.BACKEND:
        return
    scheduler = scheduler_of(fields, environment)
    refusals.refuse_what_is_unsupported(
        refusals.Setup(
            is_hybrid_ssm=True,
            is_hybrid_swa=False,
            mamba_extra_buffer=scheduler.has_extra_buffer,
            mamba_extra_buffer_lazy=scheduler.strategy == "extra_buffer_lazy",
            cpp_tree=environment.get(_CPP_TREE, "").lower() in _TRUE,
            tree_core=environment.get(_TREE_CORE, "python"),
            **{name: fields[name] for name in _READ_AS_THEY_ARE},
        )
    )


_READ_AS_THEY_ARE = (
    "disable_radix_cache",
    "enable_hierarchical_cache",
    "enable_int8_mamba_checkpoint",
    "enable_session_radix_cache",
    "enable_streaming_session",
    "enable_unified_memory",
    "enable_lmcache",
    "enable_flexkv",
    "disaggregation_mode",
)


def compensated_fraction(fields: Mapping[str, Any], model_context_tokens: int) -> PutRight:
    """Return the memory fraction to pass so that what was asked is what SGLang works with."""
    asked = fields.get("mem_fraction_static")
    if asked is None:
        return PutRight()
    passed = pool_sizes.fraction_to_pass(
        float(asked),
        aiter=fields.get("attention_backend") == "aiter",
        context_tokens=int(fields.get("context_length") or model_context_tokens),
    )
    if passed == asked:
        return PutRight()
    note = (
        f"memory fraction: {asked:g} asked, {passed:.4f} passed, since SGLang multiplies it by "
        f"{pool_sizes.AITER_FRACTION:g} with AITER attention and contexts above "
        f"{pool_sizes.AITER_CONTEXT_TOKENS} tokens; pools are planned and do not depend on it"
    )
    return PutRight({"mem_fraction_static": passed}, (note,))
