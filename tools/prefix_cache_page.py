"""The page of prefix-cache results, from the benchmark's committed JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[1] / "benchmarks/results/cache_replay.json"
POLICIES = ("stock", "flags", "turntail", "turntail+margin")
HEAD = """\
# Prefix cache: what was counted

Generated from `benchmarks/results/cache_replay.json`; made by
`{command}`
with SGLang {sglang}. Evidence E0: SGLang's own cache, allocators and scheduler bookkeeping ran on
a CPU, without a model. {turns} turns after {warm_up_turns} or more to mix; medians of as many seeds
as the last column says.

`stock` is SGLang as it comes; `flags` is
`--mamba-track-interval 8192 --mamba-max-states-per-path 1`; `turntail+margin` is what preset
`tuned` sets. Traffic: chats of 3 to 6 turns, rests of 1 to 8 s, as many requests in flight as
there are sessions.
"""


def page() -> str:
    """Return the page's text."""
    data = json.loads(RESULT.read_text(encoding="utf-8"))
    head = HEAD.format(**data)
    parts = [head, *_found(data["cells"]), *_cost(data["cost"]), *_waiting(data["accumulation"])]
    return "\n".join(parts) + "\n"


def _found(cells: list[dict[str, Any]]) -> list[str]:
    shares: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell in cells:
        place = (_traffic(cell), cell["sessions"], cell["slots"])
        shares.setdefault(place, {})[cell["policy"]] = cell
    lines = [
        "## Found, as a share of what an endless cache would find",
        "",
        f"| traffic | sessions | state slots | a request | {' | '.join(POLICIES)} | seeds |",
        "|---|---|---|---|" + "---|" * (len(POLICIES) + 1),
    ]
    for (traffic, sessions, slots), by_policy in sorted(shares.items()):
        found = [
            f"{by_policy[name]['hit_over_ideal']:.3f}" if name in by_policy else ""
            for name in POLICIES
        ]
        num_seeds = min(len(cell["hit_over_ideal_by_seed"]) for cell in by_policy.values())
        lines.append(
            f"| {traffic} | {sessions} | {slots} | {slots / sessions:.1f} | "
            f"{' | '.join(found)} | {num_seeds} |"
        )
    return [*lines, ""]


def _traffic(cell: dict[str, Any]) -> str:
    more = [f"replies {cell['replies']}"]
    if cell["think_factor"] != 1:
        more.append(f"rests x{cell['think_factor']:g}")
    if cell["system_tokens"]:
        more.append(f"{cell['system_tokens']} shared tokens")
    if cell["overlap"]:
        more.append("overlap scheduling")
    return ", ".join(more)


def _cost(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## What evicting costs a turn",
        "",
        "Python calls of the same replay, and time on the shared CPU that ran it; ratios to stock.",
        "",
        "| sessions | state slots | policy | calls in evict | of stock's | us in evict | "
        "of stock's |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['sessions']} | {row['slots']} | {row['policy']} | "
            f"{row['evict_calls_per_turn']:.1f} | {row['evict_calls_over_stock']:.2f} | "
            f"{row['evict_us_per_turn']:.0f} | {row['evict_us_over_stock']:.2f} |"
        )
    return [*lines, ""]


def _waiting(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Prompts that wait for each other",
        "",
        "`turntail+margin`, one seed, 400 turns. Passes are counted; seconds are those of a "
        "model of the passes (`pass_s` in the benchmark). The first token is that of turns after "
        "the first.",
        "",
        "| sessions | tokens/passes | prefill passes in 100 turns | tokens a prefill pass | passes "
        "to the first token, median and p95 | modelled: s to the first token, median and p95 | "
        "modelled: tokens/s, of those without waiting |",
        "|---|---|---|---|---|---|---|",
    ]
    alone = {r["sessions"]: r["tokens_per_modelled_s"] for r in rows if r["limits"] == "0"}
    for row in rows:
        ratio = row["tokens_per_modelled_s"] / alone[row["sessions"]]
        lines.append(
            f"| {row['sessions']} | {row['limits']} | {row['prefill_passes_per_100_turns']:.1f} | "
            f"{row['tokens_per_prefill_pass']:.0f} | {row['first_token_passes_median']:g}, "
            f"{row['first_token_passes_p95']:g} | {row['first_token_s_median']:.2f}, "
            f"{row['first_token_s_p95']:.2f} | {row['tokens_per_modelled_s']:.0f}, x{ratio:.3f} |"
        )
    return lines
