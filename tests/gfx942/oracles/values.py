"""Register words as numbers and back, and inputs that reach the corners of each type."""

import math
import random
import struct
from fractions import Fraction

import numpy as np

NUM_WORDS = {"u64": 2, "s64": 2, "f64": 2, "f32x2": 2, "u32x2": 2}

F16 = (10, -14, 15)
F32 = (23, -126, 127)
F64 = (52, -1022, 1023)
"""Mantissa bits, exponent of the smallest normal number, exponent of the largest."""


def rounded(value: Fraction, kind: tuple[int, int, int], down: bool = False) -> float:
    """Return the nearest number of a format, ties to even; or toward zero.

    A result of zero is +0: the caller knows the sign of an exact zero.
    """
    mantissa_bits, lowest, highest = kind
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    exponent = max(exponent, lowest)
    unit = Fraction(2) ** (exponent - mantissa_bits)
    units = math.floor(magnitude / unit) if down else round(magnitude / unit)
    result = units * unit
    limit = Fraction(2) ** (highest + 1)
    if result >= limit:
        largest = limit - Fraction(2) ** (highest - mantissa_bits)
        result_float = float(largest) if down else math.inf
    else:
        result_float = float(result)  # exact: f64 holds every format
    return -result_float if value < 0 else result_float


def number(kind: str, words: list[int]):
    """Return the value that words have as a type; pairs as tuples, low half first."""
    word = words[0]
    if kind.endswith("x2"):
        single = kind[:-2]
        if NUM_WORDS.get(kind) == 2:
            return number(single, words[:1]), number(single, words[1:])
        return number(single, [word & 0xFFFF]), number(single, [word >> 16])
    bits = int(kind[1:])
    raw = (word | words[1] << 32) if bits == 64 else word & ((1 << bits) - 1)
    if kind[0] == "u":
        return raw
    if kind[0] == "s":
        return raw - (1 << bits) if raw >> (bits - 1) else raw
    integer, real = {16: ("<H", "<e"), 32: ("<I", "<f"), 64: ("<Q", "<d")}[bits]
    return struct.unpack(real, struct.pack(integer, raw))[0]


def words(kind: str, value) -> list[int]:
    """Return the register words of a value: the inverse of ``number``."""
    if kind.endswith("x2"):
        low, high = (words(kind[:-2], one)[0] for one in value)
        return [low, high] if NUM_WORDS.get(kind) == 2 else [low | high << 16]
    bits = int(kind[1:])
    if kind[0] == "f":
        integer, real = {16: ("<H", "<e"), 32: ("<I", "<f"), 64: ("<Q", "<d")}[bits]
        if bits == 32 and not math.isnan(value) and abs(value) > 3.4028235677973366e38:
            value = math.copysign(math.inf, value)
        raw = struct.unpack(integer, struct.pack(real, value))[0]
    else:
        raw = int(value) & ((1 << bits) - 1)
    return [raw & 0xFFFFFFFF, raw >> 32] if bits == 64 else [raw]


_CORNERS = {
    "u16": [0, 1, 2, 15, 16, 0x7FFF, 0x8000, 0xFFFF],
    "f16": [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0x7C00, 0xFC00, 0x7E01],
    "u32": [0, 1, 2, 31, 32, 33, 63, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 0x80, 0xFF00],
    "f32": [
        0,
        0x80000000,
        1,
        0x80000001,
        0x007FFFFF,
        0x00800000,
        0x3F800000,
        0xBF800000,
        0x3F000000,
        0x4F000000,
        0xCF000000,
        0x4F800000,
        0x7F7FFFFF,
        0xFF7FFFFF,
        0x7F800000,
        0xFF800000,
        0x7FC00001,
        0x40490FDB,
        0x33800000,
        0x4B800001,
    ],
    "f64": [
        0,
        1 << 63,
        1,
        0x3FF << 52,
        0xBFF << 52,
        0x7FF << 52,
        0xFFF << 52,
        0x7FF8 << 48,
        1 << 52,
        0x41E << 52,
        0xC1E << 52,
        0x47F << 52,
        0x36A << 52,
    ],
    "u64": [0, 1, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1],
}


def sample(kind: str, rng: random.Random) -> list[int]:
    """Return words of a type: corners often, small numbers often, else any bits."""
    if kind.endswith("x2"):
        low, high = sample(kind[:-2], rng)[0], sample(kind[:-2], rng)[0]
        return [low, high] if NUM_WORDS.get(kind) == 2 else [low & 0xFFFF | (high & 0xFFFF) << 16]
    bits = int(kind[1:])
    corners = _CORNERS[kind if kind[0] == "f" else f"u{bits}"]
    choice = rng.random()
    if choice < 0.3:
        raw = rng.choice(corners)
    elif choice < 0.5 and kind[0] == "f":
        span = rng.choice([1.0, 8.0, 1000.0])
        return words(kind, float(np.float16(rng.uniform(-span, span))))
    elif choice < 0.5:
        raw = rng.randrange(64) * rng.choice([1, -1])
    else:
        raw = rng.getrandbits(bits)
    raw &= (1 << bits) - 1
    if bits == 64:
        return [raw & 0xFFFFFFFF, raw >> 32]
    # The rest of a word that holds 16 bits must not matter.
    return [raw | rng.getrandbits(16) << 16 if bits == 16 else raw]


def same(kind: str, expected: list[int], found: list[int], ulp: int = 0) -> bool:
    """Return whether two results are equal; NaNs are, whatever their bits."""
    if kind.startswith("f"):
        e, f = number(kind, expected), number(kind, found)
        pairs = zip(e, f, strict=True) if isinstance(e, tuple) else [(e, f)]
        if any(math.isnan(x) or math.isnan(y) for x, y in pairs):
            return repr(e) == repr(f)
        if ulp:
            pairs = zip(expected, found, strict=True)
            distance = sum((a - b) << 32 * k for k, (a, b) in enumerate(pairs))
            return abs(distance) <= ulp
    return expected == found
