"""The gfx942 code objects that are shipped, one a room: where they lie and what they say.

A code object is an ELF file that holds a room's kernels. Its metadata note gives each kernel's
arguments and what it uses of the hardware; its ``.comment`` names the compiler and the linker. The
JSON beside it (``moe.gfx942.json`` beside ``moe.gfx942.co``) is the build's record: sources, flags,
checksum. In a source tree both lie in ``build/native/code_objects`` and must be as new as the
sources; in an installed wheel they lie in ``sglang_mi300a/code_objects``.

Source: LLVM, "User Guide for AMDGPU Backend": ELF header (e_machine 224, OS ABI 64,
EF_AMDGPU_MACH), note NT_AMDGPU_METADATA (32), "Code Object V5 Metadata" (keys of a kernel's map).
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sglang_mi300a import message_pack
from sglang_mi300a.errors import UserError

ARCH = "gfx942"
LDS_BYTES = 64 * 1024
"""Local memory of one compute unit. Source: AMD CDNA 3 ISA guide, "LDS"."""

SCHEMA = 1
_PACKAGE = Path(__file__).parent
_SOURCE_SUFFIXES = (".hip", ".h")

_EM_AMDGPU = 224
_OS_ABI_HSA = 64
_MACH_GFX942 = 0x4C
_MACH_MASK = 0xFF
_CODE_OBJECT_VERSIONS = {2: 4, 3: 5, 4: 6}  # by the ELF header's ABI version
_ET_DYN = 3
_SHT_NOTE = 7
_SHT_NOBITS = 8
_NT_AMDGPU_METADATA = 32
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_COERCED = ".coerce"  # what clang adds to the name of a pointer that became a global one


@dataclass(frozen=True)
class Argument:
    """One explicit argument of a kernel.

    Attributes:
        name: As in the source; "" where the object does not say.
        kind: ``global_buffer`` (a pointer), ``by_value``, or another kind of the metadata.
        offset_bytes: From the start of the argument block.
        size_bytes: Its size there.
    """

    name: str
    kind: str
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Kernel:
    """One kernel and its budget.

    Attributes:
        name: As in the source.
        symbol: Of its descriptor.
        arguments: Explicit ones, in order.
        hidden: Offset and size, bytes, of the arguments that the runtime adds, by kind.
        kernarg_bytes: Whole argument block, hidden ones included.
        max_threads: Of one workgroup.
        required_block: Threads of a workgroup by dimension, where only one shape is right.
        vgprs: Vector registers a lane, accumulation registers included.
        agprs: Accumulation registers among them.
        sgprs: Scalar registers a wave.
        vgpr_spills: Vector registers kept in scratch memory.
        sgpr_spills: Scalar registers kept elsewhere.
        lds_bytes: Static local memory of a workgroup.
        scratch_bytes: Of one lane.
        wave_size: Lanes of a wave.
    """

    name: str
    symbol: str
    arguments: tuple[Argument, ...]
    hidden: Mapping[str, tuple[int, int]]
    kernarg_bytes: int
    max_threads: int
    required_block: tuple[int, int, int] | None
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    wave_size: int


@dataclass(frozen=True, eq=False)
class CodeObject:
    """One code object.

    Attributes:
        image: The file's bytes, as HIP loads them.
        where: The file, or what else it came from.
        version: Code object version (5).
        made_by: What compiled and linked it, as its ``.comment`` says.
        kernels: By name.
    """

    image: bytes = field(repr=False)
    where: str
    version: int
    made_by: tuple[str, ...]
    kernels: Mapping[str, Kernel]

    @functools.cached_property
    def digest(self) -> str:
        """The image's SHA-256, hexadecimal."""
        return hashlib.sha256(self.image).hexdigest()

    def kernel(self, name: str) -> Kernel:
        """Return a kernel.

        Raises:
            UserError: There is none of this name.
        """
        if name not in self.kernels:
            raise UserError(
                f"{self.where}, kernel {name}",
                found="no such kernel",
                allowed=", ".join(sorted(self.kernels)) or "none",
                do="build the kernels and the package from one source: `make setup`",
            )
        return self.kernels[name]


