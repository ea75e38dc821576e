"""What TurnTail does not support, each refused by its name before a cache is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sglang_mi300a.errors import UserError

BACKEND = "gdn-turntail"
"""Value of ``--radix-cache-backend`` that selects TurnTail."""
MARGIN_SEAM = "pools.turn_tail_margin"
"""The one of its seams without which it is right all the same."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The part of a server's setup that decides which prefix cache it gets.

    Attributes:
        is_hybrid_ssm: Whether the model has linear-attention states.
        is_hybrid_swa: Whether it has sliding-window layers.
        disable_radix_cache: ``--disable-radix-cache``.
        enable_hierarchical_cache: ``--enable-hierarchical-cache`` (HiCache).
        enable_int8_mamba_checkpoint: ``--enable-int8-mamba-checkpoint``.
        enable_session_radix_cache: ``--enable-session-radix-cache``.
        enable_streaming_session: ``--enable-streaming-session``.
        enable_unified_memory: ``--enable-unified-memory``.
        enable_lmcache: ``--enable-lmcache``.
        enable_flexkv: ``--enable-flexkv``.
        disaggregation_mode: ``--disaggregation-mode``.
        mamba_extra_buffer: Whether requests have a slot for snapshots beside their state's.
        mamba_extra_buffer_lazy: Whether they get the second such slot only when needed.
        cpp_tree: ``SGLANG_EXPERIMENTAL_CPP_RADIX_TREE``.
        tree_core: ``SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND``.
    """

    is_hybrid_ssm: bool
    is_hybrid_swa: bool
    disable_radix_cache: bool
    enable_hierarchical_cache: bool
    enable_int8_mamba_checkpoint: bool
    enable_session_radix_cache: bool
    enable_streaming_session: bool
    enable_unified_memory: bool
    enable_lmcache: bool
    enable_flexkv: bool
    disaggregation_mode: str
    mamba_extra_buffer: bool
    mamba_extra_buffer_lazy: bool
    cpp_tree: bool
    tree_core: str


def refuse_another_sglang(skipped: Mapping[str, str]) -> None:
    """Return nothing where all that TurnTail leans on is as it was pinned.

    Args:
        skipped: Its seams that do not fit this SGLang, with why, by name.

    Raises:
        UserError: One does not; states could be stored under the wrong tokens.
    """
    for name, why in skipped.items():
        if name != MARGIN_SEAM:  # without it snapshots stay where stock puts them
            raise UserError(
                f"TurnTail (--radix-cache-backend {BACKEND}), hook {name}",
                found=why,
                allowed="SGLang's prefix cache as it was pinned",
                do="install a supported SGLang (`sglang-mi300a hooks check`), or serve with "
                "--mi300a baseline",
            )


def refuse_what_is_unsupported(setup: Setup) -> None:
    """Return nothing where TurnTail supports the setup.

    Raises:
        UserError: The first thing it does not support, by the name that turns it on.
    """
    s = setup
    reasons: tuple[tuple[bool, str, str, str], ...] = (
        (
            not s.is_hybrid_ssm or s.is_hybrid_swa,
            "the model",
            "sliding-window layers" if s.is_hybrid_swa else "no linear-attention states",
            "full attention and linear attention",
        ),
        (s.disable_radix_cache, "--disable-radix-cache", "given", "a prefix cache"),
        (
            s.enable_hierarchical_cache,
            "--enable-hierarchical-cache",
            "HiCache",
            "states in device memory only",
        ),
        (
            s.enable_int8_mamba_checkpoint,
            "--enable-int8-mamba-checkpoint",
            "int8 checkpoints",
            "states as they are",
        ),
        (
            s.cpp_tree,
            "SGLANG_EXPERIMENTAL_CPP_RADIX_TREE",
            "the C++ tree",
            "SGLang's Python tree",
        ),
        (
            s.tree_core != "python",
            "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND",
            repr(s.tree_core),
            "'python'",
        ),
        (
            s.enable_session_radix_cache,
            "--enable-session-radix-cache",
            "an eviction order of its own",
            "TurnTail's order",
        ),
        (
            s.enable_streaming_session,
            "--enable-streaming-session",
            "given",
            "requests on their own",
        ),
        (s.enable_unified_memory, "--enable-unified-memory", "given", "a state pool of its own"),
        (s.enable_lmcache, "--enable-lmcache", "LMCache", "SGLang's own prefix cache"),
        (s.enable_flexkv, "--enable-flexkv", "FlexKV", "SGLang's own prefix cache"),
        (
            s.disaggregation_mode != "null",
            "--disaggregation-mode",
            repr(s.disaggregation_mode),
            "'null' (one server prefills and decodes)",
        ),
        (
            not s.mamba_extra_buffer or s.mamba_extra_buffer_lazy,
            "--mamba-radix-cache-strategy",
            "'extra_buffer_lazy'" if s.mamba_extra_buffer_lazy else "'no_buffer'",
            "'extra_buffer'",
        ),
    )
    for unsupported, where, found, allowed in reasons:
        if unsupported:
            raise UserError(
                f"TurnTail (--radix-cache-backend {BACKEND}), {where}",
                found=found,
                allowed=allowed,
                do=f"change {where}, or serve without --radix-cache-backend {BACKEND}",
            )
