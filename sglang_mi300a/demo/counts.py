"""What a server answered to the script, counted; and what the counts of two servers say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_DRAFTS_ACCEPTED = 20

NO_SPEED = (
    "Times of SGLang's CPU engine, which runs the experts in plain torch, say nothing about an "
    "MI300A, and are not compared."
)


@dataclass(frozen=True)
class Counts:
    """One server's answers.

    Attributes:
        preset: It was started with.
        tokens_compared: Greedy tokens, and of these those
        tokens_equal: that transformers says too.
        sessions_tokens: Tokens generated in the sessions, and there
        decode_passes: passes of the target after the prompts, each request's own counted,
        drafts_accepted: tokens that cost no pass, because a draft of them was accepted,
        prompt_tokens: tokens of all prompts,
        cached_tokens: of these from the prefix cache, and
        prefill_passes: passes over prompts.
        sessions_s: Seconds the sessions took, all at once.
        other_drafts_accepted: Drafts accepted outside the sessions.
        hooks: State of every seam over all ranks.
    """

    preset: str
    tokens_compared: int
    tokens_equal: int
    sessions_tokens: int
    decode_passes: int
    drafts_accepted: int
    prompt_tokens: int
    cached_tokens: int
    prefill_passes: int
    sessions_s: float
    other_drafts_accepted: int
    hooks: Mapping[str, Mapping[str, Any]]

    @property
    def all_drafts_accepted(self) -> int:
        """Drafts accepted in everything that was asked."""
        return self.drafts_accepted + self.other_drafts_accepted


def faults_of(counts: Counts, *, drafts: bool) -> Iterator[str]:
    """Yield what of one server's counts goes against it.

    Args:
        counts: They.
        drafts: Whether its preset drafts.
    """
    if counts.tokens_equal != counts.tokens_compared or not counts.tokens_compared:
        yield f"{counts.tokens_equal} of {counts.tokens_compared} tokens equal"
    if not counts.cached_tokens:
        yield "no prompt token from the prefix cache"
    if not counts.prefill_passes:
        yield "no pass over a prompt in the server's log"
    accepted = counts.all_drafts_accepted
    if drafts and accepted < LEAST_DRAFTS_ACCEPTED:
        yield f"{accepted} drafts accepted, expected at least {LEAST_DRAFTS_ACCEPTED}"
    if not drafts and accepted:
        yield f"{accepted} drafts accepted by a preset that does not draft"
    yield from hook_faults(counts.hooks)


def hook_faults(hooks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the required hooks that are not live or were not called on every rank."""
    if not hooks:
        yield "no rank reported its hooks"
    for name, row in hooks.items():
        if row["required"] and not (row["live"] and row["calls_min_over_ranks"]):
            yield f"hook {name} not live or never called"


def faults_between(baseline: Counts, tuned: Counts) -> Iterator[str]:
    """Yield why the counts of the two servers cannot be compared, or do not show drafts at work."""
    asked = [(one.prompt_tokens, one.sessions_tokens) for one in (baseline, tuned)]
    if asked[0] != asked[1]:
        yield f"not asked the same: prompt and reply tokens {asked[0]} and {asked[1]}"
    if tuned.decode_passes >= baseline.decode_passes:
        yield f"{tuned.decode_passes} decode passes, {baseline.decode_passes} without drafts"


def rows(servers: Sequence[Counts]) -> list[tuple[str, ...]]:
    """Return the table of what was counted, a row a count."""
    names = (
        ("greedy tokens compared with transformers", "tokens_compared"),
        ("of these equal", "tokens_equal"),
        ("tokens generated in the sessions", "sessions_tokens"),
        ("decode passes of the target", "decode_passes"),
        ("drafts accepted", "drafts_accepted"),
        ("prompt tokens", "prompt_tokens"),
        ("of these from the prefix cache", "cached_tokens"),
        ("prefill passes", "prefill_passes"),
    )
    counted = [(label, *(str(getattr(one, name)) for one in servers)) for label, name in names]
    seconds = (f"{one.sessions_s:.0f} s" for one in servers)
    return [*counted, ("sessions took, on this CPU (not compared)", *seconds)]


def verdict(baseline: Counts, tuned: Counts) -> str:
    """Return what the comparison says at E0, and what it does not say."""
    share = tuned.decode_passes / baseline.decode_passes
    return (
        f"Same questions, same tokens. `tuned` asked the target for {tuned.decode_passes} decode "
        f"passes where `baseline` asked for {baseline.decode_passes} ({share:.2f} of them): "
        f"{tuned.drafts_accepted} drafts were accepted; this tiny model is made so that they are, "
        f"and how often a real model's are is not shown. Prompts took {tuned.prefill_passes} "
        f"passes beside {baseline.prefill_passes}, with {tuned.cached_tokens} and "
        f"{baseline.cached_tokens} of their {tuned.prompt_tokens} tokens from the prefix cache. "
        "Such counts hang on the questions and on each preset's settings for a CPU, not on how "
        f"fast the machine is. {NO_SPEED}"
    )
