"""One operand's text as the fields of an operand record (``core/instruction.h``).

How a constant is widened depends on the type that the instruction gives the operand: ``1.0`` is
0x3f800000 for a 32-bit operand and 0x3c00 for an f16. ISA guide, chapter 5.2 and 6.2 (operands).
"""

import re
import struct
from dataclasses import dataclass, field

VECTOR, SCALAR, CONSTANT, CONDITION = 1, 2, 3, 4
"""Values of OperandKind; ABSENT is 0."""

PLAIN, HALVES, PAIRS, MIXED, LANE_BITS = range(5)
"""Values of Shape."""

WHOLE_REGISTER = 6
"""The value of Part for all 32 bits."""

FIRST_ACCUMULATOR = 256
VCC, M0, EXEC = 106, 124, 126

SHARED_APERTURE, PRIVATE_APERTURE = 0x00010000 << 32, 0x00020000 << 32
"""Where flat addresses mean LDS and scratch, as in ``core/instruction.h``."""

PARTS = {f"BYTE_{k}": k for k in range(4)} | {"WORD_0": 4, "WORD_1": 5, "DWORD": 6}

_NAMED = {"vcc": VCC, "vcc_lo": VCC, "vcc_hi": VCC + 1, "m0": M0, "exec": EXEC, "exec_lo": EXEC}
_NAMED |= {"exec_hi": EXEC + 1, "flat_scratch": 102, "flat_scratch_lo": 102, "flat_scratch_hi": 103}
_CONDITIONS = {"src_vccz": 0, "src_execz": 1, "src_scc": 2, "vccz": 0, "execz": 1, "scc": 2}
_APERTURES = {"src_shared_base": SHARED_APERTURE, "src_private_base": PRIVATE_APERTURE}
_REGISTER = re.compile(r"^(?:([vas])(\d+)|([vas])\[(\d+):(\d+)\]|ttmp(\d+))$")
_FLOAT = re.compile(r"^-?\d+\.\d+(?:e[-+]?\d+)?$")
_INTEGER = re.compile(r"^-?(?:0x[0-9a-f]+|\d+)$")

WORDS = {"u64": 2, "s64": 2, "f64": 2, "f32x2": 2, "u32x2": 2}
"""Registers of the types that take more than one."""

SIGN_MASKS = {
    "f32": (0x80000000, 0),
    "f16": (0x8000, 0),
    "f64": (0, 0x80000000),
    "mix": (0x80000000, 0),
}
"""Where the sign stands in each word of a type that has one. Packed types have two signs."""


class NotUnderstood(Exception):
    """The text cannot be executed; the message says why. Raised when such an instruction runs."""


@dataclass
class Operand:
    """The fields of an operand record, with the values of a register read plainly."""

    kind: int
    index: int = 0
    words: int = 1
    value: int = 0
    shape: int = PLAIN
    select: int = 2
    part: int = WHOLE_REGISTER
    sign_extend: int = 0
    modified: int = 0
    keep: list[int] = field(default_factory=lambda: [0xFFFFFFFF, 0xFFFFFFFF])
    flip: list[int] = field(default_factory=lambda: [0, 0])

    def fill(self, record) -> None:
        """Write the fields into a record of the interpreter."""
        record["kind"], record["words"], record["index"] = self.kind, self.words, self.index
        record["shape"], record["select"], record["part"] = self.shape, self.select, self.part
        record["sign_extend"], record["modified"] = self.sign_extend, self.modified
        record["keep0"], record["keep1"] = self.keep
        record["flip0"], record["flip1"] = self.flip
        record["value"] = self.value


def register(text: str) -> Operand | None:
    """Return the operand of a register's name, or None if it is none."""
    if text in _NAMED:
        return Operand(SCALAR, _NAMED[text], 2 if text in ("vcc", "exec", "flat_scratch") else 1)
    found = _REGISTER.match(text)
    if not found:
        return None
    one, number, many, first, last, trap = found.groups()
    if trap:
        return Operand(SCALAR, 108 + int(trap))
    letter = one or many
    start = int(number if one else first)
    words = 1 if one else int(last) - start + 1
    if letter == "s":
        return Operand(SCALAR, start, words)
    return Operand(VECTOR, start + (FIRST_ACCUMULATOR if letter == "a" else 0), words)


