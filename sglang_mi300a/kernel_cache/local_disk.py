"""This user's own directory on this node's own disk: locks, copies and logs lie there.

Network file systems keep no promise that a lock needs (Lustre mounted without ``flock`` refuses or
keeps locks to one node, NFS has lost them), so what decides between processes stays off them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sglang_mi300a import settings
from sglang_mi300a.errors import UserError

NETWORK_KINDS = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4",
    "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
)  # fmt: skip
"""File-system kinds, as ``/proc/mounts`` names them, that other machines may share."""
_MOUNTS = Path("/proc/self/mounts")


def kind_of_filesystem(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return the kind of the file system that a path, or its nearest parent that exists, is on."""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, place, this_kind, *_ = line.split()
        place = place.replace("\\040", " ")
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):  # of two at one place, the later one hides the first
            best, kind = place, this_kind
    return kind


def is_shared(path: Path) -> bool:
    """Return whether other machines may write there."""
    return kind_of_filesystem(path) in NETWORK_KINDS


def prepare(path: Path) -> Path:
    """Return a directory of one's own, made if need be: private, on a disk of this node.

    Raises:
        UserError: It is another user's, a link, shared with other machines, or cannot be made.
    """
    with refusing(path, "make room, or name another directory"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise _unfit(path, f"owned by user {found.st_uid}, or a link", "this user's own directory")
    if found.st_mode & 0o022:
        raise _unfit(path, f"mode {stat.S_IMODE(found.st_mode):04o}", "writable by its owner only")
    if is_shared(path):
        raise _unfit(path, f"on {kind_of_filesystem(path)}", "a disk that no other machine writes")
    return path


def check_loadable(path: Path) -> None:
    """Check that compiled modules can be loaded from a directory.

    Raises:
        UserError: It is mounted ``noexec``.
    """
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        raise _unfit(path, "mounted noexec", "a file system that modules can be loaded from")


def _unfit(path: Path, found: str, allowed: str) -> UserError:
    return UserError(
        str(path),
        found=found,
        allowed=allowed,
        do=f"name another directory of this node: {settings.LOCAL_DIR}=/scratch/local/...",
    )


@contextmanager
def refusing(path: Path, do: str) -> Iterator[None]:
    """Turn what the file system refuses inside the block into one line for the user."""
    try:
        yield
    except OSError as error:
        where = Path(os.fsdecode(error.filename)) if error.filename else path
        found = f"{error.strerror or error} ({_owner(where)})"
        allowed = "a directory that this user may use"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            allowed = "room for the compiled modules"
        elif error.errno == errno.EROFS:
            allowed = "a directory that can be written"
        raise UserError(str(where), found=found, allowed=allowed, do=do) from error


def _owner(path: Path) -> str:
    for place in (path, *path.parents):
        try:
            found = place.stat()
        except OSError:
            continue
        whose = f"user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
        return f"{place} is of {whose}; this is user {os.getuid()}"
    return "nothing of its path can be seen"
