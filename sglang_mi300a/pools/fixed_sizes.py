"""Exact pool sizes: the budget that leaves them to the flags, and the check that they came out."""

from __future__ import annotations

from typing import Any

from sglang_mi300a.errors import UserError
from sglang_mi300a.gates import RankGates
from sglang_mi300a.rank_agreement import on_every_rank
from sglang_mi300a.settings import Resolved

ENDLESS_BYTES = 1 << 50
"""A KV budget that never binds: SGLang takes the smaller of what a budget holds and
``--max-total-tokens``, so with this budget the flag alone decides."""
ENDLESS_GIB = float(ENDLESS_BYTES >> 30)


def check_on_every_rank(result: Any, configurator: Any, record: Resolved, gates: RankGates) -> None:
    """Compare what SGLang allocated with what was planned, on all ranks; see :func:`check_sizes`.

    Raises:
        UserError: A size differs on this rank, or on the rank that the error names.
    """
    with gates.refusing(), on_every_rank(gates.all_gather):
        check_sizes(result, configurator, record)


def check_sizes(result: Any, configurator: Any, record: Resolved) -> None:
    """Compare what SGLang allocated with what was planned.

    Args:
        result: SGLang's ``KVCacheConfigResult`` (target or draft).
        configurator: SGLang's ``KVCacheConfigurator``.
        record: The launcher's decision.

    Raises:
        UserError: A size differs; the server must not serve.
    """
    draft = bool(configurator.is_draft_worker)
    wanted = {
        "KV tokens": record.kv_tokens,
        "running requests": record.max_running_requests,
    }
    got = {
        "KV tokens": int(result.max_total_num_tokens),
        "running requests": int(result.max_running_requests),
    }
    slots = getattr(result.req_to_token_pool, "mamba_pool", None)
    if slots is not None and not draft:
        wanted["state slots"] = record.state_slots
        got["state slots"] = int(slots.size)
    wrong = [f"{name} {got[name]}" for name in wanted if got[name] != wanted[name]]
    if wrong:
        raise UserError(
            f"{'draft' if draft else 'target'} pools",
            found=", ".join(wrong),
            allowed=", ".join(f"{name} {size}" for name, size in wanted.items()),
            do="choose KV tokens that are a whole number of pages, and state slots of at least "
            "running requests x slots a request (3 to 5, by scheduler mode)",
        )
