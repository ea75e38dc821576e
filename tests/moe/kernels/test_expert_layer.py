"""The whole expert layer at the sizes that are served: sort, both halves, sum."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from sglang_mi300a.moe.kernels import catalogue, steps
from tests.gfx942 import room
from tests.moe.kernels import running

NEURONS = {"TP 4": 256, "TP 2": 512, "EP 4": 1024}
"""Of one expert on one rank."""

FORMATS = ("subnormals", "bf8", "bf16")
TILES = (16, 32)
NUM_EXPERTS, TOP_K = 3, 2


@cache
def result(split, format_, token_tile, num_tokens, routing, with_shared=False):
    """Run a layer once; return everything about it."""
    inner = NEURONS[split]
    weights = running.random_weights(NUM_EXPERTS, inner, bf16=format_ == "bf16")
    shared = running.random_shared(inner) if with_shared else None
    batch = running.random_batch(num_tokens, NUM_EXPERTS, TOP_K, routing)
    layer = running.layer_of(weights, batch, format_, token_tile, shared=shared)
    return layer, weights, batch, shared, running.run(layer, weights, batch, shared)


def assert_close(got, weights, batch, shared=None):
    want = running.expected(weights, batch, shared)
    distance = room.relative_l2(room.from_bf16(got), want)
    assert distance < running.THREE_ROUNDINGS
    return distance


@pytest.mark.parametrize("token_tile", TILES)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("split", NEURONS)
def test_a_layer_at_full_size_is_as_close_as_its_roundings_allow(split, format_, token_tile):
    _, weights, batch, _, run = result(split, format_, token_tile, 6, "uniform")
    assert_close(run.out, weights, batch)


@pytest.mark.slow
@pytest.mark.parametrize("routing", running.ROUTINGS)
@pytest.mark.parametrize("token_tile", TILES)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("split", NEURONS)
def test_more_tokens_and_every_routing_at_full_size(split, format_, token_tile, routing):
    for num_tokens in (17, 40):
        _, weights, batch, _, run = result(split, format_, token_tile, num_tokens, routing)
        assert_close(run.out, weights, batch)


@pytest.mark.slow
@pytest.mark.parametrize("routing", running.ROUTINGS)
@pytest.mark.parametrize("token_tile", TILES)
@pytest.mark.parametrize("format_", FORMATS)
def test_batches_of_every_size_at_full_size(format_, token_tile, routing):
    for num_tokens in (1, 2, 7, 16, 64, 100):
        _, weights, batch, _, run = result("TP 4", format_, token_tile, num_tokens, routing)
        assert_close(run.out, weights, batch)


@pytest.mark.parametrize("token_tile", TILES)
@pytest.mark.parametrize("format_", FORMATS)
def test_a_shared_expert_rides_along(format_, token_tile):
    _, weights, batch, shared, run = result("TP 4", format_, token_tile, 18, "with padding", True)
    assert_close(run.out, weights, batch, shared)


def test_the_shared_expert_works_alone_when_no_routed_expert_is_here():
    _, weights, batch, shared, run = result("TP 4", "subnormals", 16, 5, "nothing here", True)
    assert_close(run.out, weights, batch, shared)


@pytest.mark.parametrize("token_tile", TILES)
@pytest.mark.parametrize("num_tokens", [1, 33])
def test_a_batch_of_padding_gives_zeros(num_tokens, token_tile):
    *_, run = result("TP 4", "subnormals", token_tile, num_tokens, "nothing here")
    assert (run.out == 0).all()


@pytest.mark.parametrize("token_tile", TILES)
def test_the_result_is_the_same_to_the_bit_whatever_runs_when(token_tile):
    arguments = ("TP 4", "subnormals", token_tile, 18, "with padding", True)
    layer, weights, batch, shared, first = result(*arguments)
    for options in ({"order": "random", "seed": 7}, {"order": "reverse"}):
        again = running.run(layer, weights, batch, shared, **options)
        assert np.array_equal(again.out, first.out), options
    wider = running.run(replace(layer, num_cus=228), weights, batch, shared)
    assert np.array_equal(wider.out, first.out)


def test_a_token_does_not_depend_on_the_batch_it_is_in():
    layer, weights, batch, _, both = result("TP 4", "subnormals", 16, 18, "uniform")
    only = running.Batch(batch.hidden[5:6], batch.ids[5:6], batch.weights[5:6])
    alone = running.run(replace(layer, num_tokens=1), weights, only)
    assert np.array_equal(alone.out[0], both.out[5])


def test_both_tiles_and_both_decodes_give_the_same_bits():
    """The decodes differ by powers of two only, and a row's sums do not depend on the tile."""
    outs = [
        result("TP 4", format_, tile, 6, "uniform")[-1].out
        for format_ in ("subnormals", "bf8")
        for tile in TILES
    ]
    for out in outs[1:]:
        assert np.array_equal(out, outs[0])


