"""A strict reader and writer of safetensors headers; no tensor data is touched here.

A file is: 8 bytes little-endian header size, a JSON object, then the data. Each entry of the object
gives ``dtype``, ``shape`` and ``data_offsets`` relative to the data. Data is dense: the tensors
follow one another without gap or overlap and end where the file ends. The header may end in spaces,
which is how :func:`render` puts the data on a page boundary.

Source: the format section of the safetensors README.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sglang_mi300a.artifact_manifest import DTYPE_BYTES, size_bytes
from sglang_mi300a.errors import UserError

MAX_HEADER_BYTES = 100_000_000
"""The bound that the safetensors library sets."""
LENGTH_BYTES = 8
DATA_ALIGNMENT = 4096
"""Data of files written here starts at a multiple of this, as direct reads want."""
METADATA = "__metadata__"

# Types of the format whose elements are smaller than a byte: named in the error, not read.
_SUB_BYTE_DTYPES = ("F4", "F6_E2M3", "F6_E3M2")


class HeaderError(UserError):
    """A file that is no well-formed safetensors file."""


class Truncated(HeaderError):
    """The file ends before its header or its data does."""


class TrailingBytes(HeaderError):
    """The file goes on after its last tensor."""


class HeaderSizeOutOfRange(HeaderError):
    """The stated header size is nothing a header can have."""


class BadHeaderText(HeaderError):
    """The header is no JSON object of the expected form."""


class DuplicateTensor(HeaderError):
    """A name occurs twice."""


class UnknownDtype(HeaderError):
    """An element type that this reader does not know."""


class BadShape(HeaderError):
    """A shape that is no list of natural numbers."""


class BadOffsets(HeaderError):
    """Offsets that are no pair, or do not hold what dtype and shape need."""


class NotDense(HeaderError):
    """Tensors that overlap, or leave a gap."""


@dataclass(frozen=True)
class HeaderTensor:
    """One tensor of a file.

    Attributes:
        name: Its name.
        dtype: Element type.
        shape: Its shape; () for a scalar.
        offset: First byte, from the start of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes."""
        return size_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class Header:
    """A file's header.

    Attributes:
        text: The header's bytes, without the 8 of its length.
        data_start: First byte of data.
        tensors: In data order.
    """

    text: bytes
    data_start: int
    tensors: tuple[HeaderTensor, ...]


def read(path: Path) -> Header:
    """Return the header of a file, checked against the file's size.

    Raises:
        HeaderError: The file is malformed; the subclass says how.
        UserError: The file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(LENGTH_BYTES)
            _check_length(path, prefix, size)
            text = file.read(int.from_bytes(prefix, "little"))
    except OSError as error:
        raise UserError(
            str(path),
            found=f"not readable ({error.strerror})",
            allowed="a safetensors file",
            do="copy the file here again, or correct the path",
        ) from error
    return parse(text, size, path)


def _check_length(path: Path, prefix: bytes, file_size: int) -> None:
    if len(prefix) < LENGTH_BYTES:
        _refuse(
            Truncated,
            path,
            f"{file_size} bytes",
            "at least the 8 bytes of a header's length",
        )
    length = int.from_bytes(prefix, "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        _refuse(
            HeaderSizeOutOfRange, path, f"a header of {length} bytes", f"2 to {MAX_HEADER_BYTES}"
        )
    if LENGTH_BYTES + length > file_size:
        _refuse(
            Truncated,
            path,
            f"{file_size} bytes",
            f"{LENGTH_BYTES + length} bytes of header before the data",
        )


