"""The first half of an expert: every variant, batch size and routing, at the true K.

The neurons of an expert are cut to 32, two items; how many items there are is a number that the
kernel is given. test_expert_layer.py has the full sizes.
"""

import numpy as np
import pytest

from sglang_mi300a.moe.kernels import catalogue, steps, work_split
from tests.gfx942 import room
from tests.moe.kernels import running

VARIANTS = [k for k in catalogue.MATRIX_KERNELS if k.op == "gate_up"]
NUM_EXPERTS, TOP_K = 5, 2
UNTOUCHED = 0xFFFF


def prepared(kernel, batch, inner, num_cus, num_experts=NUM_EXPERTS):
    """Return the launch, its buffers with units of the reference, the sort, and the weights."""
    bf16 = kernel.weights == "bf16"
    weights = running.random_weights(num_experts, inner, 64, bf16=bf16)
    layer = running.layer_of(weights, batch, kernel.weights, kernel.token_tile, num_cus=num_cus)
    buffers = {n: np.full(b, 0xFF, np.uint8) for n, b in steps.scratch_bytes(layer).items()}
    by_expert = work_split.sort_pairs(batch.ids, num_experts, kernel.token_tile)
    for name, value in ((steps.WORK, by_expert.work), (steps.TOKENS, by_expert.tokens)):
        buffers[name][: value.nbytes] = value.reshape(-1).view(np.uint8)
    buffers[steps.HIDDEN_STATES] = running.read_only(batch.hidden)
    if layer.scales_activations:
        scaled = room.from_bf16(batch.hidden) * np.float32(layer.activation_factor)
        buffers[steps.SCALED] = room.to_bf16(scaled)
    buffers[steps.W13_STREAM] = running.stream_of(weights, "w13", kernel.weights)
    step = steps.gate_up(layer)
    assert step.kernel == kernel.name
    return step, buffers, by_expert, weights


def counted(kernel, batch):
    """Run the launch; return what it executed, and the sort."""
    step, buffers, by_expert, _ = prepared(kernel, batch, 32, 1)
    return running.launch(step, buffers), by_expert


def gate_up(
    kernel, batch, inner=32, *, num_cus=2, order="forward", seed=0, num_experts=NUM_EXPERTS
):
    """Run the launch; return inner values per row, the sort, and the weights."""
    step, buffers, by_expert, weights = prepared(kernel, batch, inner, num_cus, num_experts)
    running.launch(step, buffers, order, seed)
    return buffers[steps.INNER].view(np.uint16).reshape(-1, inner), by_expert, weights


def expected_rows(weights, batch, by_expert, inner):
    rows = np.zeros((len(by_expert.tokens), inner), np.float32)
    hidden = room.from_bf16(batch.hidden)
    for expert, first, count, _ in by_expert.work[1 : 1 + by_expert.work[0, 0]]:
        tokens = by_expert.tokens[first : first + count]
        rows[first : first + count] = running.expert_inner(weights, expert, hidden[tokens])
    return rows


def assert_right(kernel, batch, inner=32, **options):
    got, by_expert, weights = gate_up(kernel, batch, inner, **options)
    num_rows = len(by_expert.tokens)
    assert (got[num_rows:] == UNTOUCHED).all()
    values = room.from_bf16(got[:num_rows]) / np.float32(
        catalogue.ACTIVATION_FACTORS[kernel.weights]
    )
    want = expected_rows(weights, batch, by_expert, inner)
    assert room.relative_l2(values, want) < running.ONE_ROUNDING
    # And each value by itself: one rounding, and float32 sums of 4096 products before it.
    assert (np.abs(values - want) < 2.0**-8 * np.abs(want) + 3e-5).all()
    return got


@pytest.mark.parametrize("routing", running.ROUTINGS)
@pytest.mark.parametrize("kernel", VARIANTS, ids=lambda k: k.name)
def test_inner_values_are_those_of_the_reference(kernel, routing):
    for num_tokens in (1, 2, 7, 16, 17, 64, 100):
        assert_right(kernel, running.random_batch(num_tokens, NUM_EXPERTS, TOP_K, routing))


@pytest.mark.parametrize("kernel", VARIANTS, ids=lambda k: k.name)
def test_inner_values_do_not_depend_on_scheduling(kernel):
    batch = running.random_batch(40, NUM_EXPERTS, TOP_K, "with padding")
    first, *_ = gate_up(kernel, batch)
    for options in (
        {"order": "reverse"},
        {"order": "random", "seed": 1},
        {"order": "random", "seed": 2},
        {"num_cus": 1},
        {"num_cus": 5},
        {"num_cus": 228},
        {},
    ):
        again, *_ = gate_up(kernel, batch, **options)
        assert np.array_equal(again, first), options


@pytest.mark.parametrize("inner", [16, 64])
@pytest.mark.parametrize("kernel", VARIANTS, ids=lambda k: k.name)
def test_any_power_of_two_of_items_will_do(kernel, inner):
    assert_right(kernel, running.random_batch(20, NUM_EXPERTS, TOP_K, "uniform"), inner)


@pytest.mark.parametrize("kernel", VARIANTS, ids=lambda k: k.name)
def test_only_rows_that_exist_are_read_and_once_per_unit_and_workgroup(kernel):
    """Activations cost the path to memory per row; a unit of one token must not read sixteen."""
    batch = running.random_batch(9, NUM_EXPERTS, TOP_K, "concentrated")
    counters, by_expert = counted(kernel, batch)
    units = by_expert.work[1 : 1 + by_expert.work[0, 0]]
    items = 2
    workgroups = counters.workgroups
    rows = sum(
        int(units[unit, 2])
        for worker in range(workgroups)
        for unit in {
            position // items
            for position in work_split.share_of(worker, workgroups, len(units) * items)
        }
    )
    per_item = 32 * running.HIDDEN // (16 * (32 if kernel.weights == "bf16" else 128))
    records = len(units) * items * per_item
    blocks = running.HIDDEN // 32
    loads = [one for one in counters.memory if one.line.mnemonic == "buffer_load_dwordx4"]
    assert sum(one.segments for one in loads) == 16 * records + rows * blocks


@pytest.mark.slow
@pytest.mark.parametrize("kernel", VARIANTS[:4], ids=lambda k: k.name)
def test_the_largest_batch(kernel):
    batch = running.random_batch(8192, 4, 1, "concentrated")
    assert_right(kernel, batch, num_experts=4, num_cus=3)
