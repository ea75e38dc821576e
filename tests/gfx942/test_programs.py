"""Small programs, as clang compiles them, against numpy; in every order of waves."""

from pathlib import Path

import numpy as np
import pytest

from tests.gfx942 import toolchain
from tests.gfx942.machine import Machine

PROGRAMS = Path(__file__).parent / "programs"
ORDERS = [("forward", 0), ("reverse", 0), ("random", 1), ("random", 2)]

every_order = pytest.mark.parametrize(("order", "seed"), ORDERS, ids=lambda x: str(x))


def program(name):
    return Machine(toolchain.compile_hip(PROGRAMS / f"{name}.hip"))


def as_bf16(values):
    """Round f32 to bf16 bit patterns, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(patterns):
    return (patterns.astype(np.uint32) << 16).view(np.float32)


@every_order
@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000])
def test_vector_add_writes_what_is_asked_for_and_no_more(count, order, seed):
    rng = np.random.default_rng(count)
    a, b = rng.standard_normal((2, 1024)).astype(np.float32)
    total = np.full(1024, 7, np.float32)
    groups = (count + 255) // 256
    counters = program("vector_add").launch(
        "vector_add", (groups,), (256,), [a, b, total, count], wave_order=order, seed=seed
    )
    np.testing.assert_array_equal(total[:count], (a + b)[:count])
    np.testing.assert_array_equal(total[count:], 7)
    assert counters.uninitialised_reads == ()


@every_order
def test_a_reduction_through_lds_adds_everything(order, seed):
    values = np.random.default_rng(3).integers(0, 1 << 32, (5, 1024), dtype=np.uint32)
    totals = np.zeros(5, np.uint32)
    counters = program("lds_reduce").launch(
        "lds_reduce", (5,), (256,), [values, totals], wave_order=order, seed=seed
    )
    np.testing.assert_array_equal(totals, values.sum(1, dtype=np.uint32))
    assert counters.uninitialised_reads == ()
    assert counters.by_class["barrier"] == 5 * 4 * 9


@every_order
def test_a_tiled_matrix_product_through_lds_and_mfma(order, seed):
    rng = np.random.default_rng(4)
    m, n, k = 32, 128, 192
    a, b = as_bf16(rng.standard_normal((m, k))), as_bf16(rng.standard_normal((n, k)))
    c = np.zeros((m, n), np.float32)
    machine = program("tile_gemm")
    counters = machine.launch(
        "tile_gemm", (n // 64, m // 16), (256,), [a, b, c, n, k], wave_order=order, seed=seed
    )
    exact = from_bf16(a).astype(np.float64) @ from_bf16(b).astype(np.float64).T
    # 12 MFMA a tile, each of which may be off by some 2^-24 of the largest partial sum.
    assert np.abs(c - exact).max() < 1e-4
    assert counters.by_class["mfma"] == (m // 16) * (n // 16) * (k // 16)
    assert counters.uninitialised_reads == ()


def test_byte_tables_in_v_perm_decode_every_fp4_pair():
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    codes = np.concatenate([values, -values])
    packed = np.arange(256, dtype=np.uint8)
    decoded = np.zeros(512, np.uint16)
    program("nibble_decode").launch("nibble_decode", (1,), (64,), [packed, decoded, 64])
    expected = np.stack([codes[packed & 15], codes[packed >> 4]], 1).reshape(-1)
    np.testing.assert_array_equal(from_bf16(decoded), expected)
    np.testing.assert_array_equal(decoded >> 15, np.signbit(expected))


def collatz_steps(n, limit):
    taken = 0
    while n != 1 and taken < limit:
        n, taken = (n // 2 if n % 2 == 0 else 3 * n + 1), taken + 1
    return taken


@every_order
def test_lanes_of_one_wave_leave_a_loop_at_different_times(order, seed):
    starts = np.random.default_rng(5).integers(1, 1 << 30, 300, dtype=np.uint32)
    starts[:3] = 1, 2, 27
    steps = np.zeros(320, np.uint32)
    arguments = [starts, steps, 300, 150]
    program("divergence").launch("collatz", (2,), (160,), arguments, wave_order=order, seed=seed)
    assert steps[:300].tolist() == [collatz_steps(int(n), 150) for n in starts]
    assert not steps[300:].any()


def dispatched(operation, i):
    """The program of divergence.hip in Python: C's division truncates."""
    x = i * 7 - 1000
    if operation == 0:
        return -x
    if operation == 1:
        return int(x / 13)
    if operation == 2:
        return x - 13 * int(x / 13)
    if operation == 3:
        for k in range(i % 5):
            x = x + 100 if x < 0 else x - k
        return x
    if operation == 4:
        return f"{x & 0xFFFFFFFF:b}".count("1") + (x >> 3)
    if operation == 5:
        return x * x
    if operation == 6:
        return 32 - x.bit_length() if x > 0 else -1
    return x ^ 0x5A5A


