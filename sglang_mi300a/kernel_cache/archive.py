"""One file that holds all modules of a key: a zstd-compressed tar, to copy, bake in or download.

    manifest.json     schema, key and its digest, modules with paths, digests and sizes, all hashed
    files/PATH        each file once, in the manifest's order

It names no host, user, time or absolute path, so equal modules give equal archives. Reading trusts
nothing: a member that is no plain file, that the manifest does not announce, or of another size,
digest or mode is refused before or as it is read, no more is ever written than the manifest
announces, and that is bounded. Bytes only ever go into a store's objects, never to a path that the
archive names. Nothing belongs to a key until the last byte was seen to be right.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache.compiled import content_of
from sglang_mi300a.kernel_cache.key import CacheKey
from sglang_mi300a.kernel_cache.local_disk import refusing
from sglang_mi300a.kernel_cache.store import Store, StoredFile, StoredModule

SCHEMA = 1
DEFAULT_MAX_BYTES = 8 << 30
"""A published cache of this model was 59 MB; all modules of AITER's wheel are a few GB."""
_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 16 << 20
_BLOCK = 512
_CHUNK_BYTES = 1 << 20
_LEVEL = 10
_MAX_WINDOW = 1 << 27
_FEED_BYTES = 1 << 10
"""Compressed bytes taken at once; zstd makes at most 128 KiB of 4, so 32 MiB of these."""
_PADDING_BYTES = 1 << 16
"""Zeros that may follow the last member; tar pads to records of 10 KiB."""

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Contents:
    """What an archive holds.

    Attributes:
        key: What its modules depend on.
        modules: The modules.
    """

    key: CacheKey
    modules: tuple[StoredModule, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all files, uncompressed."""
        return sum(module.num_bytes for module in self.modules)


def pack(store: Store, digest: str, out: Path, advance: Advance | None = None) -> Contents:
    """Write an archive of one key's modules; it appears whole or not at all.

    Raises:
        UserError: A module is missing or damaged, or the file cannot be written.
    """
    contents = Contents(store.key(digest), tuple(store.modules(digest).values()))
    if not contents.modules:
        raise UserError(
            str(store.root),
            found=f"no modules of key {digest}",
            allowed="a key that `kernel-cache list` shows",
            do="build first: sglang-mi300a kernel-cache build",
        )
    zstd = _zstd()
    with refusing(out, "make room, or write elsewhere"):
        descriptor, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                compressor = zstd.ZstdCompressor(level=_LEVEL, write_checksum=True)
                with (
                    compressor.stream_writer(file, closefd=False) as stream,
                    tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
                ):
                    _add_all(tar, store, contents, advance)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, out)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    return contents


def _add_all(
    tar: tarfile.TarFile, store: Store, contents: Contents, advance: Advance | None
) -> None:
    manifest = _manifest_bytes(contents)
    tar.addfile(_member(_MANIFEST, len(manifest)), io.BytesIO(manifest))
    for file in _files(contents):
        path = store.object_path(file.sha256)
        with path.open("rb") as source:
            checked = _Hashing(source, advance)
            tar.addfile(_member(f"files/{file.path}", file.num_bytes), checked)
        if checked.hexdigest() != file.sha256:
            raise UserError(
                str(path),
                found="other bytes than were stored",
                allowed=f"SHA-256 {file.sha256}",
                do="build it again: delete that file, then sglang-mi300a kernel-cache build",
            )


def _member(name: str, num_bytes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = num_bytes, 0o755 if name.startswith("files/") else 0o644
    return info


class _Hashing(io.RawIOBase):
    """A file that is hashed as it is read."""

    def __init__(self, file: BinaryIO, advance: Advance | None) -> None:
        self._file = file
        self._advance = advance
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._digest.update(block)
        if self._advance is not None:
            self._advance(len(block))
        return block

    def hexdigest(self) -> str:
        """Return the digest of what was read so far."""
        return self._digest.hexdigest()


def _files(contents: Contents) -> Iterator[StoredFile]:
    """Yield every file once, by path."""
    by_path = {file.path: file for module in contents.modules for file in module.files}
    for path in sorted(by_path):
        yield by_path[path]


def _manifest_bytes(contents: Contents) -> bytes:
    body = {
        "schema": SCHEMA,
        "key": contents.key.to_data(),
        "key_digest": contents.key.digest,
        "modules": [module.to_data() for module in contents.modules],
    }
    return json.dumps({**body, "sha256": _hash(body)}, indent=1, sort_keys=True).encode()


def _hash(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# -- reading ---------------------------------------------------------------------------------------


def inspect(path: Path) -> Contents:
    """Return what an archive says it holds; reads its beginning only.

    Raises:
        UserError: It is no such archive.
    """
    with _Reader(path, _MAX_MANIFEST_BYTES + 2 * _BLOCK) as reader:
        return reader.contents()


def unpack(
    path: Path,
    store: Store,
    *,
    expected: CacheKey | None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    advance: Advance | None = None,
) -> Contents:
    """Put an archive's modules into a store.

    Args:
        path: The archive.
        store: Where to.
        expected: The only key to accept; None takes any.
        max_bytes: Most bytes it may hold, uncompressed.
        advance: Told of bytes stored.

    Raises:
        UserError: It is cut, changed, too large, of another key, or tries to lead elsewhere; then
            none of its modules belongs to a key.
    """
    store.check_writable()
    with _Reader(path, max_bytes + _MAX_MANIFEST_BYTES) as reader:
        contents = reader.contents()
        _check_key(path, contents.key, expected)
        if contents.num_bytes > max_bytes:
            raise _bad(
                path,
                f"{contents.num_bytes} bytes of modules",
                f"at most {max_bytes}",
                "raise --max-bytes if you trust where it comes from",
            )
        for file in _files(contents):
            reader.store(file, store, advance)
        reader.expect_end()
    store.publish(contents.key, contents.modules)
    return contents


def _check_key(path: Path, found: CacheKey, expected: CacheKey | None) -> None:
    if expected is not None and found != expected:
        raise UserError(
            str(path),
            found=f"modules of another key: {'; '.join(expected.differences(found))}",
            allowed=f"key {expected.digest}, which is this machine's",
            do="get the archive for this software, or build here; --any-key stores it for others",
        )


class _Reader:
    """The members of an archive, one after the other."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._left = max_bytes
        self._zstd = _zstd()

    def __enter__(self) -> _Reader:
        with refusing(self._path, "give the file that `kernel-cache pack` wrote"):
            self._file = self._path.open("rb")
        self._frame = self._zstd.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
        self._ahead = b""
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _some(self, most: int) -> bytes:
        """Return the next bytes, at most so many; none at the end of the compressed frame."""
        while not self._ahead and not self._frame.eof:
            fed = self._file.read(_FEED_BYTES)
            if not fed:
                raise self._refuse("an early end", "a complete archive")
            try:
                self._ahead = self._frame.decompress(fed)
            except self._zstd.ZstdError as error:
                raise self._refuse(f"damaged ({error})", "an unchanged archive") from error
        part, self._ahead = self._ahead[:most], self._ahead[most:]
        return part

    def _read(self, num_bytes: int) -> bytes:
        """Read exactly so many bytes, if the allowance has them."""
        if num_bytes > self._left:
            raise self._refuse("more bytes than it may hold", "no more than its manifest says")
        parts, missing = [], num_bytes
        while missing:
            part = self._some(min(missing, _CHUNK_BYTES))
            if not part:
                raise self._refuse(f"an end {missing} bytes early", "a complete archive")
            parts.append(part)
            missing -= len(part)
        self._left -= num_bytes
        return b"".join(parts)

    def _member(self) -> tarfile.TarInfo:
        try:
            info = tarfile.TarInfo.frombuf(self._read(_BLOCK), "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise self._refuse(f"no tar member ({error})", "an archive of this package") from error
        if info.type != tarfile.REGTYPE or info.linkname:
            raise self._refuse(
                f"member {info.name!r} of tar type {info.type!r}, link {info.linkname!r}",
                "plain files",
            )
        if info.mode & ~0o755:
            raise self._refuse(
                f"member {info.name!r} with mode {info.mode:04o}", "modes up to 0755, no setuid"
            )
        return info

    def contents(self) -> Contents:
        """Return the manifest."""
        info = self._member()
        if info.name != _MANIFEST or info.size > _MAX_MANIFEST_BYTES:
            raise self._refuse(
                f"first member {info.name!r} of {info.size} bytes", f"{_MANIFEST} first"
            )
        text = self._read(info.size)
        self._read(-info.size % _BLOCK)
        where = f"{self._path}: {_MANIFEST}"
        try:
            data = json.loads(text)
        except ValueError as error:
            raise self._refuse(f"a manifest that is no JSON ({error})", "JSON") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise self._refuse(f"manifest {str(data)[:60]!r}", f"schema {SCHEMA}")
        said = data.pop("sha256", None)
        if said != _hash(data):
            raise self._refuse("a manifest that was changed", f"SHA-256 {said}")
        key = CacheKey.from_data(data.get("key"), where)
        rows = data.get("modules")
        if key.digest != data.get("key_digest") or not isinstance(rows, list):
            raise self._refuse(f"key digest {data.get('key_digest')!r}", key.digest)
        modules = tuple(StoredModule.from_data(row, where) for row in rows)
        contents = Contents(key, modules)
        if len(list(_files(contents))) != sum(len(module.files) for module in modules):
            raise self._refuse("two files at one path", "each path once")
        return contents

    def store(self, file: StoredFile, store: Store, advance: Advance | None) -> None:
        """Store the next member's bytes, which must be this file's."""
        info = self._member()
        if info.name != f"files/{file.path}" or info.size != file.num_bytes:
            raise self._refuse(
                f"member {info.name!r} of {info.size} bytes",
                f"files/{file.path} of {file.num_bytes} bytes, as its manifest says",
            )
        with store.incoming() as temporary:
            with temporary.open("wb") as out:
                left = file.num_bytes
                while left:
                    block = self._read(min(left, _CHUNK_BYTES))
                    out.write(block)
                    left -= len(block)
                    if advance is not None:
                        advance(len(block))
            self._read(-file.num_bytes % _BLOCK)
            found = content_of(temporary).sha256
            if found != file.sha256:
                raise self._refuse(
                    f"files/{file.path} with SHA-256 {found}", f"SHA-256 {file.sha256}"
                )
            store.adopt(temporary, file.path)

    def expect_end(self) -> None:
        """Check that nothing but padding follows, to the checksum that ends the frame."""
        rest = 0
        while block := self._some(_BLOCK):
            rest += len(block)
            if block.strip(b"\0") or rest > _PADDING_BYTES:
                raise self._refuse("more than its manifest says", "nothing after the last file")
        if rest < 2 * _BLOCK:
            raise self._refuse("an end before tar's own", "a complete archive")
        if self._frame.unused_data or self._file.read(1):
            raise self._refuse("bytes after its end", "one archive and nothing else")

    def _refuse(self, found: str, allowed: str) -> UserError:
        return _bad(self._path, found, allowed, "get the archive again and compare its checksum")


def _bad(path: Path, found: str, allowed: str, do: str) -> UserError:
    return UserError(str(path), found=found, allowed=allowed, do=do)


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise UserError(
            "zstandard",
            found="not installed",
            allowed="the Python package that packs and unpacks archives",
            do="pip install 'sglang-mi300a[kernel-cache]'",
        ) from error
    return zstandard
