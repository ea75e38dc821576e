"""Take modules that AITER built by itself out of a directory that served as ``AITER_JIT_DIR``.

AITER links a module in ``build/X/build/X.so`` and then copies it to ``X.so``, in the open; so one
is taken only where no lock of AITER's is left for it, the copy equals what was linked, and the file
is whole. A kernel made from a template is ``build/FOLDER/lib.so``, linked in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a.kernel_cache import aiter_locks, compiled
from sglang_mi300a.kernel_cache.key import CacheKey
from sglang_mi300a.kernel_cache.store import NAME, Store, StoredModule


@dataclass(frozen=True)
class Found:
    """A module in the directory.

    Attributes:
        name: AITER's name of it.
        path: The file.
        place: Its path below the directory, with slashes.
        flaw: Why it cannot be taken, or "".
    """

    name: str
    path: Path
    place: str
    flaw: str


def find(jit_dir: Path, arch: str) -> list[Found]:
    """Return what AITER built in a directory, whole or not; what was put there by others is not."""
    locked = _locked(jit_dir)
    found = []
    for name, linked, path in _built(jit_dir):
        place = path.relative_to(jit_dir).as_posix()
        flaw = "being built" if name in locked else _flaw(linked, path, arch)
        found.append(Found(name, path, place, flaw))
    return found


def _built(jit_dir: Path) -> Iterator[tuple[str, Path, Path]]:
    for linked in sorted(jit_dir.glob("build/*/build/*.so")):
        name = linked.stem
        if linked.parents[1].name == name and NAME.fullmatch(name):
            yield name, linked, jit_dir / f"{name}.so"
    for linked in sorted(jit_dir.glob("build/*/lib.so")):
        if NAME.fullmatch(linked.parent.name):
            yield linked.parent.name, linked, linked


def _locked(jit_dir: Path) -> set[str]:
    names = set()
    for lock in aiter_locks.find(jit_dir, config_dir=jit_dir / "none"):
        place = lock.path.relative_to(jit_dir / "build")
        names.add(place.name.removeprefix("lock_") if len(place.parts) == 1 else place.parts[0])
    return names


def _flaw(linked: Path, path: Path, arch: str) -> str:
    if path.is_symlink() or not path.is_file():
        return "linked, but not copied to its place"
    if flaw := compiled.flaw(path):
        return flaw
    if compiled.content_of(path) != compiled.content_of(linked):
        return "differs from what was linked"
    archs = compiled.device_archs(path)
    return f"device code for {', '.join(sorted(archs))}" if archs and arch not in archs else ""


def record(
    found: list[Found], key: CacheKey, store: Store, tell: Callable[[str], None]
) -> list[StoredModule]:
    """Store what is whole and not there yet; return it.

    Args:
        found: Result of :func:`find`.
        key: What the directory's builder was.
        store: Where to.
        tell: Told what cannot be taken, and why.

    Raises:
        UserError: The store cannot be written.
    """
    known = {file.path for module in store.modules(key.digest).values() for file in module.files}
    taken = []
    for one in found:
        if one.flaw:
            tell(f"not recorded: {one.name}: {one.flaw} ({one.path})")
        elif one.place not in known:
            taken.append(StoredModule(one.name, (store.put(one.path, one.place),)))
    if taken:
        store.publish(key, taken)
    return taken
