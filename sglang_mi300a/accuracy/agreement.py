"""Counts of agreement between expected and found token sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Divergence:
    """The first token of one prompt's continuation that is not the expected one.

    Attributes:
        prompt: Index of the prompt.
        step: Index of the token in the continuation.
        expected: The token expected there, or None if the continuation should have ended.
        found: The token found there, or None if the continuation had ended.
        gap: How far the reference's best logit there was above its second best, or None if not
            known. A small gap says that rounding alone may explain the divergence.
    """

    prompt: int
    step: int
    expected: int | None
    found: int | None
    gap: float | None

    def __str__(self) -> str:
        """Return one phrase for a report."""
        gap = "" if self.gap is None else f", logit gap {self.gap:.3g}"
        expected = "end" if self.expected is None else self.expected
        found = "end" if self.found is None else self.found
        return f"prompt {self.prompt} token {self.step}: expected {expected}, found {found}{gap}"


@dataclass(frozen=True)
class Agreement:
    """How far the found continuations agree with the expected ones.

    After its first divergence a continuation follows another text, so nothing after it is
    compared.

    Attributes:
        num_prompts: Continuations.
        tokens_expected: Tokens of all expected continuations.
        tokens_compared: Of these, the ones up to and with the first divergence of each.
        tokens_equal: Of these, the equal ones.
        divergences: The first divergence of each prompt that has one.
    """

    num_prompts: int
    tokens_expected: int
    tokens_compared: int
    tokens_equal: int
    divergences: tuple[Divergence, ...]

    @property
    def equal(self) -> bool:
        """Whether every continuation is the expected one, and there was something to compare."""
        return self.tokens_expected > 0 and not self.divergences

    @property
    def first_divergence(self) -> Divergence | None:
        """The first divergence of the first prompt that has one."""
        return self.divergences[0] if self.divergences else None

    def beyond(self, gap: float) -> tuple[Divergence, ...]:
        """Return the divergences where the reference's logit gap exceeds ``gap`` or is unknown."""
        return tuple(part for part in self.divergences if part.gap is None or part.gap > gap)

    def __str__(self) -> str:
        """Return one sentence for a report."""
        counts = f"{self.tokens_equal} of {self.tokens_expected} tokens equal"
        if not self.divergences:
            return f"{counts} over {self.num_prompts} prompts"
        parts = "; ".join(str(part) for part in self.divergences)
        return f"{counts}; {len(self.divergences)} of {self.num_prompts} prompts part ({parts})"


def compare(
    expected: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
    gaps: Sequence[Sequence[float]] | None = None,
) -> Agreement:
    """Return how far ``found`` agrees with ``expected``.

    Args:
        expected: The reference's tokens, one sequence a prompt.
        found: The tokens to judge, in the same order of prompts.
        gaps: The reference's best minus second best logit at each expected token.

    Raises:
        ValueError: The numbers of prompts differ, or ``gaps`` does not fit ``expected``.
    """
    if len(expected) != len(found):
        raise ValueError(f"{len(expected)} expected continuations but {len(found)} found")
    if gaps is not None and [len(row) for row in gaps] != [len(row) for row in expected]:
        raise ValueError("gaps must hold one number for each expected token")
    divergences = []
    tokens_compared = tokens_equal = 0
    for prompt, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        num_equal = _common_prefix(wanted, got)
        tokens_equal += num_equal
        tokens_compared += min(num_equal + 1, len(wanted))
        if num_equal == len(wanted) == len(got):
            continue
        inside = num_equal < len(wanted)
        divergences.append(
            Divergence(
                prompt=prompt,
                step=num_equal,
                expected=wanted[num_equal] if inside else None,
                found=got[num_equal] if num_equal < len(got) else None,
                gap=gaps[prompt][num_equal] if gaps is not None and inside else None,
            )
        )
    return Agreement(
        num_prompts=len(expected),
        tokens_expected=sum(len(wanted) for wanted in expected),
        tokens_compared=tokens_compared,
        tokens_equal=tokens_equal,
        divergences=tuple(divergences),
    )


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    for length, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return length
    return min(len(left), len(right))
