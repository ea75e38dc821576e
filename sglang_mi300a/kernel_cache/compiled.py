"""A compiled module's file: whether it is all there, and what it is for.

Linkers put the section table last, so a module cut short says so itself.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path

_ARCH = re.compile(rb"amdhsa--(gfx[0-9a-f]+)")
_HEADER_BYTES = 64
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Content:
    """What a file holds.

    Attributes:
        sha256: Hexadecimal digest.
        num_bytes: Size.
    """

    sha256: str
    num_bytes: int


def content_of(path: Path) -> Content:
    """Return digest and size of a file."""
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            num_bytes += len(block)
    return Content(digest.hexdigest(), num_bytes)


def flaw(path: Path) -> str:
    """Return why a file is no whole 64-bit shared object; "" if it is one.

    Source: ELF-64 object file format, version 1.5: ``e_phoff``, ``e_shoff`` and the entries' sizes.
    """
    num_bytes = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES or header[:5] != b"\x7fELF\x02":
            return f"no 64-bit ELF file ({num_bytes} bytes, begins with {header[:4]!r})"
        (kind,) = struct.unpack_from("<H", header, 16)
        segments_at, sections_at = struct.unpack_from("<QQ", header, 32)
        segment_bytes, num_segments, section_bytes, num_sections = struct.unpack_from(
            "<HHHH", header, 54
        )
        if kind != 3 or not sections_at:
            return f"ELF of type {kind}, not a shared object with a section table"
        end = max(
            segments_at + segment_bytes * num_segments, sections_at + section_bytes * num_sections
        )
        if end > num_bytes:
            return f"cut short: {num_bytes} of at least {end} bytes"
        file.seek(segments_at)
        table = file.read(segment_bytes * num_segments)
    for number in range(num_segments):
        at, in_file = struct.unpack_from("<Q16xQ", table, number * segment_bytes + 8)
        if at + in_file > num_bytes:
            return f"cut short: segment {number} ends at {at + in_file} of {num_bytes} bytes"
    return ""


def device_archs(path: Path) -> set[str]:
    """Return the archs that a module holds device code for; empty for one of host code alone.

    Clang names each part of its bundle ``hip...-amdhsa--gfx942``.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return {found[1].decode() for found in _ARCH.finditer(mapped)}