def constant(text: str, kind: str) -> int | None:
    """Return the bits of a constant read as ``kind``, or None if the text is no constant.

    Raises:
        NotUnderstood: It is one whose meaning for this type is not certain.
    """
    if _FLOAT.match(text):
        number = float(text)
        if kind in ("f64", "u64", "s64"):
            if text in ("0.15915494", "0.15915494309189532"):
                return 0x3FC45F306DC9C882
            return struct.unpack("<Q", struct.pack("<d", number))[0]
        if kind in ("f16", "u16", "s16", "f16x2"):
            return struct.unpack("<H", struct.pack("<e", number))[0]
        if kind in ("u16x2", "s16x2"):
            raise NotUnderstood(f"float constant for a {kind}")
        return struct.unpack("<I", struct.pack("<f", number))[0]
    if not _INTEGER.match(text):
        return None
    number = int(text, 0)
    if kind == "f64" and not -16 <= number <= 64:
        return (number & 0xFFFFFFFF) << 32  # a literal is the high half
    if kind == "u64" and number > 64:
        return number & 0xFFFFFFFF
    if kind == "s64" and number > 64:
        return _signed(number & 0xFFFFFFFF, 32) & 0xFFFFFFFFFFFFFFFF
    bits = 64 if WORDS.get(kind) == 2 and kind != "f32x2" else 32
    return number & ((1 << bits) - 1)


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def source(text: str, kind: str) -> Operand:
    """Return a source operand with its own modifiers: ``-v1``, ``|v1|``, ``sext(v1)``.

    Args:
        text: As written.
        kind: The type that the instruction's signature gives it.

    Raises:
        NotUnderstood: The text or its combination with the type cannot be executed.
    """
    bare, negative, absolute, extended = _without_modifiers(text)
    found = register(bare)
    if found is None and bare in _CONDITIONS:
        found = Operand(CONDITION, _CONDITIONS[bare])
    if found is None and bare in _APERTURES:
        if WORDS.get(kind) != 2:
            raise NotUnderstood(f"{bare} as a 32-bit operand")
        found = Operand(CONSTANT, value=_APERTURES[bare])
    if found is None and (bits := constant(bare, kind)) is not None:
        found = Operand(CONSTANT, value=bits)
    if found is None:
        raise NotUnderstood(f"operand {text!r}")
    found.words = WORDS.get(kind, 1)
    found.sign_extend = int(extended)
    if kind == "bit":
        found.shape = LANE_BITS
        if found.kind == CONSTANT:
            raise NotUnderstood("a constant as a mask of lanes")
    elif kind.endswith("16x2"):
        found.shape = HALVES
    elif kind in ("f32x2", "u32x2"):
        found.shape = PAIRS
    elif kind == "mix":
        found.shape, found.select = MIXED, 0
    if negative or absolute:
        if kind not in SIGN_MASKS:
            raise NotUnderstood(f"abs or neg on a {kind}")
        for k, mask in enumerate(SIGN_MASKS[kind]):
            change_sign(found, k, mask, negative, absolute)
    return found


def change_sign(operand: Operand, word: int, mask: int, negative: bool, absolute: bool) -> None:
    """Let the bits of ``mask`` in one word be cleared (absolute), then flipped (negative)."""
    operand.modified = 1
    if absolute:
        operand.keep[word] &= ~mask
    if negative:
        operand.flip[word] ^= mask


def _without_modifiers(text: str) -> tuple[str, bool, bool, bool]:
    negative = absolute = extended = False
    if text.startswith("sext(") and text.endswith(")"):
        text, extended = text[5:-1], True
    if text.startswith("neg(") and text.endswith(")"):
        text, negative = text[4:-1], True
    elif text.startswith("-") and not text[1:2].isdigit():
        text, negative = text[1:], True
    if text.startswith("|") and text.endswith("|"):
        text, absolute = text[1:-1], True
    elif text.startswith("abs(") and text.endswith(")"):
        text, absolute = text[4:-1], True
    return text, negative, absolute, extended
