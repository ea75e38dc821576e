"""Which launches a layer takes: sizes, grids, arguments, and what is refused."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_mi300a.moe.kernels import catalogue, steps, work_split
from sglang_mi300a.moe.kernels.steps import Layer
from tests.moe.kernels import running

SERVED = Layer(
    num_tokens=16,
    top_k=10,
    num_experts=512,
    hidden=4096,
    inner=256,
    weights="subnormals",
    token_tile=16,
    num_cus=228,
)
"""A decode step of 16 tokens, one rank of four."""


def test_a_layer_is_four_launches():
    assert [step.kernel for step in steps.steps(SERVED)] == [
        "moe_sort_pairs",
        "moe_gate_up_16_subnormals",
        "moe_down_k256_16_subnormals",
        "moe_sum_slots",
    ]


def test_the_grid_fills_the_device_or_what_there_is_to_do():
    sort, gate_up, down, add = steps.steps(SERVED)
    assert sort.grid == (1 + 8, 1)  # two tokens' activations a workgroup
    assert gate_up.grid == (2 * 228, 1)
    assert down.grid == (2 * 228, 1)
    assert add.grid == (2, 16)
    _, gate_up, down, _ = steps.steps(replace(SERVED, num_tokens=1))
    assert gate_up.grid == (10 * 16, 1)  # ten units of 16 items
    assert down.grid == (10 * 128 // 8, 1)  # 128 items, a wave each
    sort, *_ = steps.steps(replace(SERVED, weights="bf8"))
    assert sort.grid == (1, 1)  # nothing to scale


def test_streams_have_the_sizes_of_the_checkpoint():
    packed_and_scales = 512 * (512 * 4096 + 4096 * 256) * 17 // 32
    assert SERVED.stream_bytes("gate_up") + SERVED.stream_bytes("down") == packed_and_scales
    bf16 = replace(SERVED, weights="bf16")
    assert bf16.stream_bytes("gate_up") == 512 * 512 * 4096 * 2


def test_the_scratch_of_a_decode_step_is_small_and_named():
    sizes = steps.scratch_bytes(SERVED)
    assert sizes == {
        "work": (1 + 160 + 2) * 16,
        "tokens": 640,
        "pair_rows": 640,
        "inner": 160 * 256 * 2,
        "rows": 160 * 4096 * 2,
        "scaled": 16 * 4096 * 2,
    }
    shared = steps.scratch_bytes(replace(SERVED, shared_expert=True))
    assert shared["rows"] == 176 * 4096 * 2
    assert shared["shared_work"] == (1 + 1 + 2) * 16


@given(st.integers(1, 600), st.integers(1, 64), st.sampled_from([16, 32]), st.integers(0, 99))
def test_units_never_exceed_what_was_reserved(num_tokens, num_experts, tile, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(-1, num_experts, (num_tokens, 3), dtype=np.int32)
    units = work_split.sort_pairs(ids, num_experts, tile).work[0, 0]
    assert units <= work_split.most_units(ids.size, num_experts, tile)


def test_the_reserve_can_be_needed():
    # One full unit each of two experts, and one pair more of each of them and of a third.
    ids = np.array([[0]] * 17 + [[1]] * 17 + [[2]], np.int32)
    assert work_split.sort_pairs(ids, 3, 16).work[0, 0] == work_split.most_units(35, 3, 16) == 5


@given(st.integers(1, 5000), st.integers(0, 10**6))
def test_shares_are_even_and_cover_all_work(num_workers, num_work):
    ends = [work_split.share_of(w, num_workers, num_work) for w in range(num_workers)]
    assert ends[0].start == 0
    assert ends[-1].stop == num_work
    assert all(a.stop == b.start for a, b in pairwise(ends))
    sizes = {len(share) for share in ends}
    assert max(sizes) - min(sizes) <= 1


def test_the_shared_expert_gets_workgroups_by_its_bytes():
    plain = steps.steps(replace(SERVED, num_tokens=64))[1]
    layer = replace(SERVED, num_tokens=64, shared_expert=True)
    _, gate_up, down, _ = steps.steps(layer)
    assert gate_up.grid == plain.grid  # the device is full either way
    routed, shared = gate_up.arguments[9].value, gate_up.arguments[14].value
    assert routed + shared == 2 * 228
    assert 1 <= shared <= 64  # 4 units of 16 items
    routed, shared = down.arguments[6].value, down.arguments[10].value
    assert routed % 8 == shared % 8 == 0  # whole workgroups
    assert routed + shared == 2 * 228 * 8
    _, alone, _, _ = steps.steps(SERVED)
    assert alone.arguments[14].value == 0


@pytest.mark.parametrize("kernel", catalogue.MATRIX_KERNELS, ids=lambda k: k.name)
def test_arguments_are_packed_as_the_code_object_reads_them(kernel):
    layer = replace(
        SERVED,
        num_experts=128,
        inner=kernel.inner or 256,
        token_tile=kernel.token_tile,
        weights=kernel.weights,
        num_global_ids=512,
        shared_expert=True,
    )
    for step in steps.steps(layer):
        names = [a.buffer for a in step.arguments if isinstance(a, steps.Pointer) and a.buffer]
        addresses = {name: 0x7F00_0000_1000 + 0x10000 * i for i, name in enumerate(names)}
        block = steps.packed(step, addresses)
        facts = running.machine().kernel(step.kernel)
        explicit = [a for a in facts.arguments if not a.kind.startswith("hidden_")]
        assert len(explicit) == len(step.arguments)
        for place, argument in zip(explicit, step.arguments, strict=True):
            data = block[place.offset : place.offset + place.size]
            if isinstance(argument, steps.Pointer):
                want = addresses.get(argument.buffer, 0)
                assert (place.size, int.from_bytes(data, "little")) == (8, want)
            elif isinstance(argument, steps.Uint32):
                assert (place.size, int.from_bytes(data, "little")) == (4, argument.value)
            else:
                assert np.frombuffer(data, np.float32) == argument.value
        assert step.threads == facts.most_threads


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_tokens": 0}, "no tokens"),
        ({"num_tokens": 13108}, "131080 pairs"),
        ({"num_experts": 1025}, "1025 local experts"),
        ({"hidden": 2048}, "hidden size 2048"),
        ({"inner": 384}, "768 rows; the kernel takes 32 times a power of two"),
        ({"inner": 64}, "64 neurons"),
        ({"token_tile": 64}, "tile of 64"),
        ({"inner": 1024, "num_experts": 1000}, "bytes of the gate_up streams"),
    ],
)
def test_what_no_kernel_takes_is_refused_by_number(change, message):
    with pytest.raises(ValueError, match=message):
        steps.steps(replace(SERVED, **change))


@pytest.mark.parametrize("num_tokens", [1, 2048, 8192])
@pytest.mark.parametrize("token_tile", [16, 32])
@pytest.mark.parametrize(("inner", "experts"), [(256, 512), (512, 512), (1024, 128)])
def test_served_sizes_fit_32_bits(num_tokens, token_tile, inner, experts):
    layer = replace(
        SERVED, num_tokens=num_tokens, token_tile=token_tile, inner=inner, num_experts=experts
    )
    assert len(steps.steps(layer)) == 4


def test_a_table_may_ask_for_fewer_workgroups_but_not_for_more_than_fit():
    layer = replace(SERVED, num_tokens=64)
    for asked, first, second in ((0, 456, 456), (1, 228, 228), (9, 456, 456)):
        _, gate_up, down, _ = steps.steps(replace(layer, gate_up_groups=asked, down_groups=asked))
        assert (gate_up.grid[0], down.grid[0]) == (first, second)
