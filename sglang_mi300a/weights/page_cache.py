"""Give back the memory that the page cache keeps of weight files.

On an APU the page cache lies in the memory that the pools are cut from. Direct reads put nothing
there, but headers are read through it, some file systems take no direct reads, and whoever copied
the artifact here left it there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def drop(paths: Iterable[Path]) -> None:
    """Drop what the page cache holds of files, for all processes of the node.

    Only clean pages go, and those that are being read come back: call it when every rank that
    reads a file is done with it. Other files are not touched.
    """
    for path in paths:
        with contextlib.suppress(OSError):  # it was read; that it stays cached is no reason to stop
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
