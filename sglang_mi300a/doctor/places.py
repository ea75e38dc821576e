"""Folders that serving reads and writes: on what they lie, and what this user may do there."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from sglang_mi300a.doctor.facts import Place
from sglang_mi300a.doctor.machine import text

NETWORK = (
    "lustre", "nfs", "nfs4", "gpfs", "beegfs", "ceph", "wekafs", "cifs", "smb3", "panfs", "9p",
    "orangefs", "glusterfs",
)  # fmt: skip
"""File systems on which locks, mapped reads or many small files are slow or unreliable."""

_MOST_ENTRIES = 5000
"""Looked at in a folder, so that a probe of a slow file system ends."""


def is_network(place: Place) -> bool:
    """Return whether a folder lies on a file system that other machines share."""
    kind = place.file_system.removeprefix("fuse.")
    return kind in NETWORK or kind.startswith("nfs")


def gather(paths: Mapping[str, Path], root: Path = Path("/")) -> dict[str, Place]:
    """Return what folders are like.

    Args:
        paths: By what they are for.
        root: Directory that stands for ``/``, for its list of mounts.
    """
    mounts = _mounts(root)
    return {name: _place(path, mounts) for name, path in paths.items()}


def _place(path: Path, mounts: list[tuple[str, str, list[str]]]) -> Place:
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    there = there if there.is_dir() else there.parent
    kind, options = _mount_of(there, mounts)
    usage = os.statvfs(there)
    writable, skew = _try_write(there)
    return Place(
        exists=path.exists(),
        file_system=kind,
        free_bytes=usage.f_bavail * usage.f_frsize,
        total_bytes=usage.f_blocks * usage.f_frsize,
        writable=writable,
        executable="noexec" not in options,
        num_unreadable=_num_unreadable(path) if path.is_dir() else 0,
        has_bracket=bool({"[", "]"} & set(str(path))),
        clock_skew_s=skew,
    )


def _mounts(root: Path) -> list[tuple[str, str, list[str]]]:
    rows = []
    for line in text(root / "proc/self/mounts").splitlines():
        _, point, kind, options = [*line.split(" "), "", "", "", ""][:4]
        rows.append((point.replace("\\040", " "), kind, options.split(",")))
    return sorted(rows, key=lambda row: len(row[0]))


def _mount_of(path: Path, mounts: list[tuple[str, str, list[str]]]) -> tuple[str, list[str]]:
    found = ("", [""])
    full = str(path.resolve())
    for point, kind, options in mounts:  # the longest that fits comes last
        if full == point or full.startswith(point.rstrip("/") + "/"):
            found = (kind, options)
    return found


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
