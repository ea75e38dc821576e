"""A line of disassembly as an instruction record: one function per form of operand list.

The forms are named in the rows of the interpreter's table (``core/*.cpp``). What cannot be decoded
is no error here: the record becomes the opcode "unknown", which stops the program when it is
reached, and the reason is kept for the message.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.gfx942 import operands as op
from tests.gfx942.disassembly import Line
from tests.gfx942.operands import NotUnderstood, Operand

_OF_CACHES = {"sc0", "sc1", "nt"}
_PACKED_SIGNS = {"f16x2": ((0, 0x8000), (0, 0x80000000)), "f32x2": ((0, 1 << 31), (1, 1 << 31))}
_CLAMPS = {"f32": 1, "f16": 2, "f64": 3, "f32x2": 4, "f16x2": 5}
_WHOLE, _KEEP_HIGH, _KEEP_LOW = range(3)
_UNUSED = {"UNUSED_PAD": 0, "UNUSED_SEXT": 1, "UNUSED_PRESERVE": 2}
_PRESERVE = 2


@dataclass(frozen=True)
class Opcode:
    """A row of the interpreter's table; ``core/registry.h`` says what the fields mean."""

    number: int
    name: str
    form: str
    issue_class: int
    signature: str
    num_bytes: int

    @property
    def result(self) -> str:
        """The result's type: ``f32``, ``u32+bit``, or "" for none."""
        return self.signature.partition("(")[0]

    @property
    def parameters(self) -> list[str]:
        """The sources' types."""
        inside = self.signature.partition("(")[2].rstrip(")")
        return inside.split(",") if inside else []


class Decoder:
    """Turns lines into records.

    Attributes:
        opcodes: The interpreter's table, by name.
    """

    def __init__(self, opcodes: dict[str, Opcode]) -> None:
        """Take the table."""
        self.opcodes = opcodes

    def decode(self, line: Line, record, index_at: Callable[[int], int]) -> str:
        """Fill a record; return "" or the reason why the instruction cannot be executed.

        Args:
            line: The instruction.
            record: A zeroed record, written in place.
            index_at: Gives the index of the instruction at an address.
        """
        record["pc"] = line.pc
        try:
            opcode = self._opcode(line)
            record["opcode"] = opcode.number
            record["part"] = op.WHOLE_REGISTER
            left = _FORMS[opcode.form](line, opcode, record, index_at)
            if left:
                raise NotUnderstood(f"modifier {', '.join(sorted(left))}")
        except NotUnderstood as reason:
            record["opcode"] = 0
            return str(reason)
        return ""

    def _opcode(self, line: Line) -> Opcode:
        opcode = self.opcodes.get(line.mnemonic)
        if opcode is None:
            raise NotUnderstood("no semantics for this mnemonic")
        if "clamp" in line.modifiers and opcode.result.removeprefix("keep ") not in _CLAMPS:
            opcode = self.opcodes.get(line.mnemonic + " clamp")
            if opcode is None:
                raise NotUnderstood("clamp")
        return opcode


def _put(record, name: str, operand: Operand | None) -> None:
    if operand is not None:
        operand.fill(record[name])


def _put_sources(record, sources: list[Operand]) -> None:
    record["num_in"] = len(sources)
    for number, one in enumerate(sources):
        one.fill(record[f"in{number}"])


def _register(text: str, kind: int, words: int | None = None) -> Operand:
    found = op.register(text)
    if found is None or found.kind != kind or (words is not None and found.words != words):
        raise NotUnderstood(f"operand {text!r}")
    return found


def _destination(text: str, words: int) -> Operand:
    found = op.register(text)
    if found is None or found.words != words:
        raise NotUnderstood(f"destination {text!r}")
    return found


def _number(text: str) -> int:
    return int(text, 0)


def _bits(modifiers: dict[str, str], name: str, default: int, count: int) -> list[int]:
    """Return ``op_sel:[0,1]`` as [0, 1], filled up to ``count``."""
    text = modifiers.get(name)
    given = [int(bit) for bit in text.strip("[]").split(",")] if text else []
    return given + [default] * (count - len(given))


