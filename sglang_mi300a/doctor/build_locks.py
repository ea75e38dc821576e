"""What kernel builds leave: libraries, and lock files with their holders. Nothing is deleted."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from sglang_mi300a.doctor.facts import JitCache, Lock
from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache import aiter_locks
from sglang_mi300a.kernel_cache.aiter_locks import AiterLock
from sglang_mi300a.kernel_cache.store import Store, StoredModule

_PREFILL = "mha_batch_prefill"
_FROM_TEMPLATE = "lib"  # build/FOLDER/lib.so, stored as FOLDER


def gather(jit: Path, configs: Path, extensions: Path) -> tuple[Lock, ...]:
    """Return the lock files of builds.

    Args:
        jit: Where AITER builds.
        configs: Where AITER merges its tables.
        extensions: Where torch builds extensions; its locks name no holder.
    """
    found: list[Lock] = []
    for one in aiter_locks.find(jit, configs):
        place, folder = (
            ("jit-cache", jit) if jit in one.path.parents else ("aiter-configs", configs)
        )
        found += _lock(place, folder, one.path, _holder(one))
    for path in sorted(extensions.glob("*/lock")) + sorted(extensions.glob("*/*/lock")):
        found += _lock("torch-extensions", extensions, path, "none")
    return tuple(sorted(found, key=lambda lock: (lock.place, lock.name)))


def _lock(place: str, folder: Path, path: Path, holder: str) -> Iterator[Lock]:
    try:
        age = time.time() - path.stat().st_mtime
    except OSError:  # released while being looked at
        return
    yield Lock(place, path.relative_to(folder).as_posix(), round(age, 1), holder)


def _holder(one: AiterLock) -> str:
    if one.state != "not known":
        return one.state
    return "none" if one.dialect in ("no owner", "garbled") else "another host"


def _made_as(module: StoredModule) -> str:
    """Return AITER's name of a stored module: a needed one is stored under this package's."""
    stem = Path(module.files[0].path).stem
    return module.name if stem == _FROM_TEMPLATE else stem


def compiled(folder: Path, stores: Iterable[Path]) -> JitCache:
    """Return what was compiled of AITER so far.

    Args:
        folder: Where AITER builds.
        stores: Of ``sglang-mi300a kernel-cache``, whatever machine they are for.
    """
    names = {path.stem for path in folder.glob("*.so")} if folder.is_dir() else set()
    for root in stores:
        store = Store(root)
        try:
            for digest in store.digests():
                names |= {_made_as(one) for one in store.modules(digest).values()}
        except UserError:  # `kernel-cache verify` says what is wrong with it
            continue
    prefill = [name for name in names if name.startswith(_PREFILL) and "bf16" in name]
    return JitCache(len(names), any("nmask" in name for name in prefill))