def parse(text: bytes, file_size: int, path: Path) -> Header:
    """Return the header in ``text``.

    Args:
        text: The header's bytes.
        file_size: Bytes of the whole file.
        path: Named in errors only.

    Raises:
        HeaderError: As :func:`read`.
    """
    entries = _load(text, path)
    data_start = LENGTH_BYTES + len(text)
    tensors = sorted(
        (
            _tensor(name, entry, data_start, path)
            for name, entry in entries.items()
            if name != METADATA
        ),
        key=lambda tensor: (tensor.offset, tensor.offset + tensor.size),
    )
    _check_metadata(entries.get(METADATA, {}), path)
    end, before = data_start, "the header"
    for tensor in tensors:
        if tensor.offset != end:
            what = "inside" if tensor.offset < end else "after a gap behind"
            _refuse(
                NotDense,
                path,
                f"{tensor.name} at byte {tensor.offset}, {what} {before} (which ends at {end})",
                "tensors one after another",
            )
        end, before = tensor.offset + tensor.size, tensor.name
    if end > file_size:
        _refuse(
            Truncated,
            path,
            f"{file_size} bytes",
            f"{end} bytes, where {before} ends",
        )
    if end < file_size:
        _refuse(
            TrailingBytes,
            path,
            f"{file_size - end} bytes after the last tensor",
            f"{end} bytes in all",
        )
    return Header(text, data_start, tuple(tensors))


def _load(text: bytes, path: Path) -> dict[str, Any]:
    allowed = "a JSON object of tensors"
    if text[:1] != b"{":
        _refuse(BadHeaderText, path, f"a header that starts with {text[:8]!r}", allowed)
    try:
        entries = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=lambda pairs: _without_duplicates(pairs, path),
        )
    except RecursionError:
        _refuse(BadHeaderText, path, "a header nested too deeply", allowed)
    except ValueError as error:
        _refuse(BadHeaderText, path, f"a header that is no JSON ({error})", allowed)
    assert isinstance(entries, dict)  # it starts with a brace
    return entries


def _without_duplicates(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            _refuse(DuplicateTensor, path, f"{key!r} twice", "each name once")
        result[key] = value
    return result


def _tensor(name: str, entry: Any, data_start: int, path: Path) -> HeaderTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        keys = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        _refuse(BadHeaderText, path, f"{name} with {keys}", "dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        note = " (elements smaller than a byte)" if dtype in _SUB_BYTE_DTYPES else ""
        _refuse(UnknownDtype, path, f"{name} of dtype {dtype!r}{note}", ", ".join(DTYPE_BYTES))
    if not isinstance(shape, list) or not all(_is_natural(extent) for extent in shape):
        _refuse(BadShape, path, f"{name} of shape {shape!r}", "a list of natural numbers")
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(_is_natural(offset) for offset in offsets)
    ):
        _refuse(BadOffsets, path, f"{name} with data_offsets {offsets!r}", "[begin, end]")
    begin, end = offsets
    needed = size_bytes(dtype, shape)
    if end - begin != needed:
        _refuse(
            BadOffsets,
            path,
            f"{name} with {end - begin} bytes",
            f"{needed} bytes for {dtype} {shape}",
        )
    return HeaderTensor(name, dtype, tuple(shape), data_start + begin)


def _is_natural(value: Any) -> bool:
    return type(value) is int and value >= 0


def _check_metadata(metadata: Any, path: Path) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _refuse(BadHeaderText, path, f"{METADATA} that is no map of strings", "strings only")


def _refuse(kind: type[HeaderError], path: Path, found: str, allowed: str) -> NoReturn:
    raise kind(
        str(path),
        found=found,
        allowed=allowed,
        do="fetch or write the file again; it is damaged or was not written completely",
    )


def render(tensors: Iterable[tuple[str, str, Sequence[int]]]) -> bytes:
    """Return length and header of a file whose data starts at a multiple of 4096 bytes.

    Args:
        tensors: Name, dtype and shape in data order.
    """
    entries: dict[str, Any] = {METADATA: {"format": "pt"}}
    begin = 0
    for name, dtype, shape in tensors:
        end = begin + size_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode("utf-8")
    padding = -(LENGTH_BYTES + len(text)) % DATA_ALIGNMENT
    text += b" " * padding
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
