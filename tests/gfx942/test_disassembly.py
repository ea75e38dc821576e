"""objdump's text becomes lines, operands and modifiers; nothing in it is passed over."""

import pytest

from tests.gfx942 import disassembly, operands
from tests.gfx942.operands import NotUnderstood

ROW_SHIFT = "v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1"

PRINTED = f"""
k.co:\tfile format elf64-amdgpu

Disassembly of section .text:

0000000000002500 <first>:
\ts_waitcnt vmcnt(5) lgkmcnt(3)                              // 000000002500: BF8C0375
\tv_add_u32_e32 v0, s2, v0                                   // 000000002504: 68000002
\t{ROW_SHIFT}// 000000002508: 7E0002FA FF091101
\ts_cbranch_execz 22                                         // 000000002510: BF880016 <first+0x6c>
\t...

0000000000002600 <second>:
\ts_cbranch_scc1 65534                                       // 000000002600: BF85FFFE <first+0xfc>
"""


def test_lines_have_address_length_function_and_branch_target():
    lines = disassembly.parse(PRINTED)
    assert [line.pc for line in lines] == [0x2500, 0x2504, 0x2508, 0x2510, 0x2600]
    assert [line.num_bytes for line in lines] == [4, 4, 8, 4, 4]
    assert [line.symbol for line in lines] == ["first"] * 4 + ["second"]
    assert [line.branch_target for line in lines[3:]] == [0x2510 + 4 + 88, 0x2600 + 4 - 8]
    assert lines[1].where == "0x2504 first+0x4"


def test_mnemonic_encoding_operands_and_modifiers_are_told_apart():
    wait, add, moved, *_ = disassembly.parse(PRINTED)
    assert wait.wait == {"vmcnt": 5, "lgkmcnt": 3}
    assert (add.mnemonic, add.encoding, add.operands) == ("v_add_u32", "e32", ("v0", "s2", "v0"))
    assert add.wait == {}
    assert (moved.encoding, moved.operands) == ("dpp", ("v0", "v1"))
    expected = {"row_shr": "1", "row_mask": "0xf", "bank_mask": "0xf", "bound_ctrl": "1"}
    assert moved.modifiers == expected


@pytest.mark.parametrize(
    ("text", "parts", "modifiers"),
    [
        ("v[0:1], -|v2|, s[4:5] clamp", ["v[0:1]", "-|v2|", "s[4:5]"], {"clamp": ""}),
        (
            "v0, v1, s[4:7], 0 offen offset:16 sc0",
            ["v0", "v1", "s[4:7]", "0"],
            {"offen": "", "offset": "16", "sc0": ""},
        ),
        ("v[4:5], v2 offset1:2", ["v[4:5]", "v2"], {"offset1": "2"}),
        ("v0, v1 quad_perm:[0,1,2,3]", ["v0", "v1"], {"quad_perm": "[0,1,2,3]"}),
        ("v0, v1 offset:swizzle(SWAP,16)", ["v0", "v1"], {"offset": "swizzle(SWAP,16)"}),
        ("", [], {}),
    ],
)
def test_operands_stand_between_commas_and_modifiers_after_the_last(text, parts, modifiers):
    assert disassembly.split(text) == (tuple(parts), modifiers)


def test_text_that_is_not_understood_is_refused():
    with pytest.raises(ValueError, match="objdump line not understood"):
        disassembly.parse("\tv_add_u32 v0, v1, v2\n")
    with pytest.raises(ValueError, match="modifier not understood"):
        disassembly.split("v0, v1 ???")


@pytest.mark.parametrize(
    ("text", "kind", "index", "words"),
    [
        ("v7", operands.VECTOR, 7, 1),
        ("v[4:7]", operands.VECTOR, 4, 4),
        ("a3", operands.VECTOR, 256 + 3, 1),
        ("s[2:3]", operands.SCALAR, 2, 2),
        ("vcc", operands.SCALAR, 106, 2),
        ("vcc_hi", operands.SCALAR, 107, 1),
        ("exec", operands.SCALAR, 126, 2),
        ("m0", operands.SCALAR, 124, 1),
        ("ttmp2", operands.SCALAR, 110, 1),
    ],
)
def test_registers_have_the_numbers_of_the_encoding(text, kind, index, words):
    """ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapter 5.2, SGPR operands."""
    found = operands.register(text)
    assert (found.kind, found.index, found.words) == (kind, index, words)


@pytest.mark.parametrize(
    ("text", "kind"), [("v0x", "u32"), ("lds_direct", "u32"), ("-v1", "u32"), ("1.0", "u16x2")]
)
def test_an_operand_that_is_not_certain_is_refused(text, kind):
    with pytest.raises(NotUnderstood):
        operands.source(text, kind)
