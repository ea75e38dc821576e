"""The second half of an expert: every variant, batch size and routing, at the true K.

The output rows are cut to 128, two or four items; how many items there are is a number that the
kernel is given. test_expert_layer.py has the full sizes.
"""

from dataclasses import replace

import numpy as np
import pytest

from sglang_mi300a.moe.kernels import catalogue, steps, work_split
from tests.gfx942 import room
from tests.moe.kernels import running

VARIANTS = [k for k in catalogue.MATRIX_KERNELS if k.op == "down"]
NUM_EXPERTS, TOP_K, OUTPUTS = 5, 2, 128
UNTOUCHED = 0xFFFF


def down(kernel, batch, outputs=OUTPUTS, *, num_cus=2, order="forward", seed=0):
    """Run the launch on random inner values; return result rows, inner values, and the sort."""
    inner = kernel.inner
    weights = running.random_weights(NUM_EXPERTS, inner, outputs, bf16=kernel.weights == "bf16")
    layer = running.layer_of(weights, batch, kernel.weights, kernel.token_tile, num_cus=num_cus)
    layer = replace(layer, hidden=outputs)
    buffers = {n: np.full(b, 0xFF, np.uint8) for n, b in steps.scratch_bytes(layer).items()}
    by_expert = work_split.sort_pairs(batch.ids, NUM_EXPERTS, kernel.token_tile)
    buffers[steps.WORK][: by_expert.work.nbytes] = by_expert.work.reshape(-1).view(np.uint8)
    num_rows = len(by_expert.tokens)
    rng = np.random.default_rng([inner, num_rows])
    values = room.to_bf16(rng.standard_normal((num_rows, inner)))
    scaled = room.from_bf16(values) * np.float32(layer.activation_factor)
    stored = buffers[steps.INNER].view(np.uint16).reshape(-1, inner)  # rows behind are NaN
    stored[:num_rows] = room.to_bf16(scaled)
    buffers[steps.W2_STREAM] = running.stream_of(weights, "w2", kernel.weights)
    step = steps.down(layer)
    assert step.kernel == kernel.name
    running.launch(step, buffers, order, seed)
    rows = buffers[steps.ROWS].view(np.uint16).reshape(-1, outputs)
    return rows, room.from_bf16(values), by_expert, weights


def assert_right(kernel, batch, outputs=OUTPUTS, **options):
    got, inner, by_expert, weights = down(kernel, batch, outputs, **options)
    num_rows = len(by_expert.tokens)
    assert (got[num_rows:] == UNTOUCHED).all()
    want = np.zeros((num_rows, outputs), np.float32)
    for expert, first, count, _ in by_expert.work[1 : 1 + by_expert.work[0, 0]]:
        here = slice(first, first + count)
        want[here] = inner[here] @ weights.dense("w2", expert).T
    values = room.from_bf16(got[:num_rows])
    assert room.relative_l2(values, want) < running.ONE_ROUNDING
    assert (np.abs(values - want) < 2.0**-8 * np.abs(want) + 3e-5).all()


@pytest.mark.parametrize("routing", running.ROUTINGS)
@pytest.mark.parametrize("kernel", VARIANTS, ids=lambda k: k.name)
def test_result_rows_are_those_of_the_reference(kernel, routing):
    for num_tokens in (1, 2, 7, 16, 17, 64, 100):
        assert_right(kernel, running.random_batch(num_tokens, NUM_EXPERTS, TOP_K, routing))


@pytest.mark.parametrize("kernel", VARIANTS, ids=lambda k: k.name)
def test_result_rows_do_not_depend_on_scheduling(kernel):
    batch = running.random_batch(40, NUM_EXPERTS, TOP_K, "with padding")
    first, *_ = down(kernel, batch)
    for options in (
        {"order": "reverse"},
        {"order": "random", "seed": 1},
        {"order": "random", "seed": 2},
        {"num_cus": 1},
        {"num_cus": 228},
        {},
    ):
        again, *_ = down(kernel, batch, **options)
        assert np.array_equal(again, first), options


@pytest.mark.parametrize("kernel", VARIANTS, ids=lambda k: k.name)
def test_one_item_or_many_will_do(kernel):
    batch = running.random_batch(20, NUM_EXPERTS, TOP_K, "uniform")
    assert_right(kernel, batch, kernel.item_rows)
    assert_right(kernel, batch, 8 * kernel.item_rows)
