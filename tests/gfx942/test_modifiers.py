"""What can stand on an operand or a result: neg, abs, clamp, op_sel, SDWA, DPP, constants.

ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapter 6.2 (operands, constants), 6.5
(clamp), 6.7 (packed math: OPSEL, NEG), chapter 13 (microcode formats: VOP3, VOP3P, SDWA, DPP).
"""

import random
import struct

import numpy as np
import pytest

from tests.gfx942.oracles import bench
from tests.gfx942.oracles.floating import BF8, FP8, added, fused, multiplied
from tests.gfx942.oracles.integer import signed
from tests.gfx942.oracles.values import number, same, sample, words

M32 = 0xFFFFFFFF


def f32(word):
    return number("f32", [int(word)])


def bits(value):
    return words("f32", value)[0]


def lanes_of(kind, seed, count=bench.NUM_VECTOR_INPUTS):
    """Inputs of one wave: word k of each lane a sample of the type."""
    rng = random.Random(seed)
    vectors = np.zeros((1, bench.NUM_VECTOR_INPUTS, 64), np.uint32)
    for k in range(count):
        for lane in range(64):
            vectors[0, k, lane] = sample(kind, rng)[0]
    return vectors


# Every instruction that a test of this file runs, so that all are assembled at once.
TEXTS = []


def listed(*instructions):
    """Add instructions to those; return them."""
    TEXTS.extend(instructions)
    return list(instructions)


@pytest.fixture(scope="module")
def results():
    """A function that gives each instruction's results for one wave."""
    batch = bench.Batch(TEXTS)
    return lambda wanted, vectors, scalars=None: [
        batch.run(text, vectors, scalars) for text in wanted
    ]


def magnitude(x):
    return struct.unpack("<f", struct.pack("<I", bits(x) & 0x7FFFFFFF))[0]


FLOAT_MODIFIERS = {
    "v_add_f32 v20, -v10, v12": lambda a, b: added(-a, b, "f32"),
    "v_add_f32 v20, |v10|, v12": lambda a, b: added(magnitude(a), b, "f32"),
    "v_add_f32 v20, -|v10|, -v12": lambda a, b: added(-magnitude(a), -b, "f32"),
    "v_fma_f32 v20, v10, -v12, |v12|": lambda a, b: fused(a, -b, magnitude(b), "f32"),
    "v_add_f32 v20, v10, v12 clamp": lambda a, b: clamped(added(a, b, "f32")),
    "v_cndmask_b32_e64 v20, -v10, |v12|, vcc": lambda a, b: -a,
}
listed(*FLOAT_MODIFIERS)


def clamped(x):
    """To 0..1; NaN becomes 0, as DX10_CLAMP has it."""
    return 0.0 if not x > 0 else min(x, 1.0)


@pytest.mark.parametrize("text", FLOAT_MODIFIERS)
def test_neg_abs_and_clamp(results, text):
    vectors = lanes_of("f32", text)
    found = results([text], vectors)[0]
    for lane in range(64):
        a, b = f32(vectors[0, 0, lane]), f32(vectors[0, 2, lane])
        expected = words("f32", FLOAT_MODIFIERS[text](a, b))
        assert same("f32", expected, [int(found[0, lane])]), (lane, a, b)


F64_MODIFIERS = listed("v_add_f64 v[20:21], -v[10:11], |v[12:13]|")


def test_neg_and_abs_of_f64_touch_the_high_word(results):
    vectors = lanes_of("u32", 1)
    found = results(F64_MODIFIERS, vectors)[0]
    for lane in range(64):
        a = number("f64", [int(x) for x in vectors[0, 0:2, lane]])
        b = number("f64", [int(x) for x in vectors[0, 2:4, lane]])
        expected = words("f64", added(-a, abs(b), "f64"))
        assert same("f64", expected, found[:2, lane].tolist())