def test_lanes_take_different_cases_of_a_switch():
    operations = np.array([3, 1, 4, 0, 5, 2, 6, 7], np.uint32)
    quads, out = np.zeros((500, 4), np.int16), np.zeros(500, np.int32)
    program("divergence").launch("dispatch", (2,), (256,), [operations, quads, out, 500])
    expected = np.array([dispatched(operations[i % 8], i) for i in range(500)])
    np.testing.assert_array_equal(out, expected)
    four = np.stack([expected, expected >> 1, expected + 1, -expected], 1)
    np.testing.assert_array_equal(quads, four.astype(np.int16))


def test_private_arrays_live_in_scratch_of_their_lane():
    swaps = np.random.default_rng(6).integers(0, 24 * 24, 40, dtype=np.uint32)
    out = np.zeros((128, 24), np.uint32)
    machine = program("private_memory")
    counters = machine.launch("shuffle", (1,), (128,), [swaps, out, 40], wave_order="random")
    assert machine.kernel("shuffle").scratch_bytes > 0
    assert counters.by_class["scratch"] > 0
    for t in range(128):
        table = [k * 100 + t for k in range(24)]
        for k, swap in enumerate(swaps.tolist()):
            x, y = (swap + t) % 24, (swap // 24 + t * k) % 24
            table[x], table[y] = table[y], table[x]
        assert out[t].tolist() == table


@pytest.mark.parametrize(("name", "size"), [("call_small", 6), ("call_large", 150)])
def test_a_called_function_reaches_its_callers_private_object(name, size):
    weights = np.random.default_rng(7).integers(-8, 8, (64, size)).astype(np.float32)
    out = np.zeros(64, np.float32)
    machine = program("private_memory")
    machine.launch(name, (1,), (64,), [weights, out, 5])
    for t in range(64):
        value, total = t, 0.0
        for r in range(5):
            depth = value + r
            total += sum(float(weights[t, k]) * k for k in range(depth % size + 1))
            value += depth
        assert out[t] == np.float32(total + value)  # small whole numbers: exact


@every_order
def test_atomics_count_every_value_once(order, seed):
    rng = np.random.default_rng(8)
    values = rng.integers(0, 64, 3000, dtype=np.uint32)
    bins = np.ones(64, np.uint32)
    machine = program("atomics")
    machine.launch("histogram", (4,), (256,), [values, bins, 3000], wave_order=order, seed=seed)
    np.testing.assert_array_equal(bins, 1 + np.bincount(values, minlength=64))


@every_order
def test_an_atomic_with_sc0_gives_each_thread_its_own_ticket(order, seed):
    next_ticket, taken = np.zeros(1, np.uint32), np.zeros(512, np.uint32)
    program("atomics").launch(
        "tickets", (2,), (256,), [next_ticket, taken], wave_order=order, seed=seed
    )
    assert next_ticket[0] == 512
    assert sorted(taken.tolist()) == list(range(512))


def test_atomic_minimum_maximum_and_sums():
    values = np.random.default_rng(9).integers(-1000, 1000, 300).astype(np.int32)
    low, high = np.full(1, 5000, np.int32), np.zeros(1, np.uint32)
    total, real = np.zeros(1, np.uint64), np.zeros(1, np.float32)
    arguments = [values, low, high, total, real, 300]
    program("atomics").launch("extremes", (2,), (256,), arguments)
    assert low[0] == values.min()
    assert high[0] == values.astype(np.uint32).max()
    assert total.view(np.int64)[0] == values.sum()
    assert real[0] == values.sum()  # whole numbers below 2^24: exact in any order


def test_compare_and_swap_multiplies_every_factor_in():
    factors = np.random.default_rng(10).integers(0, 1 << 32, 64, dtype=np.uint32) | 1
    product = np.ones(1, np.uint32)
    program("atomics").launch("multiply_all", (1,), (64,), [factors, product])
    expected = 1
    for factor in factors.tolist():
        expected = expected * factor & 0xFFFFFFFF
    assert product[0] == expected


@every_order
def test_dpp_sums_over_rows_and_prefixes_over_waves(order, seed):
    values = np.random.default_rng(11).integers(0, 1 << 32, 256, dtype=np.uint32)
    prefix, row_total = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    program("lane_moves").launch(
        "row_sums", (1,), (256,), [values, prefix, row_total], wave_order=order, seed=seed
    )
    by_wave = values.reshape(4, 64).cumsum(1, dtype=np.uint32)
    np.testing.assert_array_equal(prefix, by_wave.reshape(-1))
    by_row = values.reshape(16, 16).sum(1, dtype=np.uint32)
    np.testing.assert_array_equal(row_total, np.repeat(by_row, 16))


def test_lanes_are_rearranged_as_dpp_permute_and_swizzle_say():
    values = np.random.default_rng(12).integers(0, 1 << 32, 64, dtype=np.uint32)
    out = np.zeros((8, 64), np.uint32)
    program("lane_moves").launch("rearranged", (1,), (64,), [values, out])
    t = np.arange(64)
    row = t // 16 * 16
    pull = (t * 5 + 3) % 64
    pushed = np.zeros(64, np.uint32)
    pushed[pull] = values
    shifted = np.where(t % 16 == 15, 0, values[np.minimum(t + 1, 63)])
    expected = [
        values[t ^ 3],
        values[row + 15 - t % 16],
        values[t // 8 * 8 + 7 - t % 8],
        values[row + 3],
        np.where(t // 4 % 4 % 2 == 0, shifted, 7),
        values[pull],
        pushed,
        values[t ^ 1],
    ]
    np.testing.assert_array_equal(out, np.stack(expected))


def test_uniform_reads_see_the_first_active_lane_and_any_lane():
    values = np.random.default_rng(13).integers(0, 1 << 32, 64, dtype=np.uint32)
    values[:2] = 2, 9
    out = np.zeros((64, 3), np.uint32)
    program("lane_moves").launch("uniform_reads", (1,), (64,), [values, out])
    odd = values % 2 == 1
    below = np.cumsum(odd) - odd
    expected = np.stack([np.full(64, 9), np.full(64, values[17]), below], 1) * odd[:, None]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("num_bytes", [0, 4, 500, 508, 1016, 1024])
@pytest.mark.parametrize("scalar", [0, 32, 36])
def test_buffer_accesses_past_the_end_read_zero_and_write_nothing_dword_by_dword(num_bytes, scalar):
    rng = np.random.default_rng(num_bytes)
    source = rng.integers(1, 1 << 32, 512, dtype=np.uint32)
    target = np.full(512, 5, np.uint32)
    arguments = [source, target, num_bytes, 1024, scalar]
    program("buffer_bounds").launch("copy_16_bytes", (1,), (64,), arguments)
    expected = np.full(512, 5, np.uint32)
    for word in range(scalar // 4, scalar // 4 + 256):
        if 4 * word + 4 <= 1024:
            expected[word] = source[word] if 4 * word + 4 <= num_bytes else 0
    np.testing.assert_array_equal(target, expected)


def test_buffer_accesses_of_one_two_four_and_eight_bytes():
    source = np.random.default_rng(14).integers(1, 256, 1024, dtype=np.uint8)
    target = np.zeros(1024, np.uint8)
    program("buffer_bounds").launch("copy_narrow", (1,), (64,), [source, target, 900])
    expected = source.copy()
    expected[900:] = 0
    np.testing.assert_array_equal(target, expected)


def test_packed_f32_fuses_and_picks_halves():
    rng = np.random.default_rng(15)
    x, y, z = rng.standard_normal((3, 64, 2)).astype(np.float32)
    out = np.zeros((4, 64, 2), np.float32)
    program("packed_math").launch("pairs", (1,), (64,), [x, y, z, out, 1.7])

    def fused(a, b, c):  # a product of two f32 is exact in f64; one rounding to f64 is below 1 ulp
        return (a.astype(np.float64) * b + c).astype(np.float32)

    np.testing.assert_array_equal(out[0], fused(x, y, z))
    np.testing.assert_array_equal(out[1], x * np.float32(1.7))
    np.testing.assert_array_equal(out[2], x + y)
    np.testing.assert_array_equal(out[3], fused(x[:, ::-1], y[:, :1], -z))


def test_silu_is_within_a_few_units_of_the_last_place():
    rng = np.random.default_rng(16)
    gate, up = (4 * rng.standard_normal((2, 64))).astype(np.float32)
    out = np.zeros(64, np.float32)
    program("packed_math").launch("silu", (1,), (64,), [gate, up, out])
    exact = gate / (1 + np.exp(-gate.astype(np.float64))) * up
    # exp and rcp within 1 ulp, and the rounded argument of exp: some 2^-21 at |gate| = 10.
    np.testing.assert_allclose(out, exact, rtol=2e-6)


def test_division_is_rounded_exactly_over_the_whole_range():
    """An independent check of v_div_scale_f32, v_div_fmas_f32, v_div_fixup_f32 and v_rcp_f32."""
    rng = np.random.default_rng(17)
    a, b = rng.integers(0, 1 << 32, (2, 8192), dtype=np.uint32).view(np.float32)
    corners = np.array(
        [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.1754944e-38, 3.4028235e38, 3],
        np.float32,
    )
    a[:144], b[:144] = np.repeat(corners, 12), np.tile(corners, 12)
    quotient = np.zeros(8192, np.float32)
    program("packed_math").launch("divide", (32,), (256,), [a, b, quotient])
    with np.errstate(all="ignore"):
        expected = a / b
    np.testing.assert_array_equal(quotient, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(quotient)[numbers], np.signbit(expected)[numbers])


def test_8_bit_floats_are_widened_and_narrowed():
    import torch

    packed = np.random.default_rng(18).permutation(256).astype(np.uint8)
    bf8, fp8 = np.zeros((2, 256), np.float32)
    back = np.zeros(256, np.uint8)
    program("packed_math").launch("bytes_to_floats", (1,), (64,), [packed, bf8, fp8, back])
    tensor = torch.from_numpy(packed)
    for found, kind in ((bf8, torch.float8_e5m2fnuz), (fp8, torch.float8_e4m3fnuz)):
        np.testing.assert_array_equal(found, tensor.view(kind).to(torch.float32).numpy())
    np.testing.assert_array_equal(back, packed)


def test_narrow_loads_extend_by_sign_or_zero():
    rng = np.random.default_rng(19)
    arrays = [
        rng.integers(np.iinfo(t).min, np.iinfo(t).max, 64, dtype=t, endpoint=True)
        for t in (np.int8, np.uint8, np.int16, np.uint16)
    ]
    out = np.zeros((64, 4), np.int32)
    program("narrow_access").launch("widen", (1,), (64,), [*arrays, out])
    np.testing.assert_array_equal(out, np.stack(arrays, 1).astype(np.int32))


def test_halves_of_a_register_are_loaded_and_stored_apart():
    rng = np.random.default_rng(20)
    low, high = rng.integers(0, 1 << 16, (2, 64), dtype=np.uint16)
    packed, upper = np.zeros(64, np.uint32), np.zeros(64, np.uint16)
    program("narrow_access").launch("halves", (1,), (64,), [low, high, packed, upper])
    np.testing.assert_array_equal(packed, low.astype(np.uint32) | high.astype(np.uint32) << 16)
    np.testing.assert_array_equal(upper, high + np.uint16(1))


def test_64_bit_multiplication_shift_and_comparison():
    rng = np.random.default_rng(21)
    a, b = rng.integers(-(1 << 63), 1 << 63, (2, 64), dtype=np.int64)
    a[:4], b[:4] = [1, -1, 0, 5], [1, 1, 0, -(1 << 63)]
    shifts = rng.integers(0, 64, 64, dtype=np.uint32)
    out, order = np.zeros(64, np.int64), np.zeros(64, np.int32)
    program("narrow_access").launch("wide", (1,), (64,), [a, b, shifts, out, order])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, a * b + (a >> shifts.astype(np.int64)))
    np.testing.assert_array_equal(order, np.sign((a > b).astype(int) - (a < b).astype(int)))


def test_integers_are_divided_as_compilers_do_it():
    rng = np.random.default_rng(23)
    a, b = rng.integers(1, 1 << 64, (2, 256), dtype=np.uint64)
    a[:6] = [0, 1, (1 << 64) - 1, 1 << 63, 1 << 32, (1 << 31) - 1]
    b[:6] = [1, (1 << 64) - 1, 3, 10, (1 << 32) + 1, 1]
    b[100:] >>= rng.integers(0, 60, 156, dtype=np.uint64)
    b |= np.uint64(1)
    narrow, with_sign = np.zeros((256, 2), np.uint32), np.zeros((256, 2), np.int32)
    wide = np.zeros((256, 2), np.uint64)
    program("division").launch("divide_integers", (1,), (256,), [a, b, narrow, with_sign, wide])
    np.testing.assert_array_equal(wide, np.stack([a // b, a % b], 1))
    x, y = a.astype(np.uint32), b.astype(np.uint32)
    np.testing.assert_array_equal(narrow, np.stack([x // y, x % y], 1))
    x, y = x.astype(np.int32).astype(np.int64), y.astype(np.int32).astype(np.int64)
    quotient = np.abs(x) // np.abs(y) * np.sign(x) * np.sign(y)
    expected = np.stack([quotient, x - quotient * y], 1).astype(np.int32)
    np.testing.assert_array_equal(with_sign, expected)


@every_order
def test_sixteen_waves_share_lds_and_release_their_results(order, seed):
    values = np.random.default_rng(24).integers(0, 1 << 32, 1024, dtype=np.uint32)
    out, flag = np.zeros(1024, np.uint32), np.zeros(1, np.uint32)
    arguments = [values, out, flag]
    program("division").launch("reverse", (1,), (1024,), arguments, wave_order=order, seed=seed)
    np.testing.assert_array_equal(out, values[::-1])
    assert flag[0] == 1


@every_order
def test_a_ring_of_loads_is_kept_full_by_counted_waits(order, seed):
    rng = np.random.default_rng(22)
    rounds, waves = 16, 8
    stream = rng.integers(0, 1 << 32, (rounds, waves, 64, 4), dtype=np.uint32)
    scales = rng.integers(0, 1 << 32, (rounds, waves, 64), dtype=np.uint32)
    out = np.zeros(64, np.uint32)
    machine = program("weight_ring")
    counters = machine.launch(
        "weight_ring", (1,), (512,), [stream, scales, out, rounds], wave_order=order, seed=seed
    )
    x, y, z, w = np.moveaxis(stream, -1, 0)
    factor = (scales >> 8 & 0xFF) << 23
    terms = ((x << 7) | (x >> 25)) * factor
    terms += ((y & 0xF0F0F0F0) | (z & 0x0F0F0F0F)) ^ w
    np.testing.assert_array_equal(out, terms.sum((0, 1), dtype=np.uint32))
    assert counters.uninitialised_reads == ()
    waits = [line.wait.get("vmcnt", 0) for line in machine.instructions("weight_ring") if line.wait]
    assert max(waits) > 0, "the ring is drained at every wait"
    weights = [use for use in counters.memory if use.line.mnemonic == "global_load_dwordx4"]
    assert all(use.segments == 16 * use.executed for use in weights)  # 64 lanes of 16 bytes
