"""Instructions that move values between lanes, or between vector, accumulator and scalar registers.

ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapter 12, sections VOP1, VOP3 and
LDS."""

import random

import numpy as np
import pytest

from tests.gfx942.oracles import bench

M32 = 0xFFFFFFFF


def inputs(seed, active=(1 << 64) - 1):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(0, 1 << 32, (1, bench.NUM_VECTOR_INPUTS, 64), dtype=np.uint32)
    scalars = rng.integers(0, 1 << 32, (1, bench.NUM_SCALAR_INPUTS), dtype=np.uint32)
    scalars[0, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = active & M32, active >> 32
    return vectors, scalars


TEXTS = {
    "first": "v_readfirstlane_b32 s40, v10",
    **{f"lane {lane}": f"v_readlane_b32 s40, v10, {lane}" for lane in (0, 17, 63)},
    "lane of s16": "v_readlane_b32 s40, v10, s16",
    "write": "s_mov_b32 m0, s17\n  v_writelane_b32 v20, s16, m0",
    "mbcnt": "v_mbcnt_lo_u32_b32 v20, s16, v10\n  v_mbcnt_hi_u32_b32 v21, s17, v20",
    "swap": "v_swap_b32 v20, v21",
    "indexed": """s_mov_b32 s18, 2
        s_set_gpr_idx_on s18, gpr_idx(SRC0)
        v_mov_b32 v20, v10
        s_set_gpr_idx_off
        s_set_gpr_idx_on s18, gpr_idx(SRC1,DST)
        v_sub_u32 v19, v10, v11
        s_mov_b32 s18, 3
        s_set_gpr_idx_idx s18
        v_sub_u32 v19, v10, v11
        s_set_gpr_idx_off
        v_mov_b32 v23, v10""",
    "accumulators": """v_accvgpr_write_b32 a3, v10
        v_accvgpr_mov_b32 a7, a3
        v_accvgpr_read_b32 v20, a7
        v_accvgpr_write_b32 a0, 1.0
        v_accvgpr_read_b32 v21, a0
        v_nop""",
    "accumulators in memory": """global_load_dwordx2 a[4:5], v1, s[4:5]
        s_waitcnt vmcnt(0)
        v_lshlrev_b32_e32 v3, 3, v0
        ds_write_b64 v3, a[4:5]
        s_waitcnt lgkmcnt(0)
        ds_read_b32 a6, v3 offset:4
        ds_read_b32 v20, v3
        s_waitcnt lgkmcnt(0)
        v_accvgpr_read_b32 v21, a6""",
    "backward": "ds_bpermute_b32 v20, v10, v12 offset:8\n  s_waitcnt lgkmcnt(0)",
    "forward": "ds_permute_b32 v20, v10, v12\n  s_waitcnt lgkmcnt(0)",
}
SWIZZLES = {
    "swizzle(QUAD_PERM,0,3,1,2)": lambda lane: lane // 4 * 4 + [0, 3, 1, 2][lane % 4],
    "swizzle(SWAP,16)": lambda lane: lane ^ 16,
    "swizzle(REVERSE,8)": lambda lane: lane ^ 7,
    "swizzle(BROADCAST,4,1)": lambda lane: lane // 4 * 4 + 1,
    'swizzle(BITMASK_PERM,"01pip")': lambda lane: (
        lane & 32 | 8 | lane & 4 | (lane ^ 2) & 2 | lane & 1
    ),
}
TEXTS |= {
    pattern: f"ds_swizzle_b32 v20, v10 offset:{pattern}\n  s_waitcnt lgkmcnt(0)"
    for pattern in SWIZZLES
}


@pytest.fixture(scope="module")
def run():
    batch = bench.Batch(TEXTS.values(), lds_bytes=512)
    return lambda name, vectors, scalars: batch.run(TEXTS[name], vectors, scalars)


@pytest.mark.parametrize("active", [1 << 63, 0b1000, (1 << 64) - 1, 0])
def test_readfirstlane_takes_the_first_active_lane_or_lane_0(run, active):
    vectors, scalars = inputs(1, active)
    found = run("first", vectors, scalars)
    lane = (active & -active).bit_length() - 1 if active else 0
    assert bench.scalar_result(found, 1) == vectors[0, 0, lane]


@pytest.mark.parametrize("lane", [0, 17, 63])
def test_readlane_takes_any_lane_active_or_not(run, lane):
    vectors, scalars = inputs(2, active=0)
    scalars[0, 0] = lane + 64  # only six bits count
    found = run(f"lane {lane}", vectors, scalars)
    assert bench.scalar_result(found, 1) == vectors[0, 0, lane]
    found = run("lane of s16", vectors, scalars)
    assert bench.scalar_result(found, 1) == vectors[0, 0, lane]


def test_writelane_writes_one_lane_active_or_not(run):
    vectors, scalars = inputs(3, active=0)
    scalars[0, 1] = 5
    found = run("write", vectors, scalars)
    expected = vectors[0, 8].copy()
    expected[5] = scalars[0, 0]
    np.testing.assert_array_equal(found[0], expected)


def test_mbcnt_counts_the_bits_below_the_lane(run):
    vectors, scalars = inputs(4)
    found = run("mbcnt", vectors, scalars)
    mask = int(scalars[0, 0]) | int(scalars[0, 1]) << 32
    for lane in range(64):
        below = mask & ((1 << lane) - 1)
        low = f"{below & M32:b}".count("1") + int(vectors[0, 0, lane])
        assert int(found[0, lane]) == low & M32
        assert int(found[1, lane]) == low + f"{below >> 32:b}".count("1") & M32


def test_swap_exchanges_active_lanes(run):
    active = random.Random(5).getrandbits(64)
    vectors, scalars = inputs(5, active)
    found = run("swap", vectors, scalars)
    on = np.array([active >> lane & 1 for lane in range(64)], bool)
    np.testing.assert_array_equal(found[0], np.where(on, vectors[0, 9], vectors[0, 8]))
    np.testing.assert_array_equal(found[1], np.where(on, vectors[0, 8], vectors[0, 9]))


def test_registers_are_indexed_by_m0_where_the_mode_says(run):
    """ISA guide, chapter 6.6 (VGPR indexing): S_SET_GPR_IDX_ON, _IDX, _OFF."""
    vectors, scalars = inputs(12)
    found = run("indexed", vectors, scalars)
    np.testing.assert_array_equal(found[0], vectors[0, 2])
    np.testing.assert_array_equal(found[1], vectors[0, 0] - vectors[0, 3])
    np.testing.assert_array_equal(found[2], vectors[0, 0] - vectors[0, 4])
    np.testing.assert_array_equal(found[3], vectors[0, 0])


def test_accumulators_are_written_moved_and_read(run):
    vectors, scalars = inputs(6)
    found = run("accumulators", vectors, scalars)
    np.testing.assert_array_equal(found[0], vectors[0, 0])
    assert (found[1] == 0x3F800000).all()


def test_accumulators_are_loaded_and_stored_in_memory_and_lds(run):
    vectors, scalars = inputs(7)
    found = run("accumulators in memory", vectors, scalars)
    flat = vectors[0].reshape(-1)
    np.testing.assert_array_equal(found[0], flat[:64])
    np.testing.assert_array_equal(found[1], flat[1:65])


def test_backward_permute_reads_the_lane_named_in_bytes_and_0_from_lanes_that_are_off(run):
    active = random.Random(9).getrandbits(64)
    addresses = np.random.default_rng(9).integers(0, 1 << 12, 64, dtype=np.uint32)
    vectors, scalars = inputs(8, active)
    vectors[0, 0] = addresses
    found = run("backward", vectors, scalars)[0]
    for lane in range(64):
        source = (int(addresses[lane]) + 8) // 4 % 64
        value = int(vectors[0, 2, source]) if active >> source & 1 else 0
        expected = value if active >> lane & 1 else int(vectors[0, 8, lane])
        assert int(found[lane]) == expected


def test_forward_permute_sends_to_the_lane_named_in_bytes_and_the_last_sender_wins(run):
    active = random.Random(10).getrandbits(64)
    addresses = np.random.default_rng(10).integers(0, 256, 64, dtype=np.uint32)
    vectors, scalars = inputs(8, active)
    vectors[0, 0] = addresses
    found = run("forward", vectors, scalars)[0]
    received = [0] * 64
    for lane in range(64):
        if active >> lane & 1:
            received[int(addresses[lane]) // 4 % 64] = int(vectors[0, 2, lane])
    for lane in range(64):
        expected = received[lane] if active >> lane & 1 else int(vectors[0, 8, lane])
        assert int(found[lane]) == expected


@pytest.mark.parametrize("pattern", SWIZZLES)
def test_swizzle_moves_lanes_within_groups(run, pattern):
    vectors, scalars = inputs(11)
    found = run(pattern, vectors, scalars)[0]
    sources = [SWIZZLES[pattern](lane) for lane in range(64)]
    np.testing.assert_array_equal(found, vectors[0, 0, sources])
