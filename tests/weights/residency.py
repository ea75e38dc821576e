"""How much of a file the page cache holds, by the kernel's own account."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)


def resident_bytes(path: Path) -> int:
    """Return the bytes of a file that lie in the page cache, to the page."""
    size = os.stat(path).st_size
    if size == 0:
        return 0
    num_pages = -(-size // mmap.PAGESIZE)
    state = (ctypes.c_ubyte * num_pages)()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        address = np.frombuffer(mapped, dtype=np.uint8).ctypes.data
        if _LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), state) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
    return min(size, int((np.frombuffer(state, dtype=np.uint8) & 1).sum()) * mmap.PAGESIZE)


def drops_pages(directory: Path) -> bool:
    """Return whether the file system under a directory gives clean pages back when asked to.

    tmpfs, for one, does not: its pages are the file.
    """
    path = directory / "residency-probe"
    path.write_bytes(b"x" * (1 << 20))
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fdatasync(descriptor)
        os.pread(descriptor, 1 << 20, 0)
        before = resident_bytes(path)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return before > 0 and resident_bytes(path) == 0
    finally:
        os.close(descriptor)
        path.unlink()
