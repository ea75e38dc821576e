"""What a gfx942 code object says of itself: loaded bytes, kernels, and how each is started.

A code object is an ELF file. Its note section holds a MessagePack map with, per kernel, sizes and
arguments; the symbol ``<kernel>.kd`` is the kernel descriptor, 64 bytes that say which registers
the hardware fills in. Both are described in LLVM's "User Guide for AMDGPU Backend", sections "Code
Object Metadata" and "Kernel Descriptor".
"""

import struct
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Argument:
    """One entry of a kernel's argument block.

    Attributes:
        offset: Bytes from the block's start.
        size: Bytes.
        kind: ``global_buffer``, ``by_value``, or ``hidden_...`` for what the runtime adds.
    """

    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class Kernel:
    """One kernel of a code object.

    Attributes:
        name: As in the source.
        entry: Address of the first instruction.
        arguments: All, hidden ones too, in order.
        kernarg_bytes: Size of the argument block.
        vgprs: Vector registers, accumulators included.
        agprs: Accumulators among them.
        sgprs: Scalar registers.
        vgpr_spills: Vector registers that went to memory.
        sgpr_spills: Scalar registers that went to memory.
        lds_bytes: Static LDS of a workgroup.
        scratch_bytes: Private memory of a lane.
        most_threads: Largest workgroup it was compiled for.
        descriptor: The 64 bytes of its kernel descriptor.
    """

    name: str
    entry: int
    arguments: tuple[Argument, ...]
    kernarg_bytes: int
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    most_threads: int
    descriptor: bytes

    @property
    def rsrc1(self) -> int:
        """COMPUTE_PGM_RSRC1: float modes and register counts."""
        return struct.unpack_from("<I", self.descriptor, 48)[0]

    @property
    def rsrc2(self) -> int:
        """COMPUTE_PGM_RSRC2: user scalars and workgroup ids."""
        return struct.unpack_from("<I", self.descriptor, 52)[0]

    @property
    def properties(self) -> int:
        """KERNEL_CODE_PROPERTIES: which user scalars are filled in."""
        return struct.unpack_from("<H", self.descriptor, 56)[0]

    @property
    def preloaded_arguments(self) -> int:
        """KERNARG_PRELOAD: nonzero if arguments come in scalars."""
        return struct.unpack_from("<H", self.descriptor, 58)[0]


LOAD_BASE = 0x7D00_0000_0000
"""Where a code object is loaded: added to every address in it. Never near a null pointer."""


@dataclass(frozen=True)
class Segment:
    """Bytes at an address of the code object."""

    address: int
    data: bytes


class CodeObject:
    """A parsed code object.

    Attributes:
        path: The file.
        segments: What is loaded, code and constants.
        kernels: By name.
    """

    def __init__(self, path: Path) -> None:
        """Parse a file.

        Raises:
            ValueError: It is no 64-bit little-endian ELF for AMDGPU.
        """
        self.path = path
        data = path.read_bytes()
        machine = struct.unpack_from("<H", data, 18)[0] if len(data) > 64 else 0
        if data[:6] != b"\x7fELF\x02\x01" or machine != 224:
            raise ValueError(f"{path}: not an AMDGPU code object")
        sections = _sections(data)
        symbols = _symbols(data, sections)
        self.segments = tuple(_segments(data, _relocated(data, sections)))
        note = next(s for s in sections if s.kind == _SHT_NOTE)
        metadata = _note(data[note.offset : note.offset + note.size])
        self.kernels = {
            one[".name"]: self._kernel(one, symbols) for one in metadata["amdhsa.kernels"]
        }

    def _kernel(self, facts: dict, symbols: dict[str, int]) -> Kernel:
        address = symbols[facts[".symbol"]]
        descriptor = self.loaded(address, 64)
        code_offset = struct.unpack_from("<q", descriptor, 16)[0]
        return Kernel(
            name=facts[".name"],
            entry=address + code_offset,
            arguments=tuple(
                Argument(a[".offset"], a[".size"], a[".value_kind"]) for a in facts.get(".args", ())
            ),
            kernarg_bytes=facts[".kernarg_segment_size"],
            vgprs=facts[".vgpr_count"],
            agprs=facts.get(".agpr_count", 0),
            sgprs=facts[".sgpr_count"],
            vgpr_spills=facts.get(".vgpr_spill_count", 0),
            sgpr_spills=facts.get(".sgpr_spill_count", 0),
            lds_bytes=facts[".group_segment_fixed_size"],
            scratch_bytes=facts[".private_segment_fixed_size"],
            most_threads=facts[".max_flat_workgroup_size"],
            descriptor=descriptor,
        )

    def loaded(self, address: int, num_bytes: int) -> bytes:
        """Return loaded bytes.

        Raises:
            ValueError: Nothing is loaded there.
        """
        for segment in self.segments:
            offset = address - segment.address
            if offset >= 0 and offset + num_bytes <= len(segment.data):
                return segment.data[offset : offset + num_bytes]
        raise ValueError(f"{self.path}: nothing is loaded at {address:#x}")


