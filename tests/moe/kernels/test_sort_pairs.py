"""The sort on the device: units, rows, scaled activations, and the shared expert's weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sglang_mi300a.moe.kernels import steps, work_split
from tests.gfx942 import room
from tests.moe.kernels import running

HIDDEN = running.HIDDEN


def sort(batch, num_experts, token_tile, *, format_="bf16", shared=False, order="forward"):
    """Run the launch; return its scratch, as integers."""
    layer = steps.Layer(
        num_tokens=len(batch.ids),
        top_k=batch.ids.shape[1],
        num_experts=num_experts,
        hidden=HIDDEN,
        inner=256,
        weights=format_,
        token_tile=token_tile,
        num_cus=4,
        num_global_ids=0 if batch.expert_map is None else len(batch.expert_map),
        shared_expert=shared,
    )
    buffers = {n: np.full(b, 0xFF, np.uint8) for n, b in steps.scratch_bytes(layer).items()}
    buffers[steps.TOPK_IDS] = running.read_only(batch.ids)
    buffers[steps.HIDDEN_STATES] = running.read_only(batch.hidden)
    if batch.expert_map is not None:
        buffers[steps.EXPERT_MAP] = running.read_only(batch.expert_map)
    if shared:
        buffers[steps.SHARED_GATE] = running.read_only(running.random_shared(128).gate)
    running.launch(steps.sort_pairs(layer), buffers, order)
    return layer, {name: array.view(np.int32) for name, array in buffers.items()}


def assert_sorted(batch, num_experts, token_tile, buffers):
    want = work_split.sort_pairs(batch.ids, num_experts, token_tile, batch.expert_map)
    num_units, num_rows = want.work[0, :2]
    written = buffers[steps.WORK].reshape(-1, 4)
    assert np.array_equal(written[: len(want.work)], want.work)
    assert (written[len(want.work) :] == -1).all()
    assert num_units <= work_split.most_units(batch.ids.size, num_experts, token_tile)

    pair_rows = buffers[steps.PAIR_ROWS]
    tokens = buffers[steps.TOKENS]
    assert np.array_equal(pair_rows == -1, want.pair_rows == -1)
    pairs = np.flatnonzero(pair_rows != -1)
    assert np.array_equal(np.sort(pair_rows[pairs]), np.arange(num_rows))
    assert np.array_equal(tokens[pair_rows[pairs]], pairs // batch.ids.shape[1])
    # Rows of one expert in any order, experts one after the other.
    experts = work_split.local_experts(batch.ids, num_experts, batch.expert_map).reshape(-1)
    by_row = np.empty(num_rows, np.int32)
    by_row[pair_rows[pairs]] = experts[pairs]
    assert (np.diff(by_row) >= 0).all()


@pytest.mark.parametrize("token_tile", [16, 32])
@pytest.mark.parametrize("routing", running.ROUTINGS)
def test_units_and_rows_are_those_of_the_reference(routing, token_tile):
    for num_tokens in (1, 2, 7, 16, 17, 64, 100, 333):
        batch = running.random_batch(num_tokens, 40, 10, routing)
        for order in ("forward", "random"):
            _, buffers = sort(batch, 40, token_tile, order=order)
            assert_sorted(batch, 40, token_tile, buffers)


@pytest.mark.parametrize("num_experts", [1, 64, 65, 512, 1024])
def test_any_number_of_experts_up_to_1024_is_sorted(num_experts):
    batch = running.random_batch(50, num_experts, min(num_experts, 10), "uniform")
    _, buffers = sort(batch, num_experts, 16)
    assert_sorted(batch, num_experts, 16, buffers)


def test_the_largest_batch_is_sorted():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 512, (8192, 10), dtype=np.int32)
    hidden = np.zeros((1, HIDDEN), np.uint16)
    batch = running.Batch(hidden, ids, np.zeros(ids.shape, np.float32))
    _, buffers = sort(batch, 512, 16)
    assert_sorted(batch, 512, 16, buffers)


def test_ids_of_other_ranks_and_ids_that_are_none_get_no_row():
    rng = np.random.default_rng(1)
    expert_map = np.full(64, -1, np.int32)
    expert_map[16:32] = np.arange(16)  # rank 1 of 4
    ids = rng.integers(0, 64, (33, 6), dtype=np.int32)
    ids[3] = [-1, -7, 64, 2**31 - 1, -(2**31), 17]  # only the last is an expert, and ours
    hidden = np.zeros((33, HIDDEN), np.uint16)
    batch = running.Batch(hidden, ids, np.zeros(ids.shape, np.float32), expert_map)
    _, buffers = sort(batch, 16, 16)
    assert_sorted(batch, 16, 16, buffers)
    rows = buffers[steps.PAIR_ROWS].reshape(ids.shape)
    assert (rows[3, :5] == -1).all()
    assert rows[3, 5] >= 0


def test_without_a_map_an_id_beyond_the_experts_gets_no_row():
    batch = running.random_batch(9, 8, 3, "uniform")
    ids = batch.ids.copy()
    ids[4, 1] = 8
    batch = replace(batch, ids=ids)
    _, buffers = sort(batch, 8, 16)
    assert_sorted(batch, 8, 16, buffers)
    assert buffers[steps.PAIR_ROWS].reshape(ids.shape)[4, 1] == -1


def test_activations_are_scaled_exactly_whatever_they_are():
    patterns = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).reshape(16, HIDDEN)
    batch = running.Batch(patterns, np.full((16, 1), -1, np.int32), np.zeros((16, 1), np.float32))
    _, buffers = sort(batch, 4, 16, format_="subnormals")
    got = buffers[steps.SCALED].view(np.uint16).reshape(patterns.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        want = room.from_bf16(patterns) * np.float32(2.0**64)
    number = ~np.isnan(want)
    assert np.array_equal(room.from_bf16(got)[number], want[number])  # no rounding: exact
    assert np.isnan(room.from_bf16(got)[~number]).all()
    overflow = np.isinf(want) & np.isfinite(room.from_bf16(patterns))
    assert overflow.any()  # beyond 2^64 a value becomes infinite, it does not wrap


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 31, 32, 33])
def test_the_shared_expert_takes_every_token(num_tokens):
    batch = running.random_batch(num_tokens, 8, 3, "with padding")
    layer, buffers = sort(batch, 8, 32, format_="subnormals", shared=True, order="random")
    assert_sorted(batch, 8, 32, buffers | {steps.TOKENS: buffers[steps.TOKENS][: 3 * num_tokens]})
    work = buffers[steps.SHARED_WORK].reshape(-1, 4)
    assert work[0].tolist() == [layer.shared_units, num_tokens, 0, 0]
    units = work[1 : 1 + layer.shared_units]
    assert units[:, 2].sum() == num_tokens
    assert units[:, 1].tolist() == [3 * num_tokens + 32 * u for u in range(layer.shared_units)]
    assert (work[1 + layer.shared_units :] == 0).all()
    assert buffers[steps.TOKENS][3 * num_tokens :].tolist() == list(range(num_tokens))

    gate = room.from_bf16(running.random_shared(128).gate).astype(np.float64)
    want = torch.sigmoid(torch.from_numpy(room.from_bf16(batch.hidden) @ gate)).numpy()
    got = buffers[steps.SHARED_WEIGHTS].view(np.float32)
    # float32 sums of 4096 products, an exponential and a reciprocal within an ulp each.
    assert np.abs(got - want).max() < 4e-6
