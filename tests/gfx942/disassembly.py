"""``llvm-objdump -d`` as a list of lines: where each instruction lies and how it is written."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.gfx942 import toolchain


@dataclass(frozen=True)
class Line:
    """One instruction.

    Attributes:
        pc: Its address.
        num_bytes: Its length.
        first_word: Its first 32 bits.
        mnemonic: Without the encoding's suffix: ``v_add_u32`` of ``v_add_u32_e32``.
        encoding: ``e32``, ``e64``, ``sdwa``, ``dpp``, or "" where there is only one.
        operands: What stands between commas, modifiers cut off.
        modifiers: ``offset:16`` as {"offset": "16"}, ``sc0`` as {"sc0": ""}.
        text: As objdump writes it.
        symbol: The function it belongs to.
        place: Its distance from the function's start.
        branch_target: Address that a branch may go to.
    """

    pc: int
    num_bytes: int
    first_word: int
    mnemonic: str
    encoding: str
    operands: tuple[str, ...]
    modifiers: dict[str, str]
    text: str
    symbol: str
    place: int
    branch_target: int | None

    @cached_property
    def where(self) -> str:
        """``0x1234 kernel+0x34``."""
        return f"{self.pc:#x} {self.symbol}+{self.place:#x}"

    @property
    def wait(self) -> dict[str, int]:
        """What an ``s_waitcnt`` waits for, {"vmcnt": 5}; empty for other instructions."""
        if self.mnemonic != "s_waitcnt":
            return {}
        return {name: int(value) for name, value in _COUNT.findall(self.text)}


_FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:$")
_CODE = re.compile(r"^\t(.*?)\s*// ([0-9A-F]+): ([0-9A-F ]+?)\s*(?:<\S+>)?$")
_COUNT = re.compile(r"(vmcnt|lgkmcnt|expcnt)\((\d+)\)")
_MODIFIER = re.compile(r"^([a-z][a-z0-9_]*)(?::(\S+))?$")
_MODIFIER_FIRST = re.compile(r"^offset\d?:")
_SUFFIX = re.compile(r"^(v_\w+?)_(e32|e64|sdwa|dpp)$")
_WRITTEN_OTHERWISE = (
    "s_waitcnt",
    "s_getreg_b32",
    "s_setreg_b32",
    "s_setreg_imm32_b32",
    "s_sendmsg",
)


def read(code_object: Path) -> list[Line]:
    """Return every instruction of a code object, in order of addresses."""
    printed = toolchain.run([toolchain.tool("llvm-objdump"), "-d", "--mcpu=gfx942", code_object])
    return parse(printed)


def parse(printed: str) -> list[Line]:
    """Return the instructions in objdump's text.

    Raises:
        ValueError: A line is neither a function's head nor an instruction.
    """
    lines: list[Line] = []
    name, start = "", 0
    for row in printed.splitlines():
        if head := _FUNCTION.match(row):
            start, name = int(head[1], 16), head[2]
        elif row.startswith("\t") and row.strip(". \t"):  # "..." stands for zeros
            code = _CODE.match(row)
            if not code:
                raise ValueError(f"objdump line not understood: {row!r}")
            text, pc, words = code.groups()
            lines.append(_line(text, int(pc, 16), words.split(), name, start))
    return lines


def _line(text: str, pc: int, words: list[str], symbol: str, start: int) -> Line:
    mnemonic, _, rest = text.partition(" ")
    encoding = ""
    if suffix := _SUFFIX.match(mnemonic):
        mnemonic, encoding = suffix.groups()
    operands, modifiers = ((rest,), {}) if mnemonic in _WRITTEN_OTHERWISE else split(rest)
    target = None
    if mnemonic.startswith(("s_branch", "s_cbranch", "s_call")):
        distance = int(words[0], 16) & 0xFFFF
        target = pc + 4 + 4 * (distance - 0x10000 * (distance >> 15))
    return Line(
        pc=pc,
        num_bytes=4 * len(words),
        first_word=int(words[0], 16),
        mnemonic=mnemonic,
        encoding=encoding,
        operands=operands,
        modifiers=modifiers,
        text=text,
        symbol=symbol,
        place=pc - start,
        branch_target=target,
    )


def split(rest: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return an instruction's operands and modifiers, of the text after its mnemonic."""
    operands: list[str] = []
    modifiers: dict[str, str] = {}
    for part in _split_at_commas(rest):
        operand, *words = part.split()
        if not operands and _MODIFIER_FIRST.match(operand):  # of ds_nop and its like
            words.insert(0, operand)
        else:
            operands.append(operand)
        for word in words:
            found = _MODIFIER.match(word)
            if not found:
                raise ValueError(f"modifier not understood: {word!r} in {rest!r}")
            modifiers[found[1]] = found[2] or ""
    return tuple(operands), modifiers


def _split_at_commas(text: str) -> list[str]:
    parts, depth, part = [], 0, ""
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    return [*parts, part] if part.strip() else parts
