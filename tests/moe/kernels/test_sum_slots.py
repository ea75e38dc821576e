"""The sum over a token's experts."""

import numpy as np
import pytest

from sglang_mi300a.moe.kernels import catalogue, steps
from tests.gfx942 import room
from tests.moe.kernels import running


def sum_slots(rows, pair_rows, weights, columns, shared_weights=None, order="forward"):
    num_tokens, top_k = pair_rows.shape
    layer = steps.Layer(
        num_tokens=num_tokens,
        top_k=top_k,
        num_experts=8,
        hidden=columns,
        inner=256,
        weights="subnormals",
        token_tile=16,
        num_cus=4,
        shared_expert=shared_weights is not None,
    )
    buffers = {
        steps.ROWS: running.read_only(rows),
        steps.PAIR_ROWS: running.read_only(pair_rows),
        steps.TOPK_WEIGHTS: running.read_only(weights),
        steps.OUT: np.full((num_tokens, columns), 0xFFFF, np.uint16),
    }
    if shared_weights is not None:
        buffers[steps.SHARED_WEIGHTS] = running.read_only(shared_weights)
    running.launch(steps.sum_slots(layer), buffers, order)
    return buffers[steps.OUT]


def in_order(rows, pair_rows, weights):
    """Return float32 sums, slot after slot, each product and sum rounded once (fma)."""
    values = room.from_bf16(rows).astype(np.float64)
    total = np.zeros((len(pair_rows), rows.shape[1]), np.float32)
    for slot in range(pair_rows.shape[1]):
        row, weight = pair_rows[:, slot], weights[:, slot].astype(np.float64)
        # A product of bf16 and float32 is exact in float64, so this rounds where fma does, but
        # for a sum that is half-way in float64 only by its own rounding: not with these data.
        product = np.where((row >= 0)[:, None], values[row] * weight[:, None], 0)
        total = (total.astype(np.float64) + product).astype(np.float32)
    return total


@pytest.mark.parametrize("top_k", [1, 8, 10, 11, 23])
@pytest.mark.parametrize("columns", [8, 504, 4096])
def test_slots_are_added_in_order_and_rounded_once(top_k, columns):
    rng = np.random.default_rng([top_k, columns])
    num_tokens = 3
    rows = room.to_bf16(rng.standard_normal((num_tokens * top_k, columns)))
    pair_rows = rng.permutation(num_tokens * top_k).astype(np.int32).reshape(num_tokens, top_k)
    pair_rows[rng.random(pair_rows.shape) < 0.2] = -1
    weights = rng.standard_normal(pair_rows.shape).astype(np.float32)
    got = sum_slots(rows, pair_rows, weights, columns)
    assert np.array_equal(got, room.to_bf16(in_order(rows, pair_rows, weights)))
    assert np.array_equal(got, sum_slots(rows, pair_rows, weights, columns, order="random"))


def test_a_pair_without_a_row_adds_nothing_whatever_its_weight():
    rows = np.full((4, 16), 0x7FC0, np.uint16)  # NaN
    rows[1] = room.to_bf16(np.arange(16))
    pair_rows = np.array([[-1, 1], [-1, -1]], np.int32)
    weights = np.array([[np.nan, 2.0], [np.inf, -np.inf]], np.float32)
    got = room.from_bf16(sum_slots(rows, pair_rows, weights, 16))
    assert got.tolist() == [list(np.arange(16) * 2.0), [0.0] * 16]


def test_the_shared_expert_is_added_last():
    rng = np.random.default_rng(4)
    num_tokens, top_k, columns = 5, 3, 64
    rows = room.to_bf16(rng.standard_normal((num_tokens * (top_k + 1), columns)))
    pair_rows = rng.permutation(num_tokens * top_k).astype(np.int32).reshape(num_tokens, top_k)
    weights = rng.random(pair_rows.shape).astype(np.float32)
    shared = rng.random(num_tokens).astype(np.float32)
    own = (num_tokens * top_k + np.arange(num_tokens, dtype=np.int32))[:, None]
    want = in_order(rows, np.hstack([pair_rows, own]), np.hstack([weights, shared[:, None]]))
    got = sum_slots(rows, pair_rows, weights, columns, shared)
    assert np.array_equal(got, room.to_bf16(want))


def test_results_are_rounded_to_nearest_even():
    """Any float32 can be a result: as a weight of a row of ones. Ties and neighbours too."""
    rng = np.random.default_rng(6)
    upper = rng.integers(0x00800000, 0x77000000, 3000).astype(np.uint32) & 0xFFFF0000
    upper |= rng.integers(0, 2, 3000).astype(np.uint32) << 31
    lower = np.tile(np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32), 500)
    values = (upper | lower).view(np.float32)
    values[:4] = [0.0, -0.0, np.nan, 2.0**112]
    ones = room.to_bf16(np.ones((1, 8)))
    pair_rows = np.zeros((len(values), 1), np.int32)
    got = room.from_bf16(sum_slots(ones, pair_rows, values[:, None], 8))[:, 0]
    assert got[0] == got[1] == 0
    assert np.isnan(got[2])
    assert np.isnan(got[3])  # beyond the range of the rounding: loud, not wrong
    assert np.array_equal(room.to_bf16(got[4:]), room.to_bf16(values[4:]))


def test_a_workgroup_covers_2048_columns():
    layer = steps.Layer(7, 2, 4, 4096, 256, "bf8", 16, 4)
    assert steps.sum_slots(layer).grid == (2, 7)
    assert catalogue.SUM_THREADS * 8 == 2048