@dataclass(frozen=True)
class BuildRecord:
    """How a code object was made; the JSON beside it.

    Attributes:
        arch: Target.
        compiler: First line of the compiler's ``--version``.
        flags: It was given, less paths.
        sources: Files of the room, relative to ``csrc``.
        sources_sha256: :func:`sources_digest` of them.
        code_sha256: Of the code object.
        schema: Version of this record.
    """

    arch: str
    compiler: str
    flags: tuple[str, ...]
    sources: tuple[str, ...]
    sources_sha256: str
    code_sha256: str
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return the record as JSON; the same build gives the same text."""
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> BuildRecord:
        """Read a record.

        Raises:
            UserError: The text is not such a record.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise _refused(where, f"no JSON ({error})", "a build's record") from error
        names = [f.name for f in fields(cls)]
        if not isinstance(data, dict) or sorted(data) != sorted(names) or data["schema"] != SCHEMA:
            raise _refused(where, f"{text[:60]!r}", f"a record of schema {SCHEMA}")
        for name in ("flags", "sources"):
            data[name] = tuple(data[name])
        return cls(**data)


def source_tree() -> Path | None:
    """Return the root of the source tree that the package lies in, or None in a wheel."""
    root = _PACKAGE.parent
    return root if (root / "csrc/launcher/launcher.h").is_file() else None


def compiled_folder(name: str) -> Path:
    """Return where compiled files lie.

    Args:
        name: ``code_objects``; ``launcher`` for the core and its bindings; ``host`` for the
            library of what runs on the host.
    """
    root = source_tree()
    return _PACKAGE / name if root is None else root / "build/native" / name


def rooms_with_kernels(csrc: Path) -> list[str]:
    """Return the rooms that have kernel sources, sorted; ``csrc`` is the folder of all sources."""
    return sorted({path.parent.name for path in csrc.glob("*/*.hip")})


def sources_of(csrc: Path, room: str) -> list[Path]:
    """Return what a room's code object is made from: its sources, and headers all rooms share."""
    found = [*(csrc / room).rglob("*"), *csrc.glob("*.h")]
    return sorted(path for path in found if path.suffix in _SOURCE_SUFFIXES and path.is_file())


def sources_digest(csrc: Path, sources: list[Path]) -> str:
    """Return one SHA-256 over the names (relative to ``csrc``) and bytes of files, hexadecimal."""
    digest = hashlib.sha256()
    for path in sources:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(csrc).as_posix()}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def load(room: str) -> CodeObject:
    """Return a room's code object, checked against the record of its build.

    Raises:
        UserError: It is missing, damaged, for another architecture, or older than the sources in
            the tree.
    """
    folder = compiled_folder("code_objects")
    code, record = load_from(folder, room)
    root = source_tree()
    if root is not None:
        now = sources_digest(root / "csrc", sources_of(root / "csrc", room))
        if now != record.sources_sha256:
            raise _refused(
                code.where,
                f"made from other sources than csrc/{room} holds now",
                "a code object of the sources in the tree",
            )
    return code


def load_from(folder: Path, room: str) -> tuple[CodeObject, BuildRecord]:
    """Return a room's code object in a folder and the record beside it.

    Raises:
        UserError: As :func:`load`.
    """
    path = folder / f"{room}.{ARCH}.co"
    beside = path.with_suffix(".json")
    try:
        image = path.read_bytes()
        text = beside.read_text(encoding="utf-8")
    except OSError as error:
        raise _refused(
            str(error.filename), f"not readable ({error.strerror})", f"kernels of room {room}"
        ) from error
    record = BuildRecord.from_json(text, str(beside))
    if record.arch != ARCH:
        raise _refused(str(beside), f"arch {record.arch}", ARCH)
    found = hashlib.sha256(image).hexdigest()
    if found != record.code_sha256:
        raise _refused(str(path), f"SHA-256 {found[:12]}…", f"{record.code_sha256[:12]}…")
    return read(image, str(path)), record


