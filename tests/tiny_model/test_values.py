"""Weights depend on seed and name, and have the spread they are asked for."""

from __future__ import annotations

import numpy as np

from sglang_mi300a.tiny_model.values import Values


def test_values_hang_on_seed_and_name_only() -> None:
    first = Values(3).normal("a", (4, 5), 1.0)
    assert np.array_equal(first, Values(3).normal("a", (4, 5), 1.0))
    assert not np.array_equal(first, Values(4).normal("a", (4, 5), 1.0))
    assert not np.array_equal(first, Values(3).normal("b", (4, 5), 1.0))


def test_a_value_that_was_drawn_once_stays_what_it_is() -> None:
    # A change here changes every tiny model: all recorded tokens of it must be made again.
    drawn = Values(0).normal("weight", (3,), 1.0)
    assert drawn.tolist() == EXPECTED_NORMAL
    assert Values(0).uniform("weight", (2,), 0.0, 1.0).tolist() == EXPECTED_UNIFORM


def test_normal_values_have_the_asked_mean_and_spread() -> None:
    drawn = Values(0).normal("weight", (200_000,), 0.25, mean=2.0)
    # Five standard errors of mean and spread.
    assert abs(drawn.mean() - 2.0) < 5 * 0.25 / 200_000**0.5
    assert abs(drawn.std() - 0.25) < 5 * 0.25 / 400_000**0.5
    assert np.abs(drawn - 2.0).max() < 4.9 * 0.25


def test_uniform_values_fill_their_range() -> None:
    drawn = Values(0).uniform("weight", (100_000,), -1.0, 3.0)
    assert -1.0 <= drawn.min() < -0.99
    assert 2.99 < drawn.max() < 3.0


EXPECTED_NORMAL = [-1.0083177089691162, -0.1459168642759323, 0.21655797958374023]
EXPECTED_UNIFORM = [0.9487342834472656, 0.04397765174508095]