_SHT_SYMTAB, _SHT_RELA, _SHT_NOTE, _SHT_DYNSYM = 2, 4, 7, 11
_R_AMDGPU_ABS64, _R_AMDGPU_RELATIVE64 = 3, 13


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def _sections(data: bytes) -> list[_Section]:
    start, size, count = struct.unpack_from("<40xQ10xHH", data, 0)
    sections = []
    for k in range(count):
        kind, offset, num_bytes, link = struct.unpack_from("<4xI16xQQI", data, start + k * size)
        sections.append(_Section(kind, offset, num_bytes, link))
    return sections


def _relocated(data: bytes, sections: list[_Section]) -> dict[int, int]:
    """Return the 64-bit words that the loader fills in, by address."""
    words = {}
    for section in sections:
        if section.kind != _SHT_RELA:
            continue
        symbols = sections[section.link].offset
        for at in range(section.offset, section.offset + section.size, 24):
            place, kind, symbol, addend = struct.unpack_from("<QIIq", data, at)
            if kind == _R_AMDGPU_ABS64:
                addend += struct.unpack_from("<8xQ", data, symbols + 24 * symbol)[0]
            elif kind != _R_AMDGPU_RELATIVE64:
                raise ValueError(f"relocation of type {kind} is not supported")
            words[place] = LOAD_BASE + addend
    return words


def _segments(data: bytes, relocated: dict[int, int]) -> list[Segment]:
    start, size, count = struct.unpack_from("<32xQ14xHH", data, 0)
    segments = []
    for k in range(count):
        kind, offset, address, in_file, in_memory = struct.unpack_from(
            "<I4xQQ8xQQ", data, start + k * size
        )
        if kind == 1:  # PT_LOAD
            loaded = bytearray(data[offset : offset + in_file].ljust(in_memory, b"\0"))
            for place, word in relocated.items():
                if address <= place < address + in_memory:
                    struct.pack_into("<Q", loaded, place - address, word)
            segments.append(Segment(address, bytes(loaded)))
    return segments


def _symbols(data: bytes, sections: list[_Section]) -> dict[str, int]:
    symbols = {}
    for section in sections:
        if section.kind in (_SHT_SYMTAB, _SHT_DYNSYM):
            names = sections[section.link].offset
            for at in range(section.offset, section.offset + section.size, 24):
                name, value = struct.unpack_from("<I4xQ", data, at)
                end = data.index(b"\0", names + name)
                symbols[data[names + name : end].decode()] = value
    return symbols


def _note(note: bytes) -> dict:
    name_bytes, num_bytes, kind = struct.unpack_from("<III", note)
    if kind != 32:
        raise ValueError(f"note of type {kind}, not NT_AMDGPU_METADATA")
    start = 12 + (name_bytes + 3) // 4 * 4
    value, _ = _message_pack(note[start : start + num_bytes], 0)
    return value


def _message_pack(data: bytes, at: int):
    """Return the value that starts at ``at``, and where the next one starts."""
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 256, at
    if kind < 0x90 or kind in (0xDE, 0xDF):
        count, at = _count(data, at, kind, 0x80, 0xDE)
        result = {}
        for _ in range(count):
            key, at = _message_pack(data, at)
            result[key], at = _message_pack(data, at)
        return result, at
    if kind < 0xA0 or kind in (0xDC, 0xDD):
        count, at = _count(data, at, kind, 0x90, 0xDC)
        values = []
        for _ in range(count):
            value, at = _message_pack(data, at)
            values.append(value)
        return values, at
    if kind < 0xC0:
        count = kind - 0xA0
        return data[at : at + count].decode(), at + count
    constants = {0xC0: None, 0xC2: False, 0xC3: True}
    if kind in constants:
        return constants[kind], at
    numbers = {
        0xCC: "B",
        0xCD: "H",
        0xCE: "I",
        0xCF: "Q",
        0xD0: "b",
        0xD1: "h",
        0xD2: "i",
        0xD3: "q",
    }
    if kind in numbers:
        code = ">" + numbers[kind]
        return struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)
    texts = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
    if kind in texts:
        count = struct.unpack_from(texts[kind], data, at)[0]
        at += struct.calcsize(texts[kind])
        return data[at : at + count].decode(), at + count
    raise ValueError(f"MessagePack type {kind:#x} is not expected in a code object")


def _count(data: bytes, at: int, kind: int, short: int, long: int) -> tuple[int, int]:
    if kind < long:
        return kind - short, at
    code = ">H" if kind == long else ">I"
    return struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)
