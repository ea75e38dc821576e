"""Floating-point instructions of the vector unit, computed in exact fractions and rounded once.

ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapter 6.4 (rounding to nearest even,
denormals kept) and chapter 12 (Instructions), sections VOP1, VOP2, VOP3A and VOPC.
"""

import math
import struct
from collections.abc import Callable
from fractions import Fraction

from tests.gfx942.oracles.case import Case, cases
from tests.gfx942.oracles.integer import clamped
from tests.gfx942.oracles.values import F16, F32, F64, rounded

FORMATS = {"f16": F16, "f32": F32, "f64": F64}


def _sign(x: float) -> float:
    return math.copysign(1.0, x)


def added(a: float, b: float, kind: str) -> float:
    """a + b, rounded once; an exact zero of two signs is +0."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    total = Fraction(a) + Fraction(b)
    if total == 0:
        return -0.0 if _sign(a) < 0 and _sign(b) < 0 else 0.0
    return rounded(total, FORMATS[kind])


def multiplied(a: float, b: float, kind: str) -> float:
    """a * b, rounded once."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    product = Fraction(a) * Fraction(b)
    return math.copysign(rounded(abs(product), FORMATS[kind]), _sign(a) * _sign(b))


def fused(a: float, b: float, c: float, kind: str) -> float:
    """a * b + c, rounded once."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c if not math.isnan(a * b) else math.nan
    if not math.isfinite(c):
        return c
    product = Fraction(a) * Fraction(b)
    total = product + Fraction(c)
    if total == 0:
        negative = _sign(a) * _sign(b) < 0 and _sign(c) < 0
        return -0.0 if negative else 0.0
    return math.copysign(rounded(abs(total), FORMATS[kind]), 1 if total > 0 else -1)


def smaller(a: float, b: float) -> float:
    """V_MIN: a number before a NaN, -0 below +0."""
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    if a == b:
        return a if _sign(a) < 0 else b
    return min(a, b)


def larger(a: float, b: float) -> float:
    """V_MAX: the other way round."""
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    if a == b:
        return b if _sign(a) < 0 else a
    return max(a, b)


def median(a: float, b: float, c: float) -> float:
    """V_MED3: "if any is NaN, the smallest of the three; else the middle one"."""
    if any(map(math.isnan, (a, b, c))):
        return smaller(smaller(a, b), c)
    return sorted((a, b, c), key=lambda x: (x, _sign(x)))[1]


def nearest_integer(a: float) -> float:
    """V_RNDNE: to the nearest integer, halves to even."""
    return math.copysign(float(round(Fraction(a))), a) if math.isfinite(a) else a


def integral(function: Callable[[float], int]) -> Callable[[float], float]:
    """Return V_TRUNC, V_FLOOR or V_CEIL: the sign of a zero stays."""
    return lambda a: math.copysign(float(function(a)), a) if math.isfinite(a) else a


def floored(a: float) -> float:
    """V_FLOOR."""
    if not math.isfinite(a) or a == 0:
        return a
    return float(math.floor(a))


def scaled(a: float, exponent: int, kind: str) -> float:
    """V_LDEXP: a * 2^exponent, rounded once."""
    if not math.isfinite(a) or a == 0:
        return a
    value = Fraction(a) * Fraction(2) ** clamped(exponent, -3000, 3000)
    return math.copysign(rounded(abs(value), FORMATS[kind]), a)


def to_integer(low: int, high: int) -> Callable[[float], int]:
    """V_CVT_*: toward zero, saturating, NaN to 0."""

    def convert(a: float) -> int:
        if math.isnan(a):
            return 0
        return (
            clamped(int(Fraction(a)), low, high) if math.isfinite(a) else (high if a > 0 else low)
        )

    return convert


def class_bit(a: float, kind: str, signalling: bool) -> int:
    """V_CMP_CLASS: 0 signalling NaN, 1 quiet NaN, 2 -inf, 3 -normal, 4 -denormal, 5 -0, 6 +0,
    7 +denormal, 8 +normal, 9 +inf."""
    if math.isnan(a):
        return 0 if signalling else 1
    negative = _sign(a) < 0
    if math.isinf(a):
        return 2 if negative else 9
    if a == 0:
        return 5 if negative else 6
    if abs(a) < 2.0 ** FORMATS[kind][1]:
        return 4 if negative else 7
    return 3 if negative else 8


def _tiny(byte: int, mantissa_bits: int, bias: int) -> float:
    """An 8-bit float of the FNUZ kind: 0x80 is the only NaN, there is no -0 and no infinity."""
    if byte == 0x80:
        return math.nan
    exponent, mantissa = (byte & 0x7F) >> mantissa_bits, byte & ((1 << mantissa_bits) - 1)
    if exponent:
        value = (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
    else:
        value = mantissa / 2**mantissa_bits * 2.0 ** (1 - bias)
    return -value if byte & 0x80 else value


FP8 = [_tiny(byte, 3, 8) for byte in range(256)]
BF8 = [_tiny(byte, 2, 16) for byte in range(256)]


def to_tiny(a: float, table: list[float]) -> int:
    """The nearest byte of the table, ties to the even byte; beyond half a step past it, NaN."""
    if not math.isfinite(a):
        return 0x80
    magnitude = Fraction(abs(a))
    steps = [Fraction(table[code]) for code in range(128)]
    step_past_end = steps[127] + (steps[127] - steps[126])
    steps.append(step_past_end)
    code = min(range(129), key=lambda k: (abs(steps[k] - magnitude), k % 2))
    if code == 128:
        return 0x80
    return code | 0x80 if a < 0 and code else code


def _flushed(a: float) -> float:
    return math.copysign(0.0, a) if abs(a) < 2.0**-126 else a


def approximated(function: Callable[[float], float]) -> Callable[[float], float]:
    """V_RCP_F32 and its like: "1 ULP accuracy, denormals are flushed"."""

    def compute(a: float) -> float:
        if math.isnan(a):
            return a
        result = _overflowing(function(_flushed(a)))
        return _flushed(struct.unpack("<f", struct.pack("<f", result))[0])

    return compute


def approximated_half(function: Callable[[float], float]) -> Callable[[float], float]:
    """V_RCP_F16 and its like: denormals are kept."""
    return lambda a: added(function(a), -0.0, "f16") if not math.isnan(a) else a


def or_nan(function: Callable[[float], float]) -> Callable[[float], float]:
    """A NaN goes through."""
    return lambda a: a if math.isnan(a) else function(a)


def fraction_of(a: float) -> float:
    """V_FRACT_F32: a - floor(a), below 1 (as LLVM folds it) even where that rounds to 1."""
    if not math.isfinite(a):
        return math.nan
    return min(rounded(Fraction(a) - math.floor(a), F32), 1 - 2.0**-24)


def _quarter(turns: float) -> float:
    """Turns as an angle with the same sine, from -1/4 to 1/4 turns."""
    rest = math.remainder(turns, 1.0)
    return math.copysign(0.5, rest) - rest if abs(rest) > 0.25 else rest


def sine(turns: float) -> float:
    """V_SIN_F32: of a number of turns, up to 256; beyond, 0."""
    if not math.isfinite(turns):
        return math.nan
    return math.sin(math.tau * _quarter(turns)) if abs(turns) <= 256 else math.copysign(0.0, turns)


def cosine(turns: float) -> float:
    """V_COS_F32: likewise; beyond, 1."""
    if not math.isfinite(turns):
        return math.nan
    return sine(0.25 - abs(math.remainder(turns, 1.0))) if abs(turns) <= 256 else 1.0


def to_tiny_with_noise(a: float, noise: int, table: list[float]) -> int:
    """V_CVT_SR: the byte below, or the one above if the rest and the noise make a whole step."""
    if not math.isfinite(a):
        return 0x80
    magnitude = Fraction(abs(a))
    steps = [Fraction(table[code]) for code in range(128)]
    steps += [2 * steps[127] - steps[126], 2 * steps[127]]
    if magnitude >= steps[128]:
        return 0x80
    code = max(k for k in range(129) if steps[k] <= magnitude)
    part = (magnitude - steps[code]) / (steps[code + 1] - steps[code])
    code += part + Fraction(noise, 1 << 32) >= 1
    if code >= 128:
        return 0x80
    return code | 0x80 if a < 0 and code else code


def _overflowing(x: float) -> float:
    return math.copysign(math.inf, x) if abs(x) > 3.4028235677973366e38 else x


def reciprocal(a: float) -> float:
    """1 / a."""
    return math.copysign(math.inf, a) if a == 0 else 1.0 / a


def root(a: float) -> float:
    """The square root; of a negative number NaN, of -0 itself."""
    return math.nan if a < 0 else math.sqrt(a)


def reciprocal_root(a: float) -> float:
    """1 / root(a)."""
    return reciprocal(root(a)) if not math.isnan(root(a)) else math.nan


def power(a: float) -> float:
    """2^a."""
    return 2.0 ** clamped(a, -1000, 1000) if math.isfinite(a) else (math.inf if a > 0 else 0.0)


def logarithm(a: float) -> float:
    """log2(a)."""
    if a == 0:
        return -math.inf
    return math.nan if a < 0 else math.log2(a)


def _float_bits(kind: str) -> list[Case]:
    """The instructions that f16, f32 and f64 share."""
    two, three = f"{kind} {kind}", f"{kind} {kind} {kind}"
    shared = {
        "add": (two, kind, lambda a, b: added(a, b, kind)),
        "mul": (two, kind, lambda a, b: multiplied(a, b, kind)),
        "fma": (three, kind, lambda a, b, c: fused(a, b, c, kind)),
    }
    if kind != "f64":
        shared["sub"] = (two, kind, lambda a, b: added(a, -b, kind))
        shared["subrev"] = (two, kind, lambda a, b: added(b, -a, kind))
        shared["min"] = (two, kind, smaller)
        shared["max"] = (two, kind, larger)
    if kind != "f16":
        shared["trunc"] = (kind, kind, integral(math.trunc))
        shared["ceil"] = (kind, kind, integral(math.ceil))
        shared["floor"] = (kind, kind, floored)
        shared["rndne"] = (kind, kind, nearest_integer)
        shared["ldexp"] = (f"{kind} s32", kind, lambda a, e: scaled(a, e, kind))
    return cases({f"v_{name}_{kind}": row for name, row in shared.items()})


CASES: list[Case] = [case for kind in FORMATS for case in _float_bits(kind)]
CASES = [case for case in CASES if case.mnemonic != "v_fma_f16"]
CASES += cases(
    {
        "v_min3_f32": ("f32 f32 f32", "f32", lambda a, b, c: smaller(smaller(a, b), c)),
        "v_max3_f32": ("f32 f32 f32", "f32", lambda a, b, c: larger(larger(a, b), c)),
        "v_med3_f32": ("f32 f32 f32", "f32", median),
        "v_mul_legacy_f32": (
            "f32 f32",
            "f32",
            lambda a, b: 0.0 if a == 0 or b == 0 else multiplied(a, b, "f32"),
        ),
        "v_frexp_mant_f32": ("f32", "f32", lambda a: math.frexp(a)[0] if math.isfinite(a) else a),
        "v_frexp_exp_i32_f32": (
            "f32",
            "s32",
            lambda a: math.frexp(a)[1] if math.isfinite(a) else 0,
        ),
        "v_cvt_f32_i32": ("s32", "f32", lambda a: rounded(Fraction(a), F32)),
        "v_cvt_f32_u32": ("u32", "f32", lambda a: rounded(Fraction(a), F32)),
        "v_cvt_i32_f32": ("f32", "s32", to_integer(-(1 << 31), (1 << 31) - 1)),
        "v_cvt_u32_f32": ("f32", "u32", to_integer(0, (1 << 32) - 1)),
        "v_cvt_flr_i32_f32": (
            "f32",
            "s32",
            lambda a: to_integer(-(1 << 31), (1 << 31) - 1)(floored(a)),
        ),
        "v_cvt_f64_i32": ("s32", "f64", float),
        "v_cvt_f64_u32": ("u32", "f64", float),
        "v_cvt_i32_f64": ("f64", "s32", to_integer(-(1 << 31), (1 << 31) - 1)),
        "v_cvt_u32_f64": ("f64", "u32", to_integer(0, (1 << 32) - 1)),
        "v_cvt_f64_f32": ("f32", "f64", lambda a: a),
        "v_cvt_f32_f64": ("f64", "f32", lambda a: added(a, -0.0, "f32")),
        "v_cvt_f32_f16": ("f16", "f32", lambda a: a),
        "v_cvt_f16_f32": ("f32", "f16", lambda a: added(a, -0.0, "f16")),
        "v_cvt_f16_u16": ("u16", "f16", lambda a: rounded(Fraction(a), F16)),
        "v_cvt_f16_i16": ("s16", "f16", lambda a: rounded(Fraction(a), F16)),
        "v_cvt_u16_f16": ("f16", "u16", to_integer(0, (1 << 16) - 1)),
        "v_cvt_i16_f16": ("f16", "s16", to_integer(-(1 << 15), (1 << 15) - 1)),
        "v_cvt_pk_u16_u32": (
            "u32 u32",
            "u16x2",
            lambda a, b: (clamped(a, 0, 65535), clamped(b, 0, 65535)),
        ),
        "v_cvt_pk_i16_i32": (
            "s32 s32",
            "s16x2",
            lambda a, b: (clamped(a, -32768, 32767), clamped(b, -32768, 32767)),
        ),
        "v_cvt_pkrtz_f16_f32": (
            "f32 f32",
            "f16x2",
            lambda a, b: (_toward_zero(a), _toward_zero(b)),
        ),
        "v_cvt_f32_fp8": ("u32", "f32", lambda a: FP8[a & 0xFF]),
        "v_cvt_f32_bf8": ("u32", "f32", lambda a: BF8[a & 0xFF]),
        "v_cvt_pk_f32_fp8": ("u32", "f32x2", lambda a: (FP8[a & 0xFF], FP8[a >> 8 & 0xFF])),
        "v_cvt_pk_f32_bf8": ("u32", "f32x2", lambda a: (BF8[a & 0xFF], BF8[a >> 8 & 0xFF])),
        **{
            f"v_cvt_f32_ubyte{k}": ("u32", "f32", lambda a, k=k: float(a >> 8 * k & 0xFF))
            for k in range(4)
        },
    }
)


def _toward_zero(a: float) -> float:
    if not math.isfinite(a):
        return a
    return math.copysign(rounded(abs(Fraction(a)), F16, down=True), a)


CASES += cases(
    {"v_fmac_f32": ("f32 f32 f32", "f32", lambda a, b, old: fused(a, b, old, "f32"))}
    | {"v_fmac_f64": ("f64 f64 f64", "f64", lambda a, b, old: fused(a, b, old, "f64"))},
    old=True,
)
K = 0x41280000  # 10.5
CASES += [
    Case(
        "v_fmamk_f32",
        ("f32", "f32"),
        "f32",
        lambda a, c: fused(a, 10.5, c, "f32"),
        written=f"v_fmamk_f32 v20, v10, {K:#x}, v12",
    ),
    Case(
        "v_fmaak_f32",
        ("f32", "f32"),
        "f32",
        lambda a, b: fused(a, b, 10.5, "f32"),
        written=f"v_fmaak_f32 v20, v10, v12, {K:#x}",
    ),
]


def _half_bits(value: float) -> int:
    return struct.unpack("<H", struct.pack("<e", value))[0]


# V_FMA_F16 keeps the upper half of its destination, so the whole word is compared; NaNs are left
# out by taking numbers that make none.
CASES += [
    Case(
        "v_fma_f16",
        ("u32", "u32", "u32", "u32"),
        "u32",
        lambda a, b, c, old: (
            _half_bits(fused(_half(a), _half(b), _half(c), "f16")) | old & 0xFFFF0000
        ),
        old=True,
        written="v_fma_f16 v20, v10, v12, v14",
        limits={0: 0x7000, 1: 0x5000, 2: 0x7000},
    )
]


def _half(word: int) -> float:
    return struct.unpack("<e", struct.pack("<H", word & 0xFFFF))[0]


CASES += cases(
    {
        "v_cvt_pk_fp8_f32": (
            "f32 f32 u32",
            "u32",
            lambda a, b, old: to_tiny(a, FP8) | to_tiny(b, FP8) << 8 | old & 0xFFFF0000,
        ),
        "v_cvt_pk_bf8_f32": (
            "f32 f32 u32",
            "u32",
            lambda a, b, old: to_tiny(a, BF8) | to_tiny(b, BF8) << 8 | old & 0xFFFF0000,
        ),
    },
    old=True,
)
CASES += cases(
    {
        "v_rcp_f32": ("f32", "f32", approximated(reciprocal)),
        "v_rcp_iflag_f32": ("f32", "f32", approximated(reciprocal)),
        "v_rsq_f32": ("f32", "f32", approximated(reciprocal_root)),
        "v_sqrt_f32": ("f32", "f32", approximated(root)),
        "v_exp_f32": ("f32", "f32", approximated(power)),
        "v_log_f32": ("f32", "f32", approximated(logarithm)),
    },
    ulp=1,
)

CASES += cases(
    {
        "v_fract_f32": ("f32", "f32", fraction_of),
        "v_cvt_rpi_i32_f32": (
            "f32",
            "s32",
            lambda a: to_integer(-(1 << 31), (1 << 31) - 1)(
                float(math.floor(Fraction(a) + Fraction(1, 2))) if math.isfinite(a) else a
            ),
        ),
    }
)
CASES += cases(
    {
        "v_rcp_f16": ("f16", "f16", approximated_half(reciprocal)),
        "v_rsq_f16": ("f16", "f16", approximated_half(reciprocal_root)),
        "v_sqrt_f16": ("f16", "f16", approximated_half(root)),
        "v_exp_f16": ("f16", "f16", approximated_half(power)),
        "v_log_f16": ("f16", "f16", approximated_half(logarithm)),
        "v_rcp_f64": ("f64", "f64", or_nan(reciprocal)),
        "v_rsq_f64": ("f64", "f64", or_nan(reciprocal_root)),
        "v_sqrt_f64": ("f64", "f64", or_nan(root)),
        "v_sin_f32": ("f32", "f32", approximated(sine)),
        "v_cos_f32": ("f32", "f32", approximated(cosine)),
    },
    ulp=1,
)
CASES += [
    Case(
        f"v_cvt_sr_{name}_f32",
        ("f32", "u32", "u32"),
        "u32",
        lambda a, noise, old, t=table: to_tiny_with_noise(a, noise, t) | old & 0xFFFFFF00,
        old=True,
    )
    for name, table in (("fp8", FP8), ("bf8", BF8))
]

_COMPARES: dict[str, Callable[[float, float], bool]] = {
    "f": lambda a, b: False,
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "lg": lambda a, b: a < b or a > b,
    "ge": lambda a, b: a >= b,
    "o": lambda a, b: not (math.isnan(a) or math.isnan(b)),
    "u": lambda a, b: math.isnan(a) or math.isnan(b),
    "nge": lambda a, b: not a >= b,
    "nlg": lambda a, b: not (a < b or a > b),
    "ngt": lambda a, b: not a > b,
    "nle": lambda a, b: not a <= b,
    "neq": lambda a, b: a != b,
    "nlt": lambda a, b: not a < b,
    "tru": lambda a, b: True,
}
CASES += [
    Case(f"v_{prefix}_{name}_{kind}", (kind, kind), "mask", function)
    for prefix in ("cmp", "cmpx")
    for kind in FORMATS
    for name, function in _COMPARES.items()
]


def _in_class(kind: str, quiet_bit: int, format_code: str) -> Callable[[int, int], bool]:
    """Of a number's bits and the mask."""

    def test(bits: int, mask: int) -> bool:
        size = "<Q" if kind == "f64" else "<I"
        value = struct.unpack(format_code, struct.pack(size, bits))[0]
        return bool(mask >> class_bit(value, kind, not bits >> quiet_bit & 1) & 1)

    return test


CASES += [
    Case(f"v_{prefix}_class_{kind}", (bits, "u32"), "mask", _in_class(kind, quiet, code))
    for prefix in ("cmp", "cmpx")
    for kind, bits, quiet, code in (("f32", "u32", 22, "<f"), ("f64", "u64", 51, "<d"))
]
