"""``manifest.json``: what a directory made by ``shard-weights`` holds, to the byte.

The file is canonical JSON (sorted keys, one tensor a line) and holds no time, host or path, so two
runs over the same checkpoint write the same bytes. Its last key, ``self_xxh3_128``, is the checksum
of everything before it: an edited manifest is refused.

Keys, version 1::

    format, version      "sglang-mi300a weights", 1
    tool_version         version of this package that wrote it
    sglang               specifier of the SGLang versions whose parameters were followed
    model                architecture, and a checksum of the sizes that decide the cut
    source               checkpoint files: name, size, checksum of the header; one checksum of the
                         tensor data that was read, and how many tensors that were
    tp, ep               ranks, and the expert-parallel ranks among them
    heads                "replicated" or "padded": what happens where ranks outnumber KV heads
    text_only, has_draft whether the visual tower is left out; whether the MTP layer is inside
    draft_requantised    whether the draft's experts, floats in the checkpoint, were made MXFP4
    layout               name of the layout of the expert weights
    neutralised_blocks   all-zero MXFP4 blocks whose scale was rewritten, over all ranks' sources
    copied               further files (config, tokenizer): name, size, checksum
    files                weight files: name, size
    tensors              one row a tensor: rank, part ("target" or "draft"), parameter name,
                         index into files, offset, dtype, shape, checksum

Checksums are xxh3_128, hexadecimal. That of a tensor of more than 16 MiB is the checksum of its
blocks' checksums, one after another as text: several threads can then check one tensor. Offsets and
sizes are bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NoReturn

import xxhash

from sglang_mi300a.errors import UserError

NAME = "manifest.json"
FORMAT = "sglang-mi300a weights"
VERSION = 1
MAX_MANIFEST_BYTES = 256 << 20
_SELF = "self_xxh3_128"

Part = Literal["target", "draft"]
PARTS: tuple[Part, ...] = ("target", "draft")
Heads = Literal["replicated", "padded"]

DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}
"""Bytes of one element, by the name that safetensors gives the type."""

_Row = tuple[int, str, str, int, int, str, list[int], str]


CHECKSUM_BLOCK_BYTES = 16 << 20
"""What of a tensor has a checksum of its own, if the tensor is larger."""


def checksum(data: Any) -> str:
    """Return the xxh3_128 of a bytes-like object, 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def of_blocks(checksums: Sequence[str]) -> str:
    """Return a tensor's checksum from those of its blocks."""
    return checksums[0] if len(checksums) == 1 else checksum("".join(checksums).encode())


class TensorChecksum:
    """The checksum of a tensor whose bytes come one after another."""

    def __init__(self) -> None:
        self._finished: list[str] = []
        self._block = xxhash.xxh3_128()
        self._left = CHECKSUM_BLOCK_BYTES

    def update(self, data: memoryview) -> None:
        """Take the next bytes."""
        while len(data):
            if not self._left:
                self._finished.append(self._block.hexdigest())
                self._block = xxhash.xxh3_128()
                self._left = CHECKSUM_BLOCK_BYTES
            part = data[: self._left]
            self._block.update(part)
            self._left -= len(part)
            data = data[len(part) :]

    def hexdigest(self) -> str:
        """Return the checksum of what was taken."""
        return of_blocks([*self._finished, self._block.hexdigest()])


@dataclass(frozen=True)
class FileFacts:
    """A file by name (relative to its directory, ``/`` between parts), size and checksum.

    Attributes:
        name: Relative name.
        size: Bytes.
        xxh3_128: Checksum of the content, of the header alone for a checkpoint's weight file, or
            "" for an artifact's weight file (its tensors have their own).
    """

    name: str
    size: int
    xxh3_128: str = ""


@dataclass(frozen=True)
class TensorFacts:
    """One tensor of one rank.

    Attributes:
        rank: Tensor-parallel rank.
        part: ``"target"`` or ``"draft"``.
        name: Parameter name in SGLang's model.
        file: Name of the file it lies in.
        offset: First byte in that file.
        dtype: Element type as stored.
        shape: Shape on this rank.
        xxh3_128: Checksum of its bytes.
    """

    rank: int
    part: Part
    name: str
    file: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    xxh3_128: str

    @property
    def size(self) -> int:
        """Bytes."""
        return size_bytes(self.dtype, self.shape)


