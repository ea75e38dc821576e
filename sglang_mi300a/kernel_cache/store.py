"""The store: compiled modules by content, and for each key the list of those that belong to it.

    objects/ab/ab12...          a module's bytes, named by their SHA-256; never changed
    entries/KEY/key.json        what the key means
    entries/KEY/modules/NAME.json  files of one module: path, digest, size

Everything appears under its name by one rename, complete. A key's modules are files of their own,
so any number of processes on any number of nodes may publish at once and lose nothing; that needs
no lock, and so works on NFS and Lustre. What a file system tore is found by its digest as it is
read, and counts as missing.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglang_mi300a import whole_files
from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache.compiled import Content, content_of
from sglang_mi300a.kernel_cache.key import CacheKey
from sglang_mi300a.kernel_cache.local_disk import refusing

SCHEMA = 1
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
"""A module's name, and each part of a file's path: nothing hidden, no separators."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEPT_UNREFERENCED_S = 24 * 3600.0
_STALE_TRIES = 5
_STALE_PAUSE_S = 0.2


@dataclass(frozen=True)
class StoredFile:
    """One file of a module.

    Attributes:
        path: Where it lies below ``AITER_JIT_DIR``, with slashes.
        sha256: Its content.
        num_bytes: Its size.
    """

    path: str
    sha256: str
    num_bytes: int


