"""VOP3P: the same on both halves, or both words, of each operand.

ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapter 6.7 (packed math) and chapter
12, section VOP3P. op_sel and its like are tested in ``test_modifiers.py``."""

from collections.abc import Callable

from tests.gfx942.oracles.case import Case, cases
from tests.gfx942.oracles.floating import added, fused, larger, multiplied, smaller
from tests.gfx942.oracles.integer import clamped


def both(function: Callable) -> Callable:
    """Return the function of pairs that applies it to the low and to the high values."""
    return lambda *pairs: tuple(function(*one) for one in zip(*pairs, strict=True))


def _rows(kind: str, table: dict[str, tuple[int, Callable]]) -> dict[str, tuple]:
    return {
        name: (" ".join([kind] * count), kind, both(function))
        for name, (count, function) in table.items()
    }


_UNSIGNED: dict[str, tuple[int, Callable]] = {
    "v_pk_add_u16": (2, lambda a, b: a + b),
    "v_pk_sub_u16": (2, lambda a, b: a - b),
    "v_pk_mul_lo_u16": (2, lambda a, b: a * b),
    "v_pk_mad_u16": (3, lambda a, b, c: a * b + c),
    "v_pk_lshlrev_b16": (2, lambda n, a: a << (n & 15)),
    "v_pk_lshrrev_b16": (2, lambda n, a: a >> (n & 15)),
    "v_pk_min_u16": (2, min),
    "v_pk_max_u16": (2, max),
}
_SIGNED: dict[str, tuple[int, Callable]] = {
    "v_pk_add_i16": (2, lambda a, b: a + b),
    "v_pk_sub_i16": (2, lambda a, b: a - b),
    "v_pk_mad_i16": (3, lambda a, b, c: a * b + c),
    "v_pk_ashrrev_i16": (2, lambda n, a: a >> (n & 15)),
    "v_pk_min_i16": (2, min),
    "v_pk_max_i16": (2, max),
}
_HALF: dict[str, tuple[int, Callable]] = {
    "v_pk_add_f16": (2, lambda a, b: added(a, b, "f16")),
    "v_pk_mul_f16": (2, lambda a, b: multiplied(a, b, "f16")),
    "v_pk_fma_f16": (3, lambda a, b, c: fused(a, b, c, "f16")),
    "v_pk_min_f16": (2, smaller),
    "v_pk_max_f16": (2, larger),
}
_SINGLE: dict[str, tuple[int, Callable]] = {
    "v_pk_add_f32": (2, lambda a, b: added(a, b, "f32")),
    "v_pk_mul_f32": (2, lambda a, b: multiplied(a, b, "f32")),
    "v_pk_fma_f32": (3, lambda a, b, c: fused(a, b, c, "f32")),
}

CASES: list[Case] = cases(
    _rows("u16x2", _UNSIGNED)
    | _rows("s16x2", _SIGNED)
    | _rows("f16x2", _HALF)
    | _rows("f32x2", _SINGLE)
)
CASES += cases(
    _rows(
        "u16x2",
        {
            "v_pk_add_u16 clamp": (2, lambda a, b: clamped(a + b, 0, 65535)),
            "v_pk_sub_u16 clamp": (2, lambda a, b: clamped(a - b, 0, 65535)),
        },
    )
    | _rows(
        "s16x2",
        {
            "v_pk_add_i16 clamp": (2, lambda a, b: clamped(a + b, -32768, 32767)),
            "v_pk_sub_i16 clamp": (2, lambda a, b: clamped(a - b, -32768, 32767)),
        },
    ),
    suffix=" clamp",
)
# Without op_sel it takes the low word of both sources.
CASES += cases({"v_pk_mov_b32": ("u32x2 u32x2", "u32x2", lambda a, b: (a[0], b[0]))})