def size_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of a dense tensor."""
    size = DTYPE_BYTES[dtype]
    for extent in shape:
        size *= extent
    return size


@dataclass(frozen=True)
class Manifest:
    """A whole manifest; see the module's text for the keys."""

    tool_version: str
    sglang: str
    architecture: str
    sizes_xxh3_128: str
    source_files: tuple[FileFacts, ...]
    source_data_xxh3_128: str
    source_num_tensors: int
    tp: int
    ep: int
    heads: Heads
    text_only: bool
    has_draft: bool
    draft_requantised: bool
    layout: str
    neutralised_blocks: int
    copied: tuple[FileFacts, ...]
    files: tuple[FileFacts, ...]
    tensors: tuple[TensorFacts, ...]

    def of_rank(self, rank: int, part: Part) -> list[TensorFacts]:
        """Return one rank's tensors of one model, in file order."""
        return [t for t in self.tensors if t.rank == rank and t.part == part]

    def render(self) -> str:
        """Return the text of ``manifest.json``."""
        index = {file.name: i for i, file in enumerate(self.files)}
        rows: list[_Row] = [
            (t.rank, t.part, t.name, index[t.file], t.offset, t.dtype, list(t.shape), t.xxh3_128)
            for t in self.tensors
        ]
        head = {
            "format": FORMAT,
            "version": VERSION,
            "tool_version": self.tool_version,
            "sglang": self.sglang,
            "model": {"architecture": self.architecture, "sizes_xxh3_128": self.sizes_xxh3_128},
            "source": {
                "files": [_file_row(file) for file in self.source_files],
                "data_xxh3_128": self.source_data_xxh3_128,
                "num_tensors": self.source_num_tensors,
            },
            "tp": self.tp,
            "ep": self.ep,
            "heads": self.heads,
            "text_only": self.text_only,
            "has_draft": self.has_draft,
            "draft_requantised": self.draft_requantised,
            "layout": self.layout,
            "neutralised_blocks": self.neutralised_blocks,
            "copied": [_file_row(file) for file in self.copied],
            "files": [[file.name, file.size] for file in self.files],
        }
        lines = [f' "{key}": {_compact(head[key])},' for key in sorted(head)]
        lines.append(' "tensors": [')
        lines.append(",\n".join(f"  {_compact(row)}" for row in rows))
        lines.append(" ],")
        body = "{\n" + "\n".join(lines) + "\n"
        return f'{body} "{_SELF}": "{checksum(body.encode())}"\n}}\n'


def _file_row(file: FileFacts) -> list[Any]:
    return [file.name, file.size, file.xxh3_128]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def is_artifact(directory: Path) -> bool:
    """Return whether a model directory claims to be made by ``shard-weights``."""
    return os.path.lexists(directory / NAME)