@dataclass(frozen=True)
class StoredModule:
    """One module of a key."""

    name: str
    files: tuple[StoredFile, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.num_bytes for file in self.files)

    def to_data(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {"schema": SCHEMA, "name": self.name, "files": [asdict(f) for f in self.files]}

    @classmethod
    def from_data(cls, data: object, where: str) -> StoredModule:
        """Read one back, trusting nothing.

        Raises:
            UserError: It is no such record, or a path in it leads elsewhere.
        """
        if not isinstance(data, dict) or set(data) != {"schema", "name", "files"}:
            raise _bad_record(where, f"no record of a module ({str(data)[:60]!r})")
        if data["schema"] != SCHEMA or not NAME.fullmatch(str(data["name"])):
            raise _bad_record(where, f"schema {data['schema']!r}, name {data['name']!r}")
        if not isinstance(data["files"], list) or not data["files"]:
            raise _bad_record(where, "no list of files")
        return cls(data["name"], tuple(_file_from(row, where) for row in data["files"]))


def _file_from(row: object, where: str) -> StoredFile:
    if not isinstance(row, dict) or set(row) != {"path", "sha256", "num_bytes"}:
        raise _bad_record(where, f"no record of a file ({str(row)[:60]!r})")
    parts = str(row["path"]).split("/")
    if not all(NAME.fullmatch(part) and set(part) != {"."} for part in parts):
        raise _bad_record(where, f"path {row['path']!r}")
    size = row["num_bytes"]
    is_size = isinstance(size, int) and not isinstance(size, bool) and size >= 0
    if not _DIGEST.fullmatch(str(row["sha256"])) or not is_size:
        raise _bad_record(where, f"digest {row['sha256']!r}, size {size!r}")
    return StoredFile(row["path"], row["sha256"], size)


class Store:
    """A store at one directory, which need not exist to be read.

    Args:
        root: The directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    # -- reading ---------------------------------------------------------------------------------

    def digests(self) -> Iterator[str]:
        """Yield the digests of all keys.

        Raises:
            UserError: The store cannot be read.
        """
        with refusing(self.root, "ask its owner to make it readable, or name another store"):
            entries = self.root / "entries"
            if entries.is_dir():
                names = sorted(path.name for path in entries.iterdir())
                yield from (name for name in names if not name.startswith("."))

    def key(self, digest: str) -> CacheKey:
        """Return what a key means.

        Raises:
            UserError: Its record is missing, damaged, or is of another key.
        """
        path = self._entry(digest) / "key.json"
        found = CacheKey.from_data(_json(path), str(path))
        if found.digest != digest:
            raise _bad_record(str(path), f"the record of key {found.digest}")
        return found

    def modules(self, digest: str) -> dict[str, StoredModule]:
        """Return a key's modules by name; none for a key that is not there.

        Raises:
            UserError: A record is damaged, or the store cannot be read.
        """
        folder = self._entry(digest) / "modules"
        with refusing(self.root, "ask its owner to make it readable, or name another store"):
            if not folder.is_dir():
                return {}
            paths = sorted(p for p in folder.iterdir() if p.suffix == ".json" and p.name[0] != ".")
        found = {}
        for path in paths:
            module = StoredModule.from_data(_json(path), str(path))
            if module.name != path.stem:
                raise _bad_record(str(path), f"the record of module {module.name}")
            found[module.name] = module
        return found

    def whole(self, digest: str, name: str) -> StoredModule | None:
        """Return a key's module if every byte of it is there.

        Raises:
            UserError: A record is damaged, or the store cannot be read.
        """
        found = self.modules(digest).get(name)
        if found is None:
            return None
        for file in found.files:
            path = self.object_path(file.sha256)
            if not path.is_file() or content_of(path).sha256 != file.sha256:
                return None
        return found

    def object_path(self, sha256: str) -> Path:
        """Return where an object lies, or would."""
        return self.root / "objects" / sha256[:2] / sha256

    def copy_out(self, file: StoredFile, target: Path) -> bool:
        """Copy a file out, checked; return whether it was there and whole.

        Nothing is left at ``target`` otherwise.

        Raises:
            UserError: The copy cannot be written.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _opened(self.object_path(file.sha256)) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
        except FileNotFoundError:
            return False
        except OSError as error:
            target.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                with refusing(target, "make room, or name another directory"):
                    raise
            return False  # EIO, ESTALE: as good as missing
        if content_of(target) != Content(file.sha256, file.num_bytes):
            target.unlink()
            return False
        target.chmod(0o755)
        return True

    def problems(self, digest: str, advance: Callable[[int], None] | None = None) -> list[str]:
        """Return what is wrong with a key's modules, in words, reading every byte.

        Args:
            digest: The key.
            advance: Told of bytes read.
        """
        try:
            modules = self.modules(digest)
            self.key(digest)
        except UserError as damaged:
            return [str(damaged)]
        found = []
        for module in modules.values():
            for file in module.files:
                path = self.object_path(file.sha256)
                try:
                    content = content_of(path)
                except OSError as error:
                    found.append(f"{module.name}: {file.path}: {error.strerror} ({path})")
                    continue
                if content != Content(file.sha256, file.num_bytes):
                    found.append(f"{module.name}: {file.path}: other bytes than were stored")
                if advance is not None:
                    advance(file.num_bytes)
        return found

    # -- writing ---------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Make the store's folders, or say why not.

        Raises:
            UserError: It is another's, read-only or full.
        """
        with refusing(self.root, "name a store that you may write: --store DIR"):
            for name in ("objects", "entries", "tmp"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            descriptor, probe = tempfile.mkstemp(dir=self.root / "tmp")
            os.close(descriptor)
            os.unlink(probe)

    def put(self, source: Path, path: str) -> StoredFile:
        """Store a file's bytes; return the row that names them.

        Args:
            source: The file, which must not change meanwhile.
            path: Where it belongs below ``AITER_JIT_DIR``.

        Raises:
            UserError: The store cannot be written.
        """
        with self.incoming() as temporary:
            with source.open("rb") as file, temporary.open("wb") as out:
                shutil.copyfileobj(file, out, 1 << 20)
            return self.adopt(temporary, path)

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """Give a path on the store's file system to write to; nothing is left there afterwards.

        Raises:
            UserError: The store cannot be written.
        """
        with refusing(self.root, "make room, or name a store that you may write: --store DIR"):
            descriptor, name = tempfile.mkstemp(dir=self.root / "tmp")
            os.close(descriptor)
            try:
                yield Path(name)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(name)

    def adopt(self, temporary: Path, path: str) -> StoredFile:
        """Make a complete file of :meth:`incoming` an object."""
        whole_files.sync(temporary)
        content = content_of(temporary)
        target = self.object_path(content.sha256)
        if _is_there(target, content):
            with suppress(OSError):  # another's, perhaps; it is only kept longer
                os.utime(target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.chmod(0o444)
            _rename(temporary, target, lambda: _is_there(target, content))
        return StoredFile(path, content.sha256, content.num_bytes)

    def publish(self, key: CacheKey, modules: Iterable[StoredModule]) -> None:
        """Let modules, whose bytes are stored, belong to a key.

        Raises:
            UserError: The store cannot be written, or an object is not there.
        """
        entry = self._entry(key.digest)
        rows = list(modules)
        for module in rows:
            for file in module.files:
                wanted = Content(file.sha256, file.num_bytes)
                if not _is_there(self.object_path(file.sha256), wanted):
                    raise _bad_record(str(entry), f"no object of {module.name}: {file.path}")
        with refusing(self.root, "make room, or name a store that you may write: --store DIR"):
            (entry / "modules").mkdir(parents=True, exist_ok=True)
            self._write(entry / "key.json", key.to_data())
            for module in rows:
                self._write(entry / "modules" / f"{module.name}.json", module.to_data())

    def _write(self, path: Path, data: Mapping[str, Any]) -> None:
        text = (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()
        with self.incoming() as temporary:
            temporary.write_bytes(text)
            temporary.chmod(0o444)
            whole_files.sync(temporary)
            _rename(temporary, path, lambda: path.is_file() and path.read_bytes() == text)

    # -- tidying ---------------------------------------------------------------------------------

    def remove(self, digest: str) -> None:
        """Forget a key; its objects stay until :meth:`unreferenced` are removed."""
        with refusing(self.root, "ask the store's owner"):
            shutil.rmtree(self._entry(digest))

    def unreferenced(self, now: float | None = None) -> list[Path]:
        """Return objects and leftovers that no key names, and that nobody wrote today.

        Bytes are stored before the record that names them, so the newest are left alone.
        """
        used = {
            file.sha256
            for digest in self.digests()
            for module in self.modules(digest).values()
            for file in module.files
        }
        before = (time.time() if now is None else now) - _KEPT_UNREFERENCED_S
        found = []
        for path in (*self.root.glob("objects/*/*"), *self.root.glob("tmp/*")):
            with suppress(FileNotFoundError):
                if path.name not in used and path.stat().st_mtime < before:
                    found.append(path)
        return sorted(found)

    def _entry(self, digest: str) -> Path:
        return self.root / "entries" / digest


def _json(path: Path) -> object:
    try:
        with _opened(path) as file:
            return json.loads(file.read())
    except (OSError, ValueError) as error:
        raise _bad_record(str(path), f"unreadable ({error})") from error


def _opened(path: Path) -> Any:
    """Open a file for reading; tell a client of NFS that its handle is stale, by asking again."""
    for attempt in range(_STALE_TRIES):
        try:
            return path.open("rb")
        except OSError as error:
            if error.errno != errno.ESTALE or attempt == _STALE_TRIES - 1:
                raise
            time.sleep(_STALE_PAUSE_S)
    raise AssertionError


def _is_there(path: Path, content: Content) -> bool:
    try:
        return content_of(path) == content
    except OSError:
        return False


def _rename(temporary: Path, target: Path, arrived: Callable[[], bool]) -> None:
    """Rename, and take an error for what it is only if the target is not there.

    An NFS server that answers twice says "no such file" to a rename that it has done.
    """
    try:
        os.replace(temporary, target)
    except OSError:
        if not arrived():
            raise
    whole_files.sync(target.parent)


def _bad_record(where: str, found: str) -> UserError:
    return UserError(
        where,
        found=found,
        allowed="a record as `kernel-cache build` writes it",
        do="delete that file and build again, or unpack the archive again",
    )
