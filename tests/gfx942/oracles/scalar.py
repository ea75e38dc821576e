"""Instructions of the scalar unit, from the ISA guide's words in Python integers.

ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapter 5 (which instructions write
SCC, and what it means) and chapter 12 (Instructions), sections SOP1, SOP2, SOPC and SOPK.

An oracle that has ``scc`` "out" or "inout" returns (result, scc); one without leaves SCC alone.
"""

from collections.abc import Callable

from tests.gfx942.oracles.case import Case, cases
from tests.gfx942.oracles.integer import M32, signed

FULL = {32: M32, 64: (1 << 64) - 1}


def nonzero(function: Callable[..., int], bits: int) -> Callable[..., tuple[int, bool]]:
    """SCC says whether the result is not zero."""

    def with_scc(*sources: int) -> tuple[int, bool]:
        result = function(*sources) & FULL[bits]
        return result, result != 0

    return with_scc


def overflowing(total: int) -> tuple[int, bool]:
    """SCC says that a signed sum does not fit."""
    return total, not -(1 << 31) <= total < 1 << 31


def field(a: int, control: int, bits: int, is_signed: bool) -> int:
    """S_BFE: offset in the low 5 (or 6) bits of the control, width in bits 16 to 22."""
    offset, width = control & (bits - 1), min(control >> 16 & 0x7F, bits)
    value = a >> offset & ((1 << width) - 1)
    return signed(value, width) if is_signed and width else value


def zeros_above(a: int, bits: int) -> int:
    """S_FLBIT_I32: zeros before the first one, or -1."""
    return bits - a.bit_length() if a else -1


def first_one(a: int) -> int:
    """S_FF1: the lowest one, or -1."""
    return (a & -a).bit_length() - 1


def sign_bits(a: int, bits: int) -> int:
    """S_FLBIT_I32 of a signed number: the first bit from the top that differs from the sign."""
    text = f"{a & FULL[bits]:0{bits}b}"
    return text.find("1" if text[0] == "0" else "0")


TWO, THREE = "u32 u32", "u32 u32 u32"

