"""The directory that one server's AITER reads and writes: its own, and gone with it.

Every launch gets a fresh directory on the node's own disk with a copy of each module of its key, so
what AITER builds lazily neither fails on a read-only store nor changes a shared one, and no lock
that others left is in the way. What was built lazily is kept for this user's next launch on this
node, looked at first; ``kernel-cache record`` puts it into the store.

Triton's and Inductor's caches are safe among processes of one node and hold absolute paths, so they
stay on the node, one directory a key.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache import local_disk, needed, owner_lock, recording
from sglang_mi300a.kernel_cache.key import CacheKey
from sglang_mi300a.kernel_cache.local_disk import refusing
from sglang_mi300a.kernel_cache.owner_lock import OwnerLock
from sglang_mi300a.kernel_cache.store import Store

Say = Callable[[str], None]
_KEY = "key.json"


def kept_store(local: Path) -> Store:
    """Return this user's store on this node of what servers built lazily."""
    return Store(local / "kept")


@dataclass
class LaunchCopy:
    """One launch's directory.

    Attributes:
        directory: What ``AITER_JIT_DIR`` is set to.
        key: The key its modules are of.
        local: This user's directory on this node.
        missing: Names of needed modules that no store had.
        damaged: Modules whose bytes were not those stored; they count as missing.
        num_bytes: Bytes copied.
    """

    directory: Path
    key: CacheKey
    local: Path
    missing: tuple[str, ...]
    damaged: tuple[str, ...]
    num_bytes: int
    _lock: OwnerLock

    def environment(self) -> dict[str, str]:
        """Return what AITER, Triton and Inductor read.

        Templates of AITER before its move into ``AITER_JIT_DIR`` look at ``AITER_ROOT_DIR``.
        """
        return {
            "AITER_JIT_DIR": str(self.directory),
            "AITER_ROOT_DIR": str(self.directory),
            "TRITON_CACHE_DIR": str(self.local / "triton" / self.key.digest),
            "TORCHINDUCTOR_CACHE_DIR": str(self.local / "inductor" / self.key.digest),
        }

    def close(self, say: Say) -> None:
        """Keep what was built meanwhile and remove the directory; a second time does nothing."""
        if self.directory.is_dir():
            _keep(self.directory, self.key, self.local, say)
            shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.release()


def make(
    key: CacheKey, stores: Sequence[Store], local: Path, prebuilt: Path, say: Say
) -> LaunchCopy:
    """Make the directory for one launch.

    Args:
        key: What this machine would build.
        stores: Where modules are looked for, the first first.
        local: This user's directory on this node; made if need be.
        prebuilt: Where AITER's own compiled modules lie; used where no store has one.
        say: Told what is worth a line.

    Raises:
        UserError: The directory cannot be made or filled.
    """
    local_disk.prepare(local)
    local_disk.check_loadable(local)
    keep_from_the_dead(local, say)
    with refusing(local, "make room, or name another directory"):
        for folder in ("launches", f"triton/{key.digest}", f"inductor/{key.digest}"):
            (local / folder).mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f"{key.digest[:12]}-", dir=local / "launches"))
        lock = OwnerLock(directory.with_suffix(".lock"), str(directory), wait_s=0).__enter__()
        try:
            (directory / "build").mkdir()  # AITER's ranks expect it: only a main process makes it
            (directory / _KEY).write_text(json.dumps(key.to_data()), encoding="utf-8")
            names, damaged, num_bytes = _fill(directory, key, stores)
            _link_prebuilt(directory, prebuilt)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            lock.release()
            raise
    missing = tuple(name for name in needed.names() if name not in names)
    return LaunchCopy(directory, key, local, missing, damaged, num_bytes, lock)


def _fill(
    directory: Path, key: CacheKey, stores: Sequence[Store]
) -> tuple[set[str], tuple[str, ...], int]:
    names: set[str] = set()
    damaged: list[str] = []
    num_bytes = 0
    for store in stores:
        for module in store.modules(key.digest).values():
            if module.name in names:
                continue
            whole = [store.copy_out(file, directory / file.path) for file in module.files]
            if all(whole):
                names.add(module.name)
                num_bytes += module.num_bytes
            else:
                damaged.append(f"{module.name} of {store.root}")
                for file in module.files:
                    (directory / file.path).unlink(missing_ok=True)
    return names, tuple(damaged), num_bytes


def _link_prebuilt(directory: Path, prebuilt: Path) -> None:
    """Link what came with AITER: many, large, and on this node's disk already.

    AITER removes a module before it builds it again, so the link goes and what it names stays.
    """
    for path in sorted(prebuilt.glob("*.so")):
        place = directory / path.name
        if not place.exists():
            place.symlink_to(path.resolve())


def _keep(directory: Path, key: CacheKey, local: Path, say: Say) -> None:
    store = kept_store(local)
    try:
        found = recording.find(directory, key.arch)
        if not found:
            return
        store.check_writable()
        for module in recording.record(found, key, store, say):
            say(f"kept for the next start: {module.name}, built by this server")
    except UserError as error:  # a full disk, say: then it is built again
        say(str(error))


def left_by_the_dead(local: Path) -> list[Path]:
    """Return directories of launches whose process has ended."""
    return _unheld(local / "launches")


def leftover_staging(local: Path) -> list[Path]:
    """Return directories of builds whose process has ended."""
    return _unheld(local / "staging")


def _unheld(folder: Path) -> list[Path]:
    return [
        directory
        for directory in sorted(folder.glob("*"))
        if directory.is_dir() and not owner_lock.is_held(directory.with_suffix(".lock"))
    ]


def keep_from_the_dead(local: Path, say: Say) -> list[Path]:
    """Keep what killed servers built, and remove their directories; return those."""
    removed = []
    for directory in left_by_the_dead(local):
        lock = directory.with_suffix(".lock")
        try:
            # Two that look at once: the second waits for the first and finds nothing left.
            with OwnerLock(lock, str(directory), wait_s=60):
                if (directory / _KEY).is_file():
                    data = json.loads((directory / _KEY).read_text(encoding="utf-8"))
                    _keep(directory, CacheKey.from_data(data, str(directory)), local, say)
                shutil.rmtree(directory, ignore_errors=True)
        except (UserError, ValueError, OSError) as error:
            say(f"left alone: {directory}: {error}")
            continue
        removed.append(directory)
    return removed
