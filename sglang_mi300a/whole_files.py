"""Small files that are absent or whole, on disk, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Put a file in place, durably; one that is there is replaced.

    One writer at a time: what a killed one left beside it is written over by the next.
    """
    os.replace(_temporary(path, data, "tmp"), path)
    sync(path.parent)


def write_if_absent(path: Path, data: bytes) -> None:
    """Put a file in place as :func:`write` does, unless one is there.

    Several processes may do so at once: the first wins.
    """
    temporary = _temporary(path, data, f"{socket.gethostname()}.{os.getpid()}.tmp")
    with contextlib.suppress(FileExistsError):
        os.link(temporary, path)
    os.unlink(temporary)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file's bytes, or the renames in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # directories, on some network file systems
            raise
    finally:
        os.close(descriptor)


def _temporary(path: Path, data: bytes, suffix: str) -> Path:
    """Write a durable file beside ``path``."""
    temporary = path.with_name(f".{path.name}.{suffix}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, memoryview(data)[written:], written)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return temporary