CASES: list[Case] = cases(
    {
        "s_mov_b32": ("u32", "u32", lambda a: a),
        "s_mov_b64": ("u64", "u64", lambda a: a),
        "s_sext_i32_i8": ("u32", "u32", lambda a: signed(a, 8)),
        "s_sext_i32_i16": ("u32", "u32", lambda a: signed(a, 16)),
        "s_pack_ll_b32_b16": (TWO, "u32", lambda a, b: a & 0xFFFF | b << 16),
        "s_pack_lh_b32_b16": (TWO, "u32", lambda a, b: a & 0xFFFF | b >> 16 << 16),
        "s_pack_hh_b32_b16": (TWO, "u32", lambda a, b: a >> 16 | b >> 16 << 16),
        "s_mul_i32": (TWO, "u32", lambda a, b: a * b),
        "s_mul_hi_u32": (TWO, "u32", lambda a, b: a * b >> 32),
        "s_mul_hi_i32": ("s32 s32", "u32", lambda a, b: a * b >> 32),
        "s_bfm_b32": (TWO, "u32", lambda w, n: ((1 << (w & 31)) - 1) << (n & 31)),
        "s_bfm_b64": (TWO, "u64", lambda w, n: ((1 << (w & 63)) - 1) << (n & 63)),
        "s_brev_b32": ("u32", "u32", lambda a: int(f"{a:032b}"[::-1], 2)),
        "s_brev_b64": ("u64", "u64", lambda a: int(f"{a:064b}"[::-1], 2)),
        "s_ff1_i32_b32": ("u32", "u32", first_one),
        "s_ff1_i32_b64": ("u64", "u32", first_one),
        "s_ff0_i32_b32": ("u32", "u32", lambda a: first_one(~a & M32)),
        "s_ff0_i32_b64": ("u64", "u32", lambda a: first_one(~a & FULL[64])),
        "s_flbit_i32_b32": ("u32", "u32", lambda a: zeros_above(a, 32)),
        "s_flbit_i32_b64": ("u64", "u32", lambda a: zeros_above(a, 64)),
        "s_flbit_i32": ("u32", "u32", lambda a: sign_bits(a, 32)),
        "s_flbit_i32_i64": ("u64", "u32", lambda a: sign_bits(a, 64)),
    }
)
CASES += cases(
    {
        "s_cselect_b32": (TWO, "u32", lambda a, b, scc: a if scc else b),
        "s_cselect_b64": ("u64 u64", "u64", lambda a, b, scc: a if scc else b),
    },
    scc="in",
)
CASES += cases(
    {
        "s_cmov_b32": (TWO, "u32", lambda a, old, scc: a if scc else old),
        "s_cmov_b64": ("u64 u64", "u64", lambda a, old, scc: a if scc else old),
    },
    scc="in",
    old=True,
)
CASES += cases(
    {
        "s_add_u32": (TWO, "u32", lambda a, b: (a + b, a + b > M32)),
        "s_sub_u32": (TWO, "u32", lambda a, b: (a - b, b > a)),
        "s_add_i32": ("s32 s32", "u32", lambda a, b: overflowing(a + b)),
        "s_sub_i32": ("s32 s32", "u32", lambda a, b: overflowing(a - b)),
        "s_min_u32": (TWO, "u32", lambda a, b: (min(a, b), a < b)),
        "s_max_u32": (TWO, "u32", lambda a, b: (max(a, b), a > b)),
        "s_min_i32": ("s32 s32", "u32", lambda a, b: (min(a, b), a < b)),
        "s_max_i32": ("s32 s32", "u32", lambda a, b: (max(a, b), a > b)),
        "s_abs_i32": ("s32", "u32", nonzero(abs, 32)),
        "s_absdiff_i32": ("s32 s32", "u32", nonzero(lambda a, b: abs(a - b), 32)),
        **{
            f"s_lshl{n}_add_u32": (TWO, "u32", lambda a, b, n=n: ((a << n) + b, (a << n) + b > M32))
            for n in (1, 2, 3, 4)
        },
    },
    scc="out",
)
CASES += cases(
    {
        "s_addc_u32": (TWO, "u32", lambda a, b, scc: (a + b + scc, a + b + scc > M32)),
        "s_subb_u32": (TWO, "u32", lambda a, b, scc: (a - b - scc, b + scc > a)),
    },
    scc="inout",
)

_LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
for _bits in (32, 64):
    _u, _s = f"u{_bits}", f"s{_bits}"
    CASES += cases(
        {
            **{
                f"s_{name}_b{_bits}": (f"{_u} {_u}", _u, nonzero(function, _bits))
                for name, function in _LOGIC.items()
            },
            f"s_not_b{_bits}": (_u, _u, nonzero(lambda a: ~a, _bits)),
            f"s_lshl_b{_bits}": (
                f"{_u} u32",
                _u,
                nonzero(lambda a, n, b=_bits: a << (n & (b - 1)), _bits),
            ),
            f"s_lshr_b{_bits}": (
                f"{_u} u32",
                _u,
                nonzero(lambda a, n, b=_bits: a >> (n & (b - 1)), _bits),
            ),
            f"s_ashr_i{_bits}": (
                f"{_s} u32",
                _u,
                nonzero(lambda a, n, b=_bits: a >> (n & (b - 1)), _bits),
            ),
            f"s_bfe_u{_bits}": (
                f"{_u} u32",
                _u,
                nonzero(lambda a, c, b=_bits: field(a, c, b, False), _bits),
            ),
            f"s_bfe_i{_bits}": (
                f"{_s} u32",
                _u,
                nonzero(lambda a, c, b=_bits: field(a, c, b, True), _bits),
            ),
            f"s_bcnt0_i32_b{_bits}": (
                _u,
                "u32",
                nonzero(lambda a, b=_bits: b - f"{a:b}".count("1"), 32),
            ),
            f"s_bcnt1_i32_b{_bits}": (_u, "u32", nonzero(lambda a: f"{a:b}".count("1"), 32)),
        },
        scc="out",
    )
    CASES += cases(
        {
            f"s_bitcmp0_b{_bits}": (
                f"{_u} u32",
                "",
                lambda a, n, b=_bits: (None, not a >> (n & (b - 1)) & 1),
            ),
            f"s_bitcmp1_b{_bits}": (
                f"{_u} u32",
                "",
                lambda a, n, b=_bits: (None, a >> (n & (b - 1)) & 1),
            ),
        },
        scc="out",
    )
    CASES += cases(
        {
            f"s_bitset0_b{_bits}": (
                f"u32 {_u}",
                _u,
                lambda n, old, b=_bits: old & ~(1 << (n & (b - 1))),
            ),
            f"s_bitset1_b{_bits}": (
                f"u32 {_u}",
                _u,
                lambda n, old, b=_bits: old | 1 << (n & (b - 1)),
            ),
        },
        old=True,
    )