CONSTANTS = {
    "v_mov_b32 v20, 64": 64,
    "v_mov_b32 v20, -16": -16 & M32,
    "v_mov_b32 v20, 0xdeadbeef": 0xDEADBEEF,
    "v_mov_b32 v20, 0.5": 0x3F000000,
    "v_mov_b32 v20, 0.15915494": 0x3E22F983,
    "v_add_u32 v20, 1.0, v10": 0x3F800000,
    "v_add_f16 v20, 1.0, v10": 0x3C00,
    "v_lshlrev_b64 v[20:21], v10, -4.0": 0xC010000000000000,
    "v_lshlrev_b64 v[20:21], v10, -1": 0xFFFFFFFFFFFFFFFF,
    "v_add_f64 v[20:21], v[10:11], 1.0": 0x3FF0000000000000,
    "v_mov_b64 v[20:21], 0x3ff": 0x3FF,
    "s_mov_b64 s[40:41], 0x87654321\n  v_mov_b32 v20, s40\n  v_mov_b32 v21, s41": 0x87654321,
    "s_mov_b64 s[40:41], -2\n  v_mov_b32 v20, s40\n  v_mov_b32 v21, s41": -2 & ((1 << 64) - 1),
}
listed(*CONSTANTS)


@pytest.mark.parametrize("text", CONSTANTS, ids=lambda t: t.split("\n")[0])
def test_a_constant_takes_the_width_and_type_of_its_operand(results, text):
    found = results([text], np.zeros((1, 2, 64), np.uint32))[0]
    wide = "20:21" in text or "v21" in text
    value = int(found[0, 5]) | (int(found[1, 5]) << 32 if wide else 0)
    assert value == CONSTANTS[text]


def halves(word):
    return int(word) & 0xFFFF, int(word) >> 16


def op_sel(low, high):
    return f"op_sel:[{low & 1},{low >> 1}] op_sel_hi:[{high & 1},{high >> 1}]"


def packed_add(low, high):
    return f"v_pk_add_u16 v20, v10, v12 {op_sel(low, high)}"


def packed_fma(low, high):
    selects = op_sel(low, high).replace("] op", ",1] op")[:-1] + ",0]"
    signs = f"neg_lo:[{high & 1},0,1] neg_hi:[0,{low & 1},1]"
    return f"v_pk_fma_f32 v[20:21], v[10:11], v[12:13], v[14:15] {selects} {signs}"


listed(*(f(low, high) for f in (packed_add, packed_fma) for low in range(4) for high in range(4)))


@pytest.mark.parametrize("low", range(4))
@pytest.mark.parametrize("high", range(4))
def test_op_sel_picks_the_half_for_the_low_and_op_sel_hi_for_the_high_result(results, low, high):
    vectors = lanes_of("u32", low * 4 + high)
    (found,) = results([packed_add(low, high)], vectors)
    for lane in range(64):
        a, b = halves(vectors[0, 0, lane]), halves(vectors[0, 2, lane])
        expected_low = a[low & 1] + b[low >> 1] & 0xFFFF
        expected_high = a[high & 1] + b[high >> 1] & 0xFFFF
        assert halves(found[0, lane]) == (expected_low, expected_high)


@pytest.mark.parametrize("low", range(4))
@pytest.mark.parametrize("high", range(4))
def test_op_sel_and_neg_of_packed_f32_work_on_words(results, low, high):
    vectors = lanes_of("f32", low * 4 + high)
    (found,) = results([packed_fma(low, high)], vectors)
    for lane in range(64):
        a, b, c = (vectors[0, k : k + 2, lane].tolist() for k in (0, 2, 4))
        sign = [1.0, -1.0]
        low_value = fused(sign[high & 1] * f32(a[low & 1]), f32(b[low >> 1]), -f32(c[1]), "f32")
        high_value = fused(f32(a[high & 1]), sign[low & 1] * f32(b[high >> 1]), -f32(c[0]), "f32")
        expected = [bits(low_value), bits(high_value)]
        assert same("f32x2", expected, found[:2, lane].tolist()), lane


SCALAR_PAIRS = listed(
    "v_pk_mul_f32 v[20:21], v[10:11], s[16:17]",
    "v_pk_mul_f32 v[20:21], v[10:11], s[16:17] op_sel_hi:[1,0]",
    "v_pk_mul_f32 v[20:21], v[10:11], 2.0 op_sel_hi:[1,0]",
)


