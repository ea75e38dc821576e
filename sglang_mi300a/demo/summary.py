"""What a walk found, for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_mi300a.demo.account import PASSED, Account
from sglang_mi300a.demo.counts import Counts


def of_walk(
    accounts: Sequence[Account], servers: Mapping[str, Counts], page: Path
) -> dict[str, Any]:
    """Return the summary.

    ``tokens_compared``, ``tokens_equal``, ``drafts_accepted`` and ``prefix_cached_tokens`` are over
    all servers, ``hooks`` is the state of the tuned one; ``evidence`` names the levels of the steps
    that passed.
    """
    tuned = servers.get("tuned")
    return {
        "tokens_compared": sum(one.tokens_compared for one in servers.values()),
        "tokens_equal": sum(one.tokens_equal for one in servers.values()),
        "drafts_accepted": sum(one.all_drafts_accepted for one in servers.values()),
        "prefix_cached_tokens": sum(one.cached_tokens for one in servers.values()),
        "hooks": {name: dict(row) for name, row in tuned.hooks.items()} if tuned else {},
        "evidence": sorted({one.evidence for one in accounts if one.status == PASSED}),
        "steps": [
            {
                "name": one.name,
                "evidence": one.evidence,
                "status": one.status,
                "seconds": round(one.seconds, 1),
                "faults": one.faults,
            }
            for one in accounts
        ],
        "page": str(page),
    }
