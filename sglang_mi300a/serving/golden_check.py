"""Ask a server what ``golden.json`` holds the right answers to, before anybody else may ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sglang_mi300a import golden
from sglang_mi300a.errors import JudgedAgainst
from sglang_mi300a.golden import Answer, Golden, Verdict

AskLogprobs = Callable[[Sequence[int], Sequence[int]], Awaitable[Mapping[int, float]]]
"""Takes a prompt and token ids; returns log-probabilities of each as the next token."""
GoOn = Callable[[Sequence[int], int], Awaitable[Sequence[int]]]
"""Takes a prompt and a number; returns so many greedy tokens."""


async def run(values: Golden, ask: AskLogprobs, go_on: GoOn, *, within_s: float) -> Verdict:
    """Return how far a server is from the golden values.

    Args:
        values: The golden values.
        ask: Asks for the next token's log-probabilities.
        go_on: Asks for a continuation.
        within_s: How long all of it may take.

    Raises:
        JudgedAgainst: The server did not answer in time.
    """

    async def answers() -> list[Answer]:
        found = []
        for row in values.rows:
            logprobs = await ask(row.token_ids, row.top_ids)
            sure = row.num_sure()
            following = await go_on(row.token_ids, sure) if sure else ()
            found.append(Answer(logprobs, tuple(following)))
        return found

    try:
        return golden.judge(values, await asyncio.wait_for(answers(), within_s))
    except asyncio.TimeoutError as error:
        raise JudgedAgainst(
            f"golden logits: {len(values.rows)} prompts were not answered within {within_s:g} s"
        ) from error


def refusal(verdict: Verdict) -> str:
    """Return why a server must not serve, or ""."""
    if not verdict.is_wrong:
        return ""
    return (
        f"{verdict}: no rounding explains that, so weights, kernels or sums over ranks are wrong; "
        "do: `sglang-mi300a artifact verify`, `sglang-mi300a kernels selftest`, and report this"
    )


def warning(verdict: Verdict) -> str:
    """Return what deserves a look, or ""."""
    if not verdict.is_far:
        return ""
    return (
        f"{verdict}: more than is expected of bfloat16 (up to {golden.FAR}, every sure "
        "continuation equal); answers may be worse than the model's"
    )