def _vector(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    texts = list(line.operands)
    result, _, has_mask = opcode.result.partition("+")
    result = result.removeprefix("keep ")
    out = _destination(texts.pop(0), 2 if result == "bit" else op.WORDS.get(result, 1))
    if has_mask:
        _put(record, "out_mask", _register(texts.pop(0), op.SCALAR, 2))
    sources = []
    for kind in opcode.parameters:
        if kind.startswith("old "):
            sources.append(Operand(op.VECTOR, out.index, op.WORDS.get(kind[4:], 1)))
        elif kind == "bit" and not texts:  # v_div_fmas_f32
            sources.append(Operand(op.SCALAR, op.VCC, 2, shape=op.LANE_BITS))
        elif not texts:
            raise NotUnderstood("too few operands")
        else:
            sources.append(op.source(texts.pop(0), kind))
    if texts:
        raise NotUnderstood("too many operands")
    left = set(line.modifiers)
    if "clamp" in left:
        record["clamp"] = 0 if opcode.name.endswith(" clamp") else _CLAMPS[result]
        left.discard("clamp")
    if opcode.result.startswith("keep"):
        record["merge"] = _KEEP_LOW if opcode.name == "v_fma_mixhi_f16" else _KEEP_HIGH
    if line.encoding == "sdwa":
        left -= _sdwa(line, sources, record)
    if line.encoding == "dpp":
        left -= _dpp(line, record)
    left -= _selects(line, opcode, sources, record)
    _put(record, "out", out)
    _put_sources(record, sources)
    return left


def _selects(line: Line, opcode: Opcode, sources: list[Operand], record) -> set[str]:
    """Apply op_sel, op_sel_hi, neg_lo and neg_hi."""
    count = len(sources)
    kinds = [kind.removeprefix("old ") for kind in opcode.parameters]
    if opcode.name == "v_pk_mov_b32":
        for one, bit in zip(sources, _bits(line.modifiers, "op_sel", 0, 2), strict=True):
            one.select = bit | bit << 1
        return {"op_sel", "op_sel_hi"}
    if opcode.name.startswith("v_cvt_sr_"):
        bits = _bits(line.modifiers, "op_sel", 0, 4)
        record["sdwa"], record["unused"], record["part"] = 1, _PRESERVE, bits[2] + 2 * bits[3]
        return {"op_sel"}
    by_halves = any(kind.endswith("x2") or kind == "mix" for kind in kinds)
    low = _bits(line.modifiers, "op_sel", 0, count + 1)
    if by_halves:
        high = _bits(line.modifiers, "op_sel_hi", 0 if "mix" in kinds else 1, count)
        for number, (one, kind) in enumerate(zip(sources, kinds, strict=True)):
            one.select = low[number] | high[number] << 1
            if one.shape == op.PAIRS and one.kind == op.CONSTANT and one.select:
                raise NotUnderstood("the high half of a constant as f32")
            for name, (word, mask) in zip(
                ("neg_lo", "neg_hi"), _PACKED_SIGNS.get(kind, ()), strict=False
            ):
                if _bits(line.modifiers, name, 0, count)[number]:
                    op.change_sign(one, word, mask, negative=True, absolute=False)
        signs = {"neg_lo", "neg_hi"} if kinds[0] in _PACKED_SIGNS else set()
        return {"op_sel", "op_sel_hi"} | signs
    if "op_sel" not in line.modifiers:
        return set()
    for number, (one, kind) in enumerate(zip(sources, kinds, strict=True)):
        if low[number]:
            if kind not in ("u16", "s16", "f16"):
                raise NotUnderstood(f"op_sel on a {kind}")
            one.part = op.PARTS["WORD_1"]
    if low[count]:
        record["merge"] = _KEEP_LOW
    return {"op_sel"}


def _sdwa(line: Line, sources: list[Operand], record) -> set[str]:
    modifiers = line.modifiers
    record["sdwa"] = 1
    record["part"] = op.PARTS[modifiers.get("dst_sel", "DWORD")]
    record["unused"] = _UNUSED[modifiers.get("dst_unused", "UNUSED_PAD")]
    for number, one in enumerate(sources[:2]):
        one.part = op.PARTS[modifiers.get(f"src{number}_sel", "DWORD")]
    return {"dst_sel", "dst_unused", "src0_sel", "src1_sel"}


_DPP_FIXED = {
    "wave_shl": 0x130,
    "wave_rol": 0x134,
    "wave_shr": 0x138,
    "wave_ror": 0x13C,
    "row_mirror": 0x140,
    "row_half_mirror": 0x141,
}
_DPP_COUNTED = {"row_shl": 0x100, "row_shr": 0x110, "row_ror": 0x120, "row_newbcast": 0x150}
_DPP_BROADCAST = {"15": 0x142, "31": 0x143}


def _dpp(line: Line, record) -> set[str]:
    modifiers = line.modifiers
    record["dpp"] = 1
    record["row_mask"] = _number(modifiers["row_mask"])
    record["bank_mask"] = _number(modifiers["bank_mask"])
    # Both spellings, bound_ctrl:0 of older assemblers and bound_ctrl:1, stand for the set bit.
    record["bound_zero"] = "bound_ctrl" in modifiers
    common = {"row_mask", "bank_mask", "bound_ctrl"}
    if text := modifiers.get("quad_perm"):
        control = 0
        for place, lane in enumerate(text.strip("[]").split(",")):
            control |= int(lane) << 2 * place
        record["dpp_control"] = control
        return common | {"quad_perm"}
    for name, code in _DPP_FIXED.items():
        if name in modifiers:
            record["dpp_control"] = code
            return common | {name}
    for name, code in _DPP_COUNTED.items():
        if name in modifiers:
            record["dpp_control"] = code + _number(modifiers[name])
            return common | {name}
    if (text := modifiers.get("row_bcast")) in _DPP_BROADCAST:
        record["dpp_control"] = _DPP_BROADCAST[text]
        return common | {"row_bcast"}
    raise NotUnderstood("DPP control")


_SIGNED_16 = re.compile(r"^s_(?:movk|cmovk|addk|mulk)_i32$|^s_cmpk_\w+_i32$")
_UNSIGNED_16 = re.compile(r"^s_cmpk_\w+_u32$")


def _scalar(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    texts = list(line.operands)
    if opcode.result:
        _put(record, "out", _destination(texts.pop(0), op.WORDS.get(opcode.result, 1)))
    _put_sources(record, [_scalar_source(line, t, k) for t, k in _paired(texts, opcode.parameters)])
    return set(line.modifiers)


def _scalar_old(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    """The destination is the last source, too."""
    out = _destination(line.operands[0], op.WORDS.get(opcode.result, 1))
    *given, _ = opcode.parameters
    pairs = _paired(list(line.operands[1:]), given)
    _put(record, "out", out)
    _put_sources(record, [*(_scalar_source(line, t, k) for t, k in pairs), out])
    return set(line.modifiers)


def _paired(texts: list[str], kinds: list[str]) -> list[tuple[str, str]]:
    if len(texts) != len(kinds):
        raise NotUnderstood(f"{len(texts)} sources where {len(kinds)} are expected")
    return list(zip(texts, kinds, strict=True))


def _scalar_source(line: Line, text: str, kind: str) -> Operand:
    found = op.source(text, kind)
    if found.kind == op.CONSTANT:
        if _SIGNED_16.match(line.mnemonic):
            value = found.value & 0xFFFF
            found.value = (value - (value >> 15 << 16)) & 0xFFFFFFFF
        elif _UNSIGNED_16.match(line.mnemonic):
            found.value &= 0xFFFF
    return found


def _plain(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    if line.operands and line.operands != ("",):
        raise NotUnderstood("operands")
    return set(line.modifiers)


def _ignored(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    return set()


def _branch(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    record["target"] = index_at(line.branch_target)
    return set()


def _call(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    record["offset1"] = line.num_bytes
    _put(record, "out", _register(line.operands[0], op.SCALAR, 2))
    return _branch(line, opcode, record, index_at)


def _next_pc(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    record["offset1"] = line.num_bytes
    return _scalar(line, opcode, record, index_at)


def _waitcnt(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    record["offset"] = line.wait.get("vmcnt", -1)
    record["offset1"] = line.wait.get("lgkmcnt", -1)
    if not line.wait:
        raise NotUnderstood("wait")
    return set()


_INDEXED = {"SRC0": 1, "SRC1": 2, "SRC2": 4, "DST": 8}


def _index_mode(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    index, which = line.operands
    names = which.removeprefix("gpr_idx(").removesuffix(")").split(",")
    mode = sum(_INDEXED[name] for name in names if name)
    _put_sources(record, [op.source(index, "u32"), Operand(op.CONSTANT, value=mode)])
    return set(line.modifiers)


def _hardware_register(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    out, _, which = line.operands[0].partition(", ")
    if which != "hwreg(HW_REG_XCC_ID)":
        raise NotUnderstood(f"hardware register {which}")
    _put(record, "out", _register(out, op.SCALAR, 1))
    _put_sources(record, [Operand(op.CONSTANT)])
    return set()


def _offset(line: Line, record) -> None:
    record["offset"] = _number(line.modifiers.get("offset", "0"))


def _address(text: str) -> Operand | None:
    return None if text == "off" else _register(text, op.VECTOR)


def _scalar_address(texts: list[str]) -> Operand | None:
    """Flat instructions have none; global and scratch ones may have "off"."""
    if not texts or texts == ["off"]:
        return None
    (text,) = texts
    return _register(text, op.SCALAR)


def _memory_load(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    out, address, *scalar = line.operands
    _offset(line, record)
    _put(record, "out", _register(out, op.VECTOR, (opcode.num_bytes + 3) // 4))
    _put(record, "in0", _address(address))
    _put(record, "in1", _scalar_address(scalar))
    return set(line.modifiers) - _OF_CACHES - {"offset"}


def _memory_store(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    address, data, *scalar = line.operands
    _offset(line, record)
    _put(record, "in0", _address(address))
    _put(record, "in1", _scalar_address(scalar))
    _put(record, "in2", _register(data, op.VECTOR, (opcode.num_bytes + 3) // 4))
    return set(line.modifiers) - _OF_CACHES - {"offset"}


def _memory_atomic(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    """``sc0`` says that the old value comes back, and then the first operand is where."""
    texts = list(line.operands)
    words = opcode.num_bytes // 4
    if "sc0" in line.modifiers:
        record["returns"] = 1
        _put(record, "out", _register(texts.pop(0), op.VECTOR, words))
    address, data, *scalar = texts
    _offset(line, record)
    _put(record, "in0", _address(address))
    _put(record, "in1", _scalar_address(scalar))
    _put(record, "in2", _register(data, op.VECTOR, words * (1 + ("cmpswap" in opcode.name))))
    return set(line.modifiers) - _OF_CACHES - {"offset"}


def _buffer(line: Line, record, data_words: int) -> Operand:
    data, offset, descriptor, scalar = line.operands
    _offset(line, record)
    if ("offen" in line.modifiers) != (offset != "off"):
        raise NotUnderstood("buffer index")
    _put(record, "in0", _address(offset))
    _put(record, "in1", _register(descriptor, op.SCALAR, 4))
    _put(record, "in3", op.source(scalar, "u32"))
    return _register(data, op.VECTOR, data_words)


def _buffer_load(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    _put(record, "out", _buffer(line, record, (opcode.num_bytes + 3) // 4))
    return set(line.modifiers) - _OF_CACHES - {"offset", "offen"}


def _buffer_store(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    _put(record, "in2", _buffer(line, record, (opcode.num_bytes + 3) // 4))
    return set(line.modifiers) - _OF_CACHES - {"offset", "offen"}


def _buffer_atomic(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    words = opcode.num_bytes // 4 * (1 + ("cmpswap" in opcode.name))
    record["returns"] = "sc0" in line.modifiers
    _put(record, "in2", _buffer(line, record, words))
    return set(line.modifiers) - _OF_CACHES - {"offset", "offen"}


def _scalar_load(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    out, base, offset = line.operands
    base_words = 4 if opcode.name.startswith("s_buffer") else 2
    _put(record, "out", _register(out, op.SCALAR, opcode.num_bytes // 4))
    _put(record, "in0", _register(base, op.SCALAR, base_words))
    _offset(line, record)
    if in_register := op.register(offset):
        _put(record, "in1", in_register)
    else:
        record["offset"] = _number(offset)
    return set(line.modifiers) - {"offset"}


def _lds_data(line: Line, opcode: Opcode, record, address: str, data: list[str]) -> set[str]:
    if opcode.name == "ds_swizzle_b32":
        record["offset"] = line.first_word & 0xFFFF
    elif "2" in opcode.name.split("_")[1]:
        record["offset"] = _number(line.modifiers.get("offset0", "0"))
        record["offset1"] = _number(line.modifiers.get("offset1", "0"))
    else:
        _offset(line, record)
    _put(record, "in0", _register(address, op.VECTOR, 1))
    for number, text in enumerate(data, start=1):
        words = (opcode.num_bytes + 3) // 4
        _put(record, f"in{number}", _register(text, op.VECTOR, words))
    return set(line.modifiers) - {"offset", "offset0", "offset1"}


def _lds_read(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    out, address = line.operands
    _put(record, "out", _register(out, op.VECTOR, (opcode.num_bytes + 3) // 4))
    return _lds_data(line, opcode, record, address, [])


def _lds_read_two(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    out, address = line.operands
    _put(record, "out", _register(out, op.VECTOR, opcode.num_bytes // 2))
    return _lds_data(line, opcode, record, address, [])


def _lds_write(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    address, *data = line.operands
    return _lds_data(line, opcode, record, address, data)


def _lds_return(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    out, address, *data = line.operands
    _put(record, "out", _register(out, op.VECTOR, opcode.num_bytes // 4))
    return _lds_data(line, opcode, record, address, data)


def _matrix(line: Line, opcode: Opcode, record, index_at) -> set[str]:
    out, a, b, c = line.operands
    result = _register(out, op.VECTOR)
    accumulator = op.register(c)
    if accumulator is None:
        bits = op.constant(c, "f32")
        if bits is None:
            raise NotUnderstood(f"operand {c!r}")
        accumulator = Operand(op.CONSTANT, value=bits)
    elif accumulator.words != result.words:
        raise NotUnderstood("accumulator of another size than the result")
    _put(record, "out", result)
    _put_sources(record, [_register(a, op.VECTOR, 2), _register(b, op.VECTOR, 2), accumulator])
    return set(line.modifiers)


_FORMS: dict[str, Callable[..., set[str]]] = {
    "vector": _vector,
    "scalar": _scalar,
    "scalar_old": _scalar_old,
    "plain": _plain,
    "ignored": _ignored,
    "branch": _branch,
    "call": _call,
    "next_pc": _next_pc,
    "waitcnt": _waitcnt,
    "hardware_register": _hardware_register,
    "index_mode": _index_mode,
    "memory_load": _memory_load,
    "memory_store": _memory_store,
    "memory_atomic": _memory_atomic,
    "buffer_load": _buffer_load,
    "buffer_store": _buffer_store,
    "buffer_atomic": _buffer_atomic,
    "scalar_load": _scalar_load,
    "lds_read": _lds_read,
    "lds_read_two": _lds_read_two,
    "lds_write": _lds_write,
    "lds_return": _lds_return,
    "matrix": _matrix,
}