_COMPARES: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
CASES += [
    Case(
        f"s_cmp_{name}_{kind}",
        (source, source),
        "",
        lambda a, b, f=function: (None, f(a, b)),
        scc="out",
    )
    for kind, source in (("u32", "u32"), ("i32", "s32"))
    for name, function in _COMPARES.items()
]
CASES += [
    Case(
        f"s_cmp_{name}_u64",
        ("u64", "u64"),
        "",
        lambda a, b, f=_COMPARES[name]: (None, f(a, b)),
        scc="out",
    )
    for name in ("eq", "lg")
]
# SOPK: the constant of 16 bits is extended by its sign, or by zeros for an unsigned compare.
for _k in (0x1234, 0x8001, 0xFFFF):
    _ks = signed(_k, 16)
    CASES += [
        Case(
            f"s_cmpk_{name}_{kind}",
            (source,),
            "",
            lambda a, f=function, k=_k if kind == "u32" else _ks: (None, f(a, k)),
            scc="out",
            written=f"s_cmpk_{name}_{kind} s16, {_k:#x}",
        )
        for kind, source in (("u32", "u32"), ("i32", "s32"))
        for name, function in _COMPARES.items()
    ]
    CASES += [
        Case("s_movk_i32", (), "u32", lambda k=_ks: k, written=f"s_movk_i32 s40, {_k:#x}"),
        Case(
            "s_cmovk_i32",
            ("u32",),
            "u32",
            lambda old, scc, k=_ks: k if scc else old,
            scc="in",
            old=True,
            written=f"s_cmovk_i32 s40, {_k:#x}",
        ),
        Case(
            "s_addk_i32",
            ("s32",),
            "u32",
            lambda old, k=_ks: overflowing(old + k),
            scc="out",
            old=True,
            written=f"s_addk_i32 s40, {_k:#x}",
        ),
        Case(
            "s_mulk_i32",
            ("u32",),
            "u32",
            lambda old, k=_ks: old * k,
            old=True,
            written=f"s_mulk_i32 s40, {_k:#x}",
        ),
    ]

SAVE_EXEC: dict[str, Callable[[int, int], int]] = {
    "and": lambda s, e: s & e,
    "or": lambda s, e: s | e,
    "xor": lambda s, e: s ^ e,
    "andn1": lambda s, e: ~s & e,
    "andn2": lambda s, e: s & ~e,
    "orn1": lambda s, e: ~s | e,
    "orn2": lambda s, e: s | ~e,
    "nand": lambda s, e: ~(s & e),
    "nor": lambda s, e: ~(s | e),
    "xnor": lambda s, e: ~(s ^ e),
}
"""S_*_SAVEEXEC_B64: D = EXEC; EXEC = this of S0 and EXEC; SCC = (EXEC != 0)."""