def test_a_scalar_pair_and_its_one_half_in_packed_f32(results):
    vectors = lanes_of("f32", 3)
    scalars = np.zeros((1, bench.NUM_SCALAR_INPUTS), np.uint32)
    scalars[0, :2] = bits(1.5), bits(-0.25)
    scalars[0, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = M32
    factors = [(1.5, -0.25), (1.5, 1.5), (2.0, 2.0)]
    for found, (low, high) in zip(results(SCALAR_PAIRS, vectors, scalars), factors, strict=True):
        for lane in range(64):
            a, b = f32(vectors[0, 0, lane]), f32(vectors[0, 1, lane])
            expected = [bits(multiplied(a, low, "f32")), bits(multiplied(b, high, "f32"))]
            assert same("f32x2", expected, found[:2, lane].tolist())


def packed_move(low, high):
    return f"v_pk_mov_b32 v[20:21], v[10:11], v[12:13] op_sel:[{low},{high}]"


PICKS = [(0, 0), (0, 1), (1, 0), (1, 1)]
listed(*(packed_move(*picks) for picks in PICKS))


@pytest.mark.parametrize("picks", PICKS)
def test_v_pk_mov_takes_a_word_of_each_source(results, picks):
    """V_PK_MOV_B32: op_sel[0] picks the word of source 0 for the low result, op_sel[1] that of
    source 1 for the high one. (LLVM copies a pair of registers with op_sel:[0,1].)"""
    vectors = lanes_of("u32", 4)
    (found,) = results([packed_move(*picks)], vectors)
    np.testing.assert_array_equal(found[0], vectors[0, picks[0]])
    np.testing.assert_array_equal(found[1], vectors[0, 2 + picks[1]])


HALF_RESULTS = listed(
    "v_mad_u16 v20, v10, v12, v14 op_sel:[1,0,1,1]",
    "v_mad_u16 v20, v10, v12, v14 op_sel:[0,1,0,0]",
)


def test_op_sel_of_a_16_bit_result_writes_one_half_and_keeps_the_other(results):
    vectors = lanes_of("u32", 5)
    high_half, low_half = results(HALF_RESULTS, vectors)
    for lane in range(64):
        a, b, c = (halves(vectors[0, k, lane]) for k in (0, 2, 4))
        old = halves(vectors[0, 8, lane])
        assert halves(high_half[0, lane]) == (old[0], a[1] * b[0] + c[1] & 0xFFFF)
        assert halves(low_half[0, lane]) == (a[0] * b[1] + c[0] & 0xFFFF, old[1])


TINY_RESULTS = listed(
    "v_cvt_pk_fp8_f32 v20, v10, v12 op_sel:[0,0,1]",
    *(f"v_cvt_sr_fp8_f32 v20, v10, v12 op_sel:[0,0,{k & 1},{k >> 1}]" for k in range(4)),
)


def test_8_bit_conversions_write_the_half_or_byte_that_op_sel_says(results):
    vectors = lanes_of("u32", 6)
    vectors[0, 0], vectors[0, 2] = bits(1.5), bits(-2.0)
    packed, *single = results(TINY_RESULTS, vectors)
    one_and_a_half, minus_two = 0x44, 0xC8  # e4m3fnuz, bias 8
    for lane in range(64):
        old = int(vectors[0, 8, lane])
        assert int(packed[0, lane]) == old & 0xFFFF | one_and_a_half << 16 | minus_two << 24
        for k in range(4):
            expected = old & ~(0xFF << 8 * k) | one_and_a_half << 8 * k
            assert int(single[k][0, lane]) == expected & M32


PARTS = {f"BYTE_{k}": (8 * k, 8) for k in range(4)} | {"WORD_0": (0, 16), "WORD_1": (16, 16)}
PARTS["DWORD"] = (0, 32)


def sdwa_source(part, source):
    return (
        f"v_add_u32_sdwa v20, {source}, v12 dst_sel:DWORD dst_unused:UNUSED_PAD "
        f"src0_sel:{part} src1_sel:BYTE_2"
    )


def sdwa_result(part, unused):
    return (
        f"v_add_u32_sdwa v20, v10, v12 dst_sel:{part} dst_unused:UNUSED_{unused} "
        "src0_sel:DWORD src1_sel:DWORD"
    )


UNUSED = ("PAD", "SEXT", "PRESERVE")
listed(*(sdwa_source(part, source) for part in PARTS for source in ("v10", "sext(v10)")))
listed(*(sdwa_result(part, unused) for part in PARTS for unused in UNUSED))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("is_signed", [False, True], ids=["zero", "sext"])
def test_sdwa_takes_a_part_of_a_source(results, part, is_signed):
    source = "sext(v10)" if is_signed else "v10"
    vectors = lanes_of("u32", part)
    (found,) = results([sdwa_source(part, source)], vectors)
    shift, width = PARTS[part]
    for lane in range(64):
        value = int(vectors[0, 0, lane]) >> shift & ((1 << width) - 1)
        value = signed(value, width) if is_signed else value
        assert int(found[0, lane]) == value + (int(vectors[0, 2, lane]) >> 16 & 0xFF) & M32


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("unused", UNUSED)
def test_sdwa_writes_a_part_of_the_result_and_the_rest_as_told(results, part, unused):
    vectors = lanes_of("u32", part)
    (found,) = results([sdwa_result(part, unused)], vectors)
    shift, width = PARTS[part]
    for lane in range(64):
        total = int(vectors[0, 0, lane]) + int(vectors[0, 2, lane]) & ((1 << width) - 1)
        if unused == "PAD":
            expected = total << shift
        elif unused == "SEXT":  # the sign above, zeros below
            expected = signed(total, width) << shift & M32
        else:
            expected = int(vectors[0, 8, lane]) & ~(((1 << width) - 1) << shift) | total << shift
        assert int(found[0, lane]) == expected & M32


WHOLE = "dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD"
SDWA_OTHERS = listed(
    f"v_add_f32_sdwa v20, -v10, |v12| {WHOLE} src1_sel:DWORD",
    "v_cmp_lt_u32_sdwa s[40:41], v10, v12 src0_sel:BYTE_1 src1_sel:BYTE_3",
    f"v_lshlrev_b32_sdwa v20, v12, v10 {WHOLE} src1_sel:BYTE_1",
    "v_cvt_pk_f32_bf8_sdwa v[20:21], v10 src0_sel:WORD_1",
    "v_cvt_f32_fp8_sdwa v20, v10 src0_sel:BYTE_3",
)


def test_sdwa_of_floats_compares_and_shifts(results):
    vectors = lanes_of("f32", 7)
    plus, less, shift, pair, single = results(SDWA_OTHERS, vectors)
    mask = 0
    for lane in range(64):
        a, b = int(vectors[0, 0, lane]), int(vectors[0, 2, lane])
        total = words("f32", added(-f32(a), magnitude(f32(b)), "f32"))
        assert same("f32", total, [int(plus[0, lane])])
        mask |= ((a >> 8 & 0xFF) < b >> 24) << lane
        assert int(shift[0, lane]) == (a >> 8 & 0xFF) << (b & 31) & M32
        expected = [bits(BF8[a >> 16 & 0xFF]), bits(BF8[a >> 24])]
        assert same("f32x2", expected, pair[:2, lane].tolist())
        assert same("f32", [bits(FP8[a >> 24])], [int(single[0, lane])])
    assert bench.scalar_result(less) == mask


def row(lane):
    return lane // 16 * 16


# The lane that a lane reads, or None if there is none: ISA guide, chapter 13, DPP_CTRL.
DPP = {
    "quad_perm:[1,0,3,3]": lambda lane: lane // 4 * 4 + [1, 0, 3, 3][lane % 4],
    "row_shl:1": lambda lane: lane + 1 if lane % 16 < 15 else None,
    "row_shl:7": lambda lane: lane + 7 if lane % 16 < 9 else None,
    "row_shr:1": lambda lane: lane - 1 if lane % 16 >= 1 else None,
    "row_shr:15": lambda lane: lane - 15 if lane % 16 == 15 else None,
    "row_ror:5": lambda lane: row(lane) + (lane - 5) % 16,
    "wave_shl:1": lambda lane: lane + 1 if lane < 63 else None,
    "wave_rol:1": lambda lane: (lane + 1) % 64,
    "wave_shr:1": lambda lane: lane - 1 if lane else None,
    "wave_ror:1": lambda lane: (lane - 1) % 64,
    "row_mirror": lambda lane: row(lane) + 15 - lane % 16,
    "row_half_mirror": lambda lane: lane // 8 * 8 + 7 - lane % 8,
    "row_bcast:15": lambda lane: row(lane) - 1 if lane >= 16 else None,
    "row_bcast:31": lambda lane: 31 if lane >= 32 else None,
    "row_newbcast:9": lambda lane: row(lane) + 9,
}


def dpp(control, masks, zero):
    rows, banks = masks
    text = f"v_mov_b32_dpp v20, v10 {control} row_mask:{rows:#x} bank_mask:{banks:#x}"
    return text + (" bound_ctrl:1" if zero else "")


MASKS = [(0xF, 0xF), (0xA, 0x5)]
listed(*(dpp(control, masks, zero) for control in DPP for masks in MASKS for zero in (0, 1)))


@pytest.mark.parametrize("control", DPP)
@pytest.mark.parametrize("zero", [False, True], ids=["keep", "bound_ctrl"])
@pytest.mark.parametrize("masks", MASKS, ids=["all", "masked"])
def test_dpp_reads_another_lane_and_leaves_out_who_has_none(results, control, zero, masks):
    """A lane whose source is out of range or switched off keeps its register, or reads 0 if
    bound_ctrl is set; a lane outside the row or bank mask keeps its register."""
    rows, banks = masks
    vectors = lanes_of("u32", control)
    active = random.Random(control).getrandbits(64) | 1 << 31
    scalars = np.zeros((1, bench.NUM_SCALAR_INPUTS), np.uint32)
    scalars[0, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = active & M32, active >> 32
    (found,) = results([dpp(control, masks, zero)], vectors, scalars)
    for lane in range(64):
        old = int(vectors[0, 8, lane])
        source = DPP[control](lane)
        enabled = rows >> lane // 16 & 1 and banks >> lane // 4 % 4 & 1 and active >> lane & 1
        if source is not None and active >> source & 1:
            value = int(vectors[0, 0, source])
        else:
            value = 0 if zero else old
        assert int(found[0, lane]) == (value if enabled else old), lane


IN_PLACE = listed("v_add_u32_dpp v20, v20, v20 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1")


def test_dpp_of_arithmetic_reads_the_old_values_even_in_place(results):
    vectors = lanes_of("u32", 8)
    (found,) = results(IN_PLACE, vectors)
    for lane in range(64):
        old = vectors[0, 8].astype(np.uint64)
        before = int(old[lane - 1]) if lane % 16 else 0
        assert int(found[0, lane]) == (int(old[lane]) + before) & M32


MIXED = listed(
    "v_fma_mix_f32 v20, v10, -v12, |v14| op_sel:[1,0,0] op_sel_hi:[1,1,0]",
    "v_fma_mixlo_f16 v20, v10, v12, v14 op_sel_hi:[1,1,1]",
    "v_fma_mixhi_f16 v20, v10, v12, v14 op_sel_hi:[1,1,1]",
)


def test_mixed_precision_takes_f32_or_a_half_by_op_sel_hi(results):
    """V_FMA_MIX_F32: op_sel_hi 0 is f32, 1 is f16, of which op_sel picks the half."""
    vectors = lanes_of("f16x2", 9)
    vectors[0, 4] = lanes_of("f32", 10)[0, 4]
    found, low, high = results(MIXED, vectors)
    for lane in range(64):
        a, b = (number("f16x2", [int(vectors[0, k, lane])]) for k in (0, 2))
        c = magnitude(f32(vectors[0, 4, lane]))
        expected = words("f32", fused(a[1], -b[0], c, "f32"))
        assert same("f32", expected, [int(found[0, lane])])
        c_low = number("f16x2", [int(vectors[0, 4, lane])])[0]
        half = words("f16", fused(a[0], b[0], c_low, "f16"))
        old = halves(vectors[0, 8, lane])
        found_low, found_high = halves(low[0, lane]), halves(high[0, lane])
        assert same("f16", half, [found_low[0]])
        assert same("f16", half, [found_high[1]])
        assert (found_low[1], found_high[0]) == (old[1], old[0])


CLAMPED = listed(
    "v_pk_add_f32 v[20:21], v[10:11], v[12:13] clamp", "v_pk_add_f16 v20, v10, v12 clamp"
)


def test_clamp_of_packed_and_half_results(results):
    vectors = lanes_of("f32", 11)
    pair = results(CLAMPED[:1], vectors)[0]
    half_vectors = lanes_of("f16x2", 12)
    half = results(CLAMPED[1:], half_vectors)[0]
    for lane in range(64):
        totals = [
            clamped(added(f32(vectors[0, k, lane]), f32(vectors[0, 2 + k, lane]), "f32"))
            for k in range(2)
        ]
        assert same("f32x2", [bits(t) for t in totals], pair[:2, lane].tolist())
        a, b = (number("f16x2", [int(half_vectors[0, k, lane])]) for k in (0, 2))
        expected = tuple(clamped(added(x, y, "f16")) for x, y in zip(a, b, strict=True))
        assert same("f16x2", words("f16x2", expected), [int(half[0, lane])])