def read(image: bytes, where: str) -> CodeObject:
    """Return what a code object's bytes say.

    Args:
        image: The whole file.
        where: Named in errors.

    Raises:
        UserError: The bytes are no code object, are cut off, or are for another architecture than
            plain gfx942 (one that runs with XNACK and SRAM ECC on or off).
    """
    if len(image) < _ELF_HEADER.size or image[:6] != b"\x7fELF\x02\x01":
        raise _refused(where, f"{len(image)} bytes, {image[:4]!r}…", "a 64-bit ELF file")
    ident, kind, machine, _, _, _, section_offset, flags, *sizes = _ELF_HEADER.unpack_from(image)
    num_sections = sizes[4]
    if machine != _EM_AMDGPU or ident[7] != _OS_ABI_HSA or kind != _ET_DYN:
        raise _refused(where, f"ELF machine {machine}, type {kind}", "an AMDGPU code object")
    if ident[8] not in _CODE_OBJECT_VERSIONS:
        raise _refused(where, f"ABI version {ident[8]}", "code object version 4, 5 or 6")
    end = section_offset + num_sections * _SECTION.size
    if end > len(image) or sizes[3] != _SECTION.size:
        raise _refused(where, f"cut off at {len(image)} bytes", f"at least {end} bytes")
    headers = [
        _SECTION.unpack_from(image, section_offset + i * _SECTION.size) for i in range(num_sections)
    ]
    for header in headers:
        if header[1] != _SHT_NOBITS and header[4] + header[5] > len(image):
            raise _refused(where, f"cut off at {len(image)} bytes", "whole sections")
    metadata = _metadata(image, headers, where)
    target = str(metadata.get("amdhsa.target", "unknown")).rpartition("--")[2]
    if target != ARCH or flags & _MACH_MASK != _MACH_GFX942:
        raise _refused(where, f"code for {target} (flags {flags:#x})", f"code for {ARCH}")
    try:
        kernels = {kernel.name: kernel for kernel in map(_kernel, metadata["amdhsa.kernels"])}
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise _refused(where, f"metadata: {error!r}", "complete metadata") from error
    return CodeObject(
        image=image,
        where=where,
        version=_CODE_OBJECT_VERSIONS[ident[8]],
        made_by=_comments(image, headers, sizes[5]),
        kernels=kernels,
    )


def _metadata(image: bytes, headers: list[tuple[int, ...]], where: str) -> dict[str, Any]:
    for header in headers:
        if header[1] != _SHT_NOTE:
            continue
        at, end = header[4], header[4] + header[5]
        while at + 12 <= end:
            name_bytes, text_bytes, kind = struct.unpack_from("<III", image, at)
            text_at = at + 12 + _padded(name_bytes)
            if kind == _NT_AMDGPU_METADATA and text_at + text_bytes <= end:
                try:
                    found = message_pack.decode(image[text_at : text_at + text_bytes])
                except ValueError as error:
                    raise _refused(where, f"metadata: {error}", "MessagePack") from error
                if isinstance(found, dict):
                    return found
            at = text_at + _padded(text_bytes)
    raise _refused(where, "no metadata note", "a code object that a linker finished")


def _padded(num_bytes: int) -> int:
    return (num_bytes + 3) // 4 * 4


def _comments(image: bytes, headers: list[tuple[int, ...]], names_index: int) -> tuple[str, ...]:
    names = image[headers[names_index][4] :] if names_index < len(headers) else b""
    for header in headers:
        if names[header[0] :].startswith(b".comment\0"):
            parts = image[header[4] : header[4] + header[5]].split(b"\0")
            return tuple(sorted(part.decode("utf-8", "replace") for part in parts if part))
    return ()


def _kernel(entry: Mapping[str, Any]) -> Kernel:
    listed = entry.get(".args", [])
    hidden = {
        one[".value_kind"]: (_count(one, ".offset"), _count(one, ".size"))
        for one in listed
        if one[".value_kind"].startswith("hidden_")
    }
    block = entry.get(".reqd_workgroup_size")
    return Kernel(
        name=entry[".name"],
        symbol=entry[".symbol"],
        arguments=tuple(
            Argument(
                name=one.get(".name", "").removesuffix(_COERCED),
                kind=one[".value_kind"],
                offset_bytes=_count(one, ".offset"),
                size_bytes=_count(one, ".size"),
            )
            for one in listed
            if one[".value_kind"] not in hidden
        ),
        hidden=hidden,
        kernarg_bytes=_count(entry, ".kernarg_segment_size"),
        max_threads=_count(entry, ".max_flat_workgroup_size"),
        required_block=(block[0], block[1], block[2]) if block else None,
        vgprs=_count(entry, ".vgpr_count"),
        agprs=_count(entry, ".agpr_count"),
        sgprs=_count(entry, ".sgpr_count"),
        vgpr_spills=_count(entry, ".vgpr_spill_count"),
        sgpr_spills=_count(entry, ".sgpr_spill_count"),
        lds_bytes=_count(entry, ".group_segment_fixed_size"),
        scratch_bytes=_count(entry, ".private_segment_fixed_size"),
        wave_size=_count(entry, ".wavefront_size"),
    )


def _count(entry: Mapping[str, Any], key: str) -> int:
    number = entry[key]
    if not isinstance(number, int) or number < 0:
        raise TypeError(f"{key} is {number!r}")
    return number


def _refused(where: str, found: str, allowed: str) -> UserError:
    do = (
        "install a wheel with kernels (its version has no +nokernels)"
        if source_tree() is None
        else "`make setup` builds the kernels of this tree"
    )
    return UserError(where, found=found, allowed=allowed, do=do)