def read(directory: Path) -> Manifest:
    """Return the manifest of an artifact.

    Raises:
        UserError: It is missing, no manifest of this version, edited, or contradicts itself.
    """
    path = directory / NAME
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            _refuse(path, f"{path.stat().st_size} bytes", f"at most {MAX_MANIFEST_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        _refuse(path, f"not readable ({error.strerror})", "a manifest written by shard-weights")
    except UnicodeDecodeError as error:
        _refuse(path, f"not UTF-8 ({error.reason} at byte {error.start})", "UTF-8 JSON")
    return parse(text, path)


def parse(text: str, path: Path) -> Manifest:
    """Return the manifest in ``text``; ``path`` is only named in errors.

    Raises:
        UserError: As :func:`read`.
    """
    data = _load(text, path)
    version = data.get("version")
    if data.get("format") != FORMAT or version != VERSION:
        _refuse(
            path,
            f"format {data.get('format')!r}, version {version!r}",
            f"format {FORMAT!r}, version {VERSION}",
            "run shard-weights of this version again",
        )
    manifest = _Fields(path, data).manifest()
    if manifest.render() != text:
        _refuse(path, "content that its own checksum does not cover", "the file as it was written")
    return manifest


def _load(text: str, path: Path) -> dict[str, Any]:
    try:
        data = json.loads(text, object_pairs_hook=_no_duplicates)
    except _DuplicateKey as error:
        _refuse(path, f"key {error.args[0]!r} twice", "each key once")
    except RecursionError:
        _refuse(path, "JSON nested too deeply", "a manifest written by shard-weights")
    except ValueError as error:
        _refuse(path, f"no JSON ({error})", "a manifest written by shard-weights")
    if not isinstance(data, dict):
        _refuse(path, f"JSON of type {type(data).__name__}", "a JSON object")
    body, mark, tail = text.rpartition(f' "{_SELF}": ')
    if data.get("format") == FORMAT and data.get("version") == VERSION:
        if not mark or tail != f'"{checksum(body.encode())}"\n}}\n':
            _refuse(path, "a checksum that does not match the rest", "the file as it was written")
    return data


class _DuplicateKey(ValueError):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _DuplicateKey(key)
        result[key] = value
    return result


def _refuse(path: Path, found: str, allowed: str, do: str = "") -> NoReturn:
    raise UserError(
        str(path),
        found=found,
        allowed=allowed,
        do=do or "run shard-weights again, or copy the artifact again",
    )


class _Fields:
    """Reads typed fields and checks what they say of each other."""

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self.path = path
        self.data = data

    def manifest(self) -> Manifest:
        model = self._get("model", dict)
        source = self._get("source", dict)
        files = self._files("files", self._get("files", list), with_checksum=False)
        tp, ep = self._size("tp"), self._size("ep")
        if tp % ep:
            _refuse(self.path, f"tp {tp}, ep {ep}", "ep a divisor of tp")
        heads: Heads = self._get("heads", str)
        if heads not in ("replicated", "padded"):
            _refuse(self.path, f"heads {heads!r}", "'replicated' or 'padded'")
        has_draft = self._get("has_draft", bool)
        draft_requantised = self._get("draft_requantised", bool)
        if draft_requantised and not has_draft:
            _refuse(self.path, "draft_requantised without a draft", "a draft that was requantised")
        return Manifest(
            tool_version=self._get("tool_version", str),
            sglang=self._get("sglang", str),
            architecture=self._text("model.architecture", model.get("architecture")),
            sizes_xxh3_128=self._text("model.sizes_xxh3_128", model.get("sizes_xxh3_128")),
            source_files=self._files("source.files", source.get("files"), with_checksum=True),
            source_data_xxh3_128=self._text("source.data_xxh3_128", source.get("data_xxh3_128")),
            source_num_tensors=self._natural("source.num_tensors", source.get("num_tensors")),
            tp=tp,
            ep=ep,
            heads=heads,
            text_only=self._get("text_only", bool),
            has_draft=has_draft,
            draft_requantised=draft_requantised,
            layout=self._get("layout", str),
            neutralised_blocks=self._natural(
                "neutralised_blocks", self.data.get("neutralised_blocks")
            ),
            copied=self._files("copied", self._get("copied", list), with_checksum=True),
            files=files,
            tensors=self._tensors(files, tp, has_draft),
        )

    def _get(self, key: str, kind: type) -> Any:
        value = self.data.get(key)
        if type(value) is not kind:
            _refuse(self.path, f"{key} {_shown(value)}", f"{key} of type {kind.__name__}")
        return value

    def _text(self, key: str, value: Any) -> str:
        if not isinstance(value, str):
            _refuse(self.path, f"{key} {_shown(value)}", f"{key} of type str")
        return value

    def _natural(self, key: str, value: Any) -> int:
        if type(value) is not int or value < 0:
            _refuse(self.path, f"{key} {_shown(value)}", f"{key} a natural number")
        return value

    def _size(self, key: str) -> int:
        value = self._natural(key, self.data.get(key))
        if value < 1:
            _refuse(self.path, f"{key} 0", f"{key} of at least 1")
        return value

    def _files(self, key: str, rows: Any, *, with_checksum: bool) -> tuple[FileFacts, ...]:
        if not isinstance(rows, list):
            _refuse(self.path, f"{key} {_shown(rows)}", f"{key} a list")
        files = []
        for i, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != (3 if with_checksum else 2):
                _refuse(self.path, f"{key}[{i}] {_shown(row)}", "name, size and checksum")
            name = self._text(f"{key}[{i}][0]", row[0])
            self._check_inside(f"{key}[{i}]", name)
            size = self._natural(f"{key}[{i}][1]", row[1])
            digest = self._text(f"{key}[{i}][2]", row[2]) if with_checksum else ""
            files.append(FileFacts(name, size, digest))
        names = [file.name for file in files]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            _refuse(self.path, f"{key} names {twice!r} twice", "each file once")
        return tuple(files)

    def _check_inside(self, key: str, name: str) -> None:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\0" in name or "\\" in name:
            _refuse(self.path, f"{key} names {name!r}", "a name inside the artifact")

    def _tensors(
        self, files: tuple[FileFacts, ...], tp: int, has_draft: bool
    ) -> tuple[TensorFacts, ...]:
        found = []
        for i, row in enumerate(self._get("tensors", list)):
            if not isinstance(row, list) or len(row) != 8:
                _refuse(self.path, f"tensors[{i}] {_shown(row)}", "eight columns")
            found.append(self._tensor(f"tensors[{i}]", row, files, tp))
        keys = [(t.rank, t.part, t.name) for t in found]
        if len(set(keys)) != len(keys):
            seen: set[tuple[int, str, str]] = set()
            twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            _refuse(self.path, f"rank {twice[0]} {twice[1]} {twice[2]} twice", "each tensor once")
        parts: tuple[Part, ...] = PARTS if has_draft else ("target",)
        for part in PARTS:
            ranks = sorted({t.rank for t in found if t.part == part})
            wanted = list(range(tp)) if part in parts else []
            if ranks != wanted:
                _refuse(self.path, f"{part} tensors of ranks {ranks}", f"of ranks {wanted}")
        self._check_no_overlap(found)
        return tuple(found)

    def _tensor(
        self, key: str, row: list[Any], files: tuple[FileFacts, ...], tp: int
    ) -> TensorFacts:
        rank, part, name, file, offset, dtype, shape, digest = row
        if self._natural(f"{key} rank", rank) >= tp:
            _refuse(self.path, f"{key} of rank {rank}", f"ranks below tp = {tp}")
        if part not in PARTS:
            _refuse(self.path, f"{key} part {_shown(part)}", "'target' or 'draft'")
        if self._natural(f"{key} file", file) >= len(files):
            _refuse(self.path, f"{key} in file {file}", f"one of {len(files)} files")
        if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
            _refuse(self.path, f"{key} dtype {_shown(dtype)}", ", ".join(DTYPE_BYTES))
        if not isinstance(shape, list):
            _refuse(self.path, f"{key} shape {_shown(shape)}", "a list of natural numbers")
        extents = tuple(self._natural(f"{key} shape", extent) for extent in shape)
        tensor = TensorFacts(
            rank=rank,
            part=part,
            name=self._text(f"{key} name", name),
            file=files[file].name,
            offset=self._natural(f"{key} offset", offset),
            dtype=dtype,
            shape=extents,
            xxh3_128=self._text(f"{key} checksum", digest),
        )
        if tensor.offset + tensor.size > files[file].size:
            _refuse(
                self.path,
                f"{tensor.name} up to byte {tensor.offset + tensor.size} of {tensor.file}",
                f"inside its {files[file].size} bytes",
            )
        return tensor

    def _check_no_overlap(self, tensors: list[TensorFacts]) -> None:
        ends: dict[str, tuple[int, str]] = {}
        for tensor in sorted(tensors, key=lambda t: (t.file, t.offset, t.offset + t.size)):
            end, before = ends.get(tensor.file, (0, ""))
            if tensor.offset < end:
                _refuse(
                    self.path,
                    f"{tensor.name} at byte {tensor.offset} of {tensor.file} inside {before}",
                    "tensors that do not overlap",
                )
            ends[tensor.file] = (tensor.offset + tensor.size, tensor.name)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
