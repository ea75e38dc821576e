"""Integer instructions of the vector unit, from the ISA guide's words in Python integers.

ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapter 12 (Instructions), sections
VOP1, VOP2, VOP3A and VOP3B.
"""

from tests.gfx942.oracles.case import Case, cases

M16, M32, M64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1


def signed(value: int, bits: int) -> int:
    """Return the low bits as a two's complement number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def clamped(value: int, low: int, high: int) -> int:
    """Return the value, or the bound it is beyond."""
    return max(low, min(high, value))


def median(a, b, c):
    """Return the middle one."""
    return sorted((a, b, c))[1]


def bytes_of(value: int, count: int = 4) -> list[int]:
    """Return the bytes, lowest first."""
    return [value >> 8 * k & 0xFF for k in range(count)]


def permuted(high: int, low: int, selectors: int) -> int:
    """V_PERM_B32: "byte permute": selectors 0..7 pick a byte of {S0,S1}, 8..11 replicate the sign
    of byte 1, 3, 5, 7, 12 is 0x00 and 13 and above are 0xff."""
    source = bytes_of(low) + bytes_of(high)
    result = 0
    for place, selector in enumerate(bytes_of(selectors)):
        if selector <= 7:
            byte = source[selector]
        elif selector <= 11:
            byte = 0xFF if source[2 * (selector - 8) + 1] & 0x80 else 0
        else:
            byte = 0 if selector == 12 else 0xFF
        result |= byte << 8 * place
    return result


def field_unsigned(a: int, offset: int, width: int) -> int:
    """V_BFE_U32: (S0 >> S1[4:0]) & ((1 << S2[4:0]) - 1)."""
    return a >> (offset & 31) & ((1 << (width & 31)) - 1)


def field_signed(a: int, offset: int, width: int) -> int:
    """V_BFE_I32: the same field of the signed number, sign-extended; width 0 gives 0."""
    width &= 31
    return signed(a >> (offset & 31), width) if width else 0


def leading_zeros(a: int) -> int:
    """V_FFBH_U32: zeros from the top, or -1 if there is no one."""
    return 32 - a.bit_length() if a else -1


def leading_signs(a: int) -> int:
    """V_FFBH_I32: position from the top of the first bit that differs from the sign, or -1."""
    text = f"{a & M32:032b}"
    other = text.find("1" if text[0] == "0" else "0")
    return other


def trailing_zeros(a: int) -> int:
    """V_FFBL_B32."""
    return (a & -a).bit_length() - 1


def dot(a: int, b: int, c: int, bits: int, is_signed: bool) -> int:
    """V_DOT2/4/8: the sum of the products of the fields, and c."""
    for k in range(0, 32, bits):
        x, y = a >> k & ((1 << bits) - 1), b >> k & ((1 << bits) - 1)
        c += signed(x, bits) * signed(y, bits) if is_signed else x * y
    return c


def byte_differences(a: int, b: int) -> int:
    """Return the sum of absolute differences of the bytes."""
    return sum(abs(x - y) for x, y in zip(bytes_of(a), bytes_of(b), strict=True))


THREE, TWO, ONE = "u32 u32 u32", "u32 u32", "u32"

CASES: list[Case] = cases(
    {
        "v_mov_b32": (ONE, "u32", lambda a: a),
        "v_mov_b64": ("u64", "u64", lambda a: a),
        "v_add_u32": (TWO, "u32", lambda a, b: a + b),
        "v_sub_u32": (TWO, "u32", lambda a, b: a - b),
        "v_subrev_u32": (TWO, "u32", lambda a, b: b - a),
        "v_add_i32": (TWO, "u32", lambda a, b: a + b),
        "v_sub_i32": (TWO, "u32", lambda a, b: a - b),
        "v_add3_u32": (THREE, "u32", lambda a, b, c: a + b + c),
        "v_lshl_add_u32": (THREE, "u32", lambda a, b, c: (a << (b & 31)) + c),
        "v_add_lshl_u32": (THREE, "u32", lambda a, b, c: ((a + b) & M32) << (c & 31)),
        "v_xad_u32": (THREE, "u32", lambda a, b, c: (a ^ b) + c),
        "v_mul_lo_u32": (TWO, "u32", lambda a, b: a * b),
        "v_mul_hi_u32": (TWO, "u32", lambda a, b: a * b >> 32),
        "v_mul_hi_i32": ("s32 s32", "s32", lambda a, b: a * b >> 32),
        "v_mul_u32_u24": (TWO, "u32", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
        "v_mul_hi_u32_u24": (TWO, "u32", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32),
        "v_mul_i32_i24": (TWO, "u32", lambda a, b: signed(a, 24) * signed(b, 24)),
        "v_mul_hi_i32_i24": (TWO, "u32", lambda a, b: signed(a, 24) * signed(b, 24) >> 32),
        "v_mad_u32_u24": (THREE, "u32", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c),
        "v_mad_i32_i24": (THREE, "u32", lambda a, b, c: signed(a, 24) * signed(b, 24) + c),
        "v_sad_u8": (THREE, "u32", lambda a, b, c: byte_differences(a, b) + c),
        "v_sad_hi_u8": (THREE, "u32", lambda a, b, c: (byte_differences(a, b) << 16) + c),
        "v_sad_u16": (
            "u16x2 u16x2 u32",
            "u32",
            lambda a, b, c: abs(a[0] - b[0]) + abs(a[1] - b[1]) + c,
        ),
        "v_sad_u32": (THREE, "u32", lambda a, b, c: abs(a - b) + c),
        "v_min_u32": (TWO, "u32", min),
        "v_max_u32": (TWO, "u32", max),
        "v_min_i32": ("s32 s32", "s32", min),
        "v_max_i32": ("s32 s32", "s32", max),
        "v_min3_u32": (THREE, "u32", min),
        "v_max3_u32": (THREE, "u32", max),
        "v_med3_u32": (THREE, "u32", median),
        "v_min3_i32": ("s32 s32 s32", "s32", min),
        "v_max3_i32": ("s32 s32 s32", "s32", max),
        "v_med3_i32": ("s32 s32 s32", "s32", median),
        "v_not_b32": (ONE, "u32", lambda a: ~a),
        "v_and_b32": (TWO, "u32", lambda a, b: a & b),
        "v_or_b32": (TWO, "u32", lambda a, b: a | b),
        "v_xor_b32": (TWO, "u32", lambda a, b: a ^ b),
        "v_xnor_b32": (TWO, "u32", lambda a, b: ~(a ^ b)),
        "v_or3_b32": (THREE, "u32", lambda a, b, c: a | b | c),
        "v_and_or_b32": (THREE, "u32", lambda a, b, c: a & b | c),
        "v_bfi_b32": (THREE, "u32", lambda mask, a, b: mask & a | ~mask & b),
        "v_lshlrev_b32": (TWO, "u32", lambda n, a: a << (n & 31)),
        "v_lshrrev_b32": (TWO, "u32", lambda n, a: a >> (n & 31)),
        "v_ashrrev_i32": ("u32 s32", "u32", lambda n, a: a >> (n & 31)),
        "v_lshlrev_b64": ("u32 u64", "u64", lambda n, a: a << (n & 63)),
        "v_lshrrev_b64": ("u32 u64", "u64", lambda n, a: a >> (n & 63)),
        "v_ashrrev_i64": ("u32 s64", "u64", lambda n, a: a >> (n & 63)),
        "v_lshl_or_b32": (THREE, "u32", lambda a, n, c: a << (n & 31) | c),
        "v_alignbit_b32": (THREE, "u32", lambda a, b, n: (a << 32 | b) >> (n & 31)),
        "v_alignbyte_b32": (THREE, "u32", lambda a, b, n: (a << 32 | b) >> 8 * (n & 3)),
        "v_bfe_u32": (THREE, "u32", field_unsigned),
        "v_bfe_i32": ("s32 u32 u32", "u32", field_signed),
        "v_bfm_b32": (TWO, "u32", lambda w, n: ((1 << (w & 31)) - 1) << (n & 31)),
        "v_bfrev_b32": (ONE, "u32", lambda a: int(f"{a:032b}"[::-1], 2)),
        "v_bcnt_u32_b32": (TWO, "u32", lambda a, b: f"{a:b}".count("1") + b),
        "v_ffbh_u32": (ONE, "u32", leading_zeros),
        "v_ffbh_i32": (ONE, "u32", leading_signs),
        "v_ffbl_b32": (ONE, "u32", trailing_zeros),
        "v_perm_b32": (THREE, "u32", permuted),
        "v_mad_u32_u16": ("u16 u16 u32", "u32", lambda a, b, c: a * b + c),
        "v_mad_i32_i16": ("s16 s16 u32", "u32", lambda a, b, c: a * b + c),
        "v_add_u16": ("u16 u16", "u16", lambda a, b: a + b),
        "v_sub_u16": ("u16 u16", "u16", lambda a, b: a - b),
        "v_subrev_u16": ("u16 u16", "u16", lambda a, b: b - a),
        "v_add_i16": ("u16 u16", "u16", lambda a, b: a + b),
        "v_sub_i16": ("u16 u16", "u16", lambda a, b: a - b),
        "v_mul_lo_u16": ("u16 u16", "u16", lambda a, b: a * b),
        "v_lshlrev_b16": ("u16 u16", "u16", lambda n, a: a << (n & 15)),
        "v_lshrrev_b16": ("u16 u16", "u16", lambda n, a: a >> (n & 15)),
        "v_ashrrev_i16": ("u16 s16", "u16", lambda n, a: a >> (n & 15)),
        "v_pack_b32_f16": ("u16 u16", "u32", lambda a, b: a | b << 16),
        "v_dot2_i32_i16": (THREE, "u32", lambda a, b, c: dot(a, b, c, 16, True)),
        "v_dot2_u32_u16": (THREE, "u32", lambda a, b, c: dot(a, b, c, 16, False)),
        "v_dot4_i32_i8": (THREE, "u32", lambda a, b, c: dot(a, b, c, 8, True)),
        "v_dot4_u32_u8": (THREE, "u32", lambda a, b, c: dot(a, b, c, 8, False)),
        "v_dot8_i32_i4": (THREE, "u32", lambda a, b, c: dot(a, b, c, 4, True)),
        "v_dot8_u32_u4": (THREE, "u32", lambda a, b, c: dot(a, b, c, 4, False)),
    }
)
CASES += [
    Case(f"v_{order}_{kind[0] if kind[0] == 'u' else 'i'}16", (kind,) * count, kind, function)
    for kind in ("u16", "s16")
    for order, count, function in (
        ("min", 2, min),
        ("max", 2, max),
        ("min3", 3, min),
        ("max3", 3, max),
        ("med3", 3, median),
    )
]
CASES += cases(
    {
        "v_dot4c_i32_i8": (THREE, "u32", lambda a, b, old: dot(a, b, old, 8, True)),
        "v_dot2c_i32_i16": (THREE, "u32", lambda a, b, old: dot(a, b, old, 16, True)),
        "v_dot8c_i32_i4": (THREE, "u32", lambda a, b, old: dot(a, b, old, 4, True)),
    },
    old=True,
)
# The shift of V_LSHL_ADD_U64 is 0..4; the guide defines no others.
CASES += cases(
    {"v_lshl_add_u64": ("u64 u32 u64", "u64", lambda a, n, c: (a << n) + c)}, limits={1: 5}
)
# V_MAD_U16 and V_MAD_I16 keep the upper half of the destination.
CASES += [
    Case(
        name,
        ("u16", "u16", "u16", "u32"),
        "u32",
        lambda a, b, c, old: (a * b + c) & M16 | old & ~M16,
        old=True,
        written=f"{name} v20, v10, v12, v14",
    )
    for name in ("v_mad_u16", "v_mad_i16")
]
CASES += cases(
    {
        "v_add_u32 clamp": (TWO, "u32", lambda a, b: clamped(a + b, 0, M32)),
        "v_sub_u32 clamp": (TWO, "u32", lambda a, b: clamped(a - b, 0, M32)),
        "v_add_i32 clamp": ("s32 s32", "s32", lambda a, b: clamped(a + b, -(1 << 31), M32 >> 1)),
        "v_sub_i32 clamp": ("s32 s32", "s32", lambda a, b: clamped(a - b, -(1 << 31), M32 >> 1)),
    },
    suffix=" clamp",
)
CASES += cases(
    {
        "v_add_co_u32": (TWO, "u32", lambda a, b: (a + b, a + b > M32)),
        "v_sub_co_u32": (TWO, "u32", lambda a, b: (a - b, b > a)),
        "v_subrev_co_u32": (TWO, "u32", lambda a, b: (b - a, a > b)),
        "v_mad_u64_u32": (
            "u32 u32 u64",
            "u64",
            lambda a, b, c: (a * b + c, a * b + c > M64),
        ),
        "v_mad_i64_i32": (
            "s32 s32 s64",
            "s64",
            lambda a, b, c: (a * b + c, not -(1 << 63) <= a * b + c < 1 << 63),
        ),
    },
    carry="out",
)
CASES += cases(
    {
        "v_addc_co_u32": (TWO, "u32", lambda a, b, c: (a + b + c, a + b + c > M32)),
        "v_subb_co_u32": (TWO, "u32", lambda a, b, c: (a - b - c, b + c > a)),
        "v_subbrev_co_u32": (TWO, "u32", lambda a, b, c: (b - a - c, a + c > b)),
    },
    carry="inout",
)
CASES += cases({"v_cndmask_b32": (TWO, "u32", lambda a, b, c: b if c else a)}, carry="in")

_COMPARES = {
    "f": lambda a, b: False,
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
    "t": lambda a, b: True,
}
CASES += [
    Case(f"v_{prefix}_{name}_{'u' if kind[0] == 'u' else 'i'}{kind[1:]}", (kind, kind), "mask", f)
    for prefix in ("cmp", "cmpx")
    for kind in ("u16", "s16", "u32", "s32", "u64", "s64")
    for name, f in _COMPARES.items()
]
