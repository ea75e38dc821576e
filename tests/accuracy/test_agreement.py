"""Counting how far two sets of continuations agree."""

from __future__ import annotations

import pytest

from sglang_mi300a.accuracy.agreement import Divergence, compare

EXPECTED = [[1, 2, 3, 4], [5, 6, 7, 8], [9]]
GAPS = [[1.0, 1.1, 1.2, 1.3], [2.0, 0.004, 2.2, 2.3], [3.0]]


def test_equal_continuations_agree_in_full() -> None:
    found = compare(EXPECTED, [list(row) for row in EXPECTED], GAPS)
    assert found.equal
    assert (found.tokens_expected, found.tokens_compared, found.tokens_equal) == (9, 9, 9)
    assert found.first_divergence is None
    assert str(found) == "9 of 9 tokens equal over 3 prompts"


def test_a_flipped_token_is_found_with_the_gap_there() -> None:
    found = compare(EXPECTED, [[1, 2, 3, 4], [5, 60, 7, 8], [9]], GAPS)
    assert not found.equal
    assert found.first_divergence == Divergence(prompt=1, step=1, expected=6, found=60, gap=0.004)
    assert str(found) == (
        "6 of 9 tokens equal; 1 of 3 prompts part "
        "(prompt 1 token 1: expected 6, found 60, logit gap 0.004)"
    )


def test_nothing_is_compared_after_a_divergence() -> None:
    # 7 and 8 stand where they should, but after another text.
    found = compare(EXPECTED, [[1, 2, 3, 4], [5, 60, 7, 8], [9]], GAPS)
    assert (found.tokens_compared, found.tokens_equal) == (7, 6)


@pytest.mark.parametrize("step", range(4))
def test_a_flip_at_any_step_is_found(step: int) -> None:
    flipped = list(EXPECTED[0])
    flipped[step] += 100
    found = compare([EXPECTED[0]], [flipped])
    assert found.tokens_equal == step
    assert found.first_divergence == Divergence(
        prompt=0, step=step, expected=step + 1, found=step + 101, gap=None
    )


def test_a_continuation_that_ends_early_or_late_is_a_divergence() -> None:
    found = compare(EXPECTED, [[1, 2], [5, 6, 7, 8], [9, 10]], GAPS)
    assert found.divergences == (
        Divergence(prompt=0, step=2, expected=3, found=None, gap=1.2),
        Divergence(prompt=2, step=1, expected=None, found=10, gap=None),
    )
    assert (found.tokens_compared, found.tokens_equal) == (8, 7)
    assert "expected 3, found end" in str(found)


def test_only_near_ties_may_be_excused() -> None:
    near = compare(EXPECTED, [[1, 2, 3, 4], [5, 60, 7, 8], [9]], GAPS)
    far = compare(EXPECTED, [[1, 20, 3, 4], [5, 6, 7, 8], [9]], GAPS)
    unknown = compare(EXPECTED, [[1, 20, 3, 4], [5, 6, 7, 8], [9]])
    assert near.beyond(0.01) == ()
    assert near.beyond(0.001) == near.divergences
    assert far.beyond(0.01) == far.divergences
    assert unknown.beyond(100.0) == unknown.divergences


def test_nothing_to_compare_is_no_agreement() -> None:
    assert not compare([], []).equal
    assert not compare([[]], [[]]).equal


def test_rows_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="3 expected continuations but 2 found"):
        compare(EXPECTED, EXPECTED[:2])
    with pytest.raises(ValueError, match="one number for each expected token"):
        compare(EXPECTED, EXPECTED, GAPS[:2])
