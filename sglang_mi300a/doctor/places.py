"""Folders that serving reads and writes: on what they lie, and what this user may do there."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from sglang_mi300a.doctor.facts import Place
from sglang_mi300a.kernel_cache import local_disk

_MOST_ENTRIES = 5000
"""Looked at in a folder, so that a probe of a slow file system ends."""


def is_network(place: Place) -> bool:
    """Return whether a folder lies on a file system that other machines share."""
    return place.file_system in local_disk.NETWORK_KINDS


def gather(paths: Mapping[str, Path], root: Path = Path("/")) -> dict[str, Place]:
    """Return what folders are like.

    Args:
        paths: By what they are for.
        root: Directory that stands for ``/``, for its list of mounts.
    """
    return {name: _place(path, root / "proc/self/mounts") for name, path in paths.items()}


def _place(path: Path, mounts: Path) -> Place:
    there = path
    while not os.path.exists(there) and there != there.parent:  # or closed to this user
        there = there.parent
    there = there if there.is_dir() else there.parent
    usage = os.statvfs(there)
    writable, skew = _try_write(there)
    return Place(
        exists=os.path.exists(path),
        file_system=local_disk.kind_of_filesystem(there, mounts) if mounts.is_file() else "",
        free_bytes=usage.f_bavail * usage.f_frsize,
        total_bytes=usage.f_blocks * usage.f_frsize,
        writable=writable,
        executable=not usage.f_flag & os.ST_NOEXEC,
        num_unreadable=_num_unreadable(path) if os.path.isdir(path) else 0,
        has_bracket=bool({"[", "]"} & set(str(path))),
        clock_skew_s=skew,
    )


def _try_write(folder: Path) -> tuple[bool, float]:
    """Return whether a file can be made, and the file system's clock less this machine's."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False, 0.0
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)  # never has a name
    except OSError:  # this file system has no such files
        try:
            descriptor, name = tempfile.mkstemp(prefix=".sglang-mi300a-probe-", dir=folder)
        except OSError:  # read-only, or full
            return False, 0.0
        os.unlink(name)
    try:
        with contextlib.suppress(OSError):
            os.write(descriptor, b"\0")
        return True, round(os.fstat(descriptor).st_mtime - time.time(), 1) + 0.0
    finally:
        os.close(descriptor)


def _num_unreadable(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            first = [entry for entry, _ in zip(entries, range(_MOST_ENTRIES))]  # noqa: B905
    except OSError:  # the folder itself
        return 1
    wanted = os.R_OK
    return sum(
        not os.access(entry.path, wanted | os.X_OK if entry.is_dir() else wanted) for entry in first
    )
