"""The expert layer in Triton's interpreter, against the reference that the HIP kernels have."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import triton_moe
from sglang_mi300a import mxfp4
from sglang_mi300a.moe.kernels import work_split
from sglang_mi300a.moe.triton_rung import LaunchShape
from tests.gfx942 import room
from tests.moe.kernels import running
from tests.moe.triton import interpreted

NEURONS = {"TP 8": 128, "TP 4": 256, "TP 2": 512}
"""Of one expert on one rank."""

NUM_EXPERTS, TOP_K = 3, 2

NARROW = LaunchShape(16, 128, 2, 3, 256, 2, 2, 3)
TALL = LaunchShape(32, 512, 4, 2, 1024, 2, 4, 2)


def problem(num_tokens=6, routing="with padding", inner=256, *, bf16=False, seed=0):
    weights = running.random_weights(NUM_EXPERTS, inner, bf16=bf16)
    return weights, running.random_batch(num_tokens, NUM_EXPERTS, TOP_K, routing, seed)


def assert_close(out, weights, batch):
    want = running.expected(weights, batch)
    assert room.relative_l2(room.from_bf16(out), want) < running.THREE_ROUNDINGS


@pytest.mark.parametrize("split", NEURONS)
def test_a_layer_at_full_size_is_as_close_as_its_roundings_allow(split, interpreter):
    weights, batch = problem(inner=NEURONS[split])
    assert_close(interpreter(interpreted.layer, weights, batch, "stream/1").out, weights, batch)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["stream/1", "plain/1"])
def test_whole_experts_of_an_expert_parallel_rank(layout, interpreter):
    weights, batch = problem(inner=1024)
    assert_close(interpreter(interpreted.layer, weights, batch, layout).out, weights, batch)


def test_bf16_experts(interpreter):
    weights, batch = problem(bf16=True)
    assert_close(interpreter(interpreted.layer, weights, batch, "stream/1").out, weights, batch)


@pytest.mark.parametrize("routing", ["one expert", "concentrated"])
def test_experts_with_more_rows_than_a_unit(routing, interpreter):
    weights, batch = problem(19, routing, 128)
    assert_close(interpreter(interpreted.layer, weights, batch, "stream/1").out, weights, batch)


def test_both_layouts_both_decodes_and_every_shape_give_the_same_bits(interpreter):
    weights, batch = problem(9, inner=128)
    first = interpreter(interpreted.layer, weights, batch, "stream/1")
    for layout, shape, keeps in (
        ("plain/1", interpreted.WIDE, True),
        ("stream/1", interpreted.WIDE, False),
        ("stream/1", NARROW, True),
        ("stream/1", TALL, True),
    ):
        other = interpreter(
            interpreted.layer, weights, batch, layout, shape, keeps_subnormals=keeps
        )
        assert np.array_equal(other.out, first.out), (layout, shape, keeps)


def test_the_order_of_programs_does_not_matter(interpreter):
    weights, batch = problem(18, inner=128)
    first = interpreter(interpreted.layer, weights, batch, "stream/1", NARROW)
    last_first = interpreter(interpreted.layer, weights, batch, "stream/1", NARROW, backwards=True)
    assert np.array_equal(last_first.out, first.out)
    for name in ("work", "row_pairs"):
        assert np.array_equal(last_first.scratch[name], first.scratch[name])


@pytest.mark.parametrize("num_tokens", [1, 33])
def test_a_batch_of_padding_gives_zeros(num_tokens, interpreter):
    weights, batch = problem(num_tokens, "nothing here")
    assert (interpreter(interpreted.layer, weights, batch, "stream/1").out == 0).all()


def test_an_id_of_no_local_expert_contributes_nothing(interpreter):
    weights, batch = problem(6, "uniform", 128)
    ids = batch.ids.copy()
    ids[1, 0], ids[2, 1], ids[3] = NUM_EXPERTS, 2**31 - 1, (-7, NUM_EXPERTS + 5)
    here = np.where((ids >= 0) & (ids < NUM_EXPERTS), ids, -1)
    router = np.where(here < 0, np.nan, batch.weights)
    got = interpreter(
        interpreted.layer, weights, replace(batch, ids=ids, weights=router), "stream/1"
    )
    want = interpreter(interpreted.layer, weights, replace(batch, ids=here), "stream/1")
    assert np.array_equal(got.out, want.out)
    assert_close(got.out, weights, replace(batch, ids=here))


def test_a_token_does_not_depend_on_the_batch_it_is_in(interpreter):
    weights, batch = problem(18, "uniform", 128)
    both = interpreter(interpreted.layer, weights, batch, "stream/1")
    only = running.Batch(batch.hidden[5:6], batch.ids[5:6], batch.weights[5:6])
    alone = interpreter(interpreted.layer, weights, only, "stream/1")
    assert np.array_equal(alone.out[0], both.out[5])


def test_a_nan_activation_reaches_its_token_and_no_other(interpreter):
    weights, batch = problem(6, "uniform", 128)
    hidden = batch.hidden.copy()
    hidden[2, 1000] = 0x7FC0
    clean = interpreter(interpreted.layer, weights, batch, "stream/1").out
    spoilt = interpreter(interpreted.layer, weights, replace(batch, hidden=hidden), "stream/1").out
    assert np.isnan(room.from_bf16(spoilt[2])).all()
    others = [0, 1, 3, 4, 5]
    assert np.array_equal(spoilt[others], clean[others])


def test_extreme_scales_and_activations_stay_right(interpreter):
    """Scales over their whole exact range, chosen so that sums stay within float32."""
    rng = np.random.default_rng(8)
    weights, batch = problem(3, "uniform", 128)
    low = rng.integers(0, 122, weights.w13_scale.shape, dtype=np.uint8)
    wide = running.Weights(weights.w13, low, weights.w2, weights.w2_scale)
    size = np.exp2(rng.integers(-60, 3, batch.hidden.shape)).astype(np.float32)
    hidden = room.to_bf16(room.from_bf16(batch.hidden) * size)
    batch = replace(batch, hidden=hidden)
    for keeps in (True, False):
        got = interpreter(interpreted.layer, wide, batch, "stream/1", keeps_subnormals=keeps)
        assert_close(got.out, wide, batch)


@pytest.mark.parametrize("keeps_subnormals", [True, False])
@pytest.mark.parametrize("layout", ["stream/1", "plain/1"])
def test_every_code_under_every_scale_is_exact(layout, keeps_subnormals, interpreter):
    assert (mxfp4.EXACT_SCALE_MIN, mxfp4.EXACT_SCALE_MAX) == (0, 192)
    exact = triton_moe.decodes_exactly
    assert interpreter(exact, layout, keeps_subnormals=keeps_subnormals, device="cpu")


@pytest.mark.parametrize(
    ("num_tokens", "routing"), [(1, "uniform"), (40, "with padding"), (37, "nothing here")]
)
def test_pairs_are_sorted_as_the_work_split_says(num_tokens, routing, interpreter):
    num_experts, tile = 40, 16
    batch = running.random_batch(num_tokens, num_experts, 4, routing)
    left = interpreter(interpreted.sorted_pairs, batch.ids, num_experts, tile)
    want = work_split.sort_pairs(batch.ids, num_experts, tile)
    num_units, num_rows = want.work[0, :2]
    assert left["work"][0, :2].tolist() == [num_units, num_rows]
    units = slice(1, 1 + num_units)
    assert np.array_equal(left["work"][units, :3], want.work[units, :3])
    pairs = left["row_pairs"][:num_rows]
    assert np.array_equal(pairs // 4, want.tokens)
    assert np.array_equal(want.pair_rows[pairs], np.arange(num_rows))


def test_slots_are_added_in_order_and_rounded_once(interpreter):
    weights, batch = problem(9, inner=128)
    result = interpreter(interpreted.layer, weights, batch, "stream/1")
    rows = result.scratch["rows"].view(np.uint16).reshape(9, TOP_K, running.HIDDEN)
    total = np.zeros((9, running.HIDDEN), np.float32)
    for slot in range(TOP_K):
        here = (batch.ids[:, slot] >= 0)[:, None]
        values = np.where(here, room.from_bf16(rows[:, slot]), 0)
        total += values * batch.weights[:, slot, None]
    assert np.array_equal(room.to_bf16(total), result.out)