@pytest.mark.parametrize("token_tile", TILES)
def test_expert_parallel_ranks_add_up_to_the_layer(token_tile):
    """Global ids with a map on each of three ranks; and local ids with -1 give the same bits."""
    inner, num_global, num_local = 256, 3, 1
    whole = running.random_weights(num_global, inner)
    batch = running.random_batch(5, num_global, 2, "uniform")
    total = np.zeros((5, running.HIDDEN), np.float32)
    for rank in range(num_global // num_local):
        own = slice(rank * num_local, (rank + 1) * num_local)
        part = running.Weights(
            whole.w13[own], whole.w13_scale[own], whole.w2[own], whole.w2_scale[own]
        )
        expert_map = np.full(num_global, -1, np.int32)
        expert_map[own] = np.arange(num_local)
        by_map = replace(batch, expert_map=expert_map)
        layer = running.layer_of(part, by_map, "subnormals", token_tile)
        with_map = running.run(layer, part, by_map).out
        by_local_ids = replace(batch, ids=expert_map[batch.ids])
        layer = replace(layer, num_global_ids=0)
        assert np.array_equal(running.run(layer, part, by_local_ids).out, with_map)
        assert_close(with_map, part, by_map)
        total += room.from_bf16(with_map)
    # Three results were rounded before they were added.
    assert room.relative_l2(total, running.expected(whole, batch)) < running.THREE_ROUNDINGS


def test_the_launches_can_be_recorded_and_replayed_with_other_ids():
    """A graph keeps grids and arguments: they must not depend on the ids."""
    layer, weights, batch, _, _ = result("TP 4", "subnormals", 16, 6, "uniform")
    buffers = running.buffers_of(layer, weights, batch)
    recorded = steps.steps(layer)
    for routing in ("uniform", "nothing here", "one expert", "uniform"):
        other = running.random_batch(6, NUM_EXPERTS, TOP_K, routing, seed=3)
        buffers[steps.HIDDEN_STATES] = other.hidden
        buffers[steps.TOPK_IDS] = other.ids
        buffers[steps.TOPK_WEIGHTS] = other.weights
        for step in recorded:
            running.launch(step, buffers)
        out = buffers[steps.OUT].view(np.uint16).reshape(6, -1)
        assert_close(out, weights, other)


def test_extreme_scales_and_activations_stay_right():
    """Scales over their whole exact range, chosen so that sums stay within float32."""
    rng = np.random.default_rng(8)
    weights = running.random_weights(NUM_EXPERTS, 256)
    exact = catalogue.EXACT_SCALES["subnormals"]
    low = rng.integers(exact[0], 122, weights.w13_scale.shape, dtype=np.uint8)
    wide = running.Weights(weights.w13, low, weights.w2, weights.w2_scale)
    batch = running.random_batch(3, NUM_EXPERTS, TOP_K, "uniform")
    hidden = room.from_bf16(batch.hidden) * np.exp2(
        rng.integers(-60, 3, batch.hidden.shape)
    ).astype(np.float32)
    hidden[:, ::7] = 0
    batch = replace(batch, hidden=room.to_bf16(hidden))
    for format_ in ("subnormals", "bf8"):
        layer = running.layer_of(wide, batch, format_, 16)
        assert_close(running.run(layer, wide, batch).out, wide, batch)


def test_a_nan_activation_reaches_its_token_and_no_other():
    layer, weights, batch, _, clean = result("TP 4", "subnormals", 16, 6, "uniform")
    hidden = batch.hidden.copy()
    hidden[2, 1000] = 0x7FC0
    spoilt = running.run(layer, weights, replace(batch, hidden=hidden)).out
    assert np.isnan(room.from_bf16(spoilt[2])).all()
    others = [0, 1, 3, 4, 5]
    assert np.array_equal(spoilt[others], clean.out[others])
