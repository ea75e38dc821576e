"""Bounded reads of weight files: a few page-aligned buffers, no mapped files, little page cache.

On an APU the page cache and the weights are the same memory, so what is read must not stay behind:
files are opened for direct I/O where the file system takes it; elsewhere what was read is dropped
from the cache at once. Mapping a file reads it by page faults, one small piece at a time, which on
a network file system is the slowest way of all.
"""

from __future__ import annotations

import errno
import mmap
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from sglang_mi300a.artifact_manifest import CHECKSUM_BLOCK_BYTES
from sglang_mi300a.errors import UserError

BLOCK_BYTES = 4096
"""Direct reads start, end and land at multiples of this."""
HUGE_PAGE_BYTES = 2 << 20
"""Of x86-64."""
MIN_BUFFER_BYTES = 64 << 10
_SLACK_BYTES = 2 * BLOCK_BYTES  # what aligning both ends of a read can add
DEFAULT_THREADS = 15
DEFAULT_RING_BYTES = DEFAULT_THREADS * (CHECKSUM_BLOCK_BYTES + _SLACK_BYTES)
"""A whole block of a tensor in each read, and not more than 256 MiB."""

Bytes = NDArray[np.uint8]


class Ring:
    """A fixed set of page-aligned buffers; a user waits for a free one.

    Args:
        ring_bytes: Bytes of all buffers together.
        num_buffers: How many; also how many reads can be in flight.

    Attributes:
        max_read_bytes: What a read into one buffer may have at most.
        buffers: All of them, uint8.

    Raises:
        UserError: The bytes do not make useful buffers.
    """

    def __init__(self, ring_bytes: int, num_buffers: int) -> None:
        each = ring_bytes // num_buffers // BLOCK_BYTES * BLOCK_BYTES if num_buffers > 0 else 0
        if each < MIN_BUFFER_BYTES:
            raise UserError(
                "ring_bytes, threads",
                found=f"{ring_bytes} bytes for {num_buffers} reads in flight",
                allowed=f"at least one, and {MIN_BUFFER_BYTES} bytes for each",
                do=f"set ring_bytes {DEFAULT_RING_BYTES} and threads {DEFAULT_THREADS}",
            )
        self.max_read_bytes = each - _SLACK_BYTES
        # Private anonymous memory, not there before the first read touches it. In huge pages a
        # direct read becomes few large requests: one takes so many pieces of memory at most.
        self._memory = mmap.mmap(
            -1, each * num_buffers + HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        with suppress(OSError):  # a kernel without huge pages
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        # A fork while a direct read is under way would leave what is read in the child's copy:
        # open(2) asks for this of private memory.
        self._memory.madvise(mmap.MADV_DONTFORK)
        whole = np.frombuffer(self._memory, dtype=np.uint8)
        first = -whole.ctypes.data % HUGE_PAGE_BYTES
        self.buffers = tuple(whole[first + number * each :][:each] for number in range(num_buffers))
        self._free: queue.SimpleQueue[Bytes] = queue.SimpleQueue()
        for buffer in self.buffers:
            self._free.put(buffer)

    def release(self) -> None:
        """Give the memory back, whoever still holds a view; what the buffers held is lost."""
        self._memory.madvise(mmap.MADV_DONTNEED)

    @contextmanager
    def buffer(self) -> Iterator[Bytes]:
        """Lend a buffer, uint8, page-aligned."""
        lent = self._free.get()
        try:
            yield lent
        finally:
            self._free.put(lent)


@dataclass
class ReadCounts:
    """What was read so far.

    Attributes:
        num_bytes: Wanted bytes, without what alignment added.
        num_direct_files: Files read past the page cache.
        num_buffered_files: Files read through it and dropped from it.
    """

    num_bytes: int = 0
    num_direct_files: int = 0
    num_buffered_files: int = 0


class Files:
    """Open weight files; any thread may read.

    Args:
        direct: Try direct I/O first.
    """

    def __init__(self, *, direct: bool = True) -> None:
        self.counts = ReadCounts()
        self._direct = direct
        self._open: dict[Path, tuple[int, bool]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every file and drop what the page cache may still hold of it."""
        with self._lock:
            for descriptor, is_direct in self._open.values():
                if not is_direct:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
            self._open.clear()

    def read(self, path: Path, offset: int, size: int, buffer: Bytes) -> Bytes:
        """Read a range of a file into a buffer of a ring.

        Args:
            path: The file.
            offset: First byte.
            size: Bytes; at most the ring's ``max_read_bytes``.
            buffer: Where to read to, page-aligned.

        Returns:
            A view of ``buffer``, uint8 ``[size]``.

        Raises:
            UserError: The file cannot be opened or read, or ends before the range does.
        """
        if size == 0:
            return buffer[:0]
        start = offset // BLOCK_BYTES * BLOCK_BYTES
        stop = -(-(offset + size) // BLOCK_BYTES) * BLOCK_BYTES
        skip = offset - start
        descriptor, is_direct = self._descriptor(path)
        try:
            self._fill(path, descriptor, start, skip + size, buffer[: stop - start])
        except OSError as error:
            if not (is_direct and error.errno == errno.EINVAL):
                _refuse(path, f"byte {offset}: {os.strerror(error.errno or 0)}", "a readable file")
            # The file system took the flag at open and refuses it now (stricter alignment, say).
            descriptor, is_direct = self._reopen_buffered(path)
            self._fill(path, descriptor, start, skip + size, buffer[: stop - start])
        if not is_direct:
            os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)
        with self._lock:
            self.counts.num_bytes += size
        return buffer[skip : skip + size]

    def read_into(self, path: Path, offset: int, target: Bytes) -> Bytes:
        """Read a range of a file to where it is to stay; only of files not read directly.

        Direct reads want aligned memory; here the bytes pass the page cache, which drops them.

        Args:
            path: The file.
            offset: First byte.
            target: uint8, as many as are wanted, at any address.

        Returns:
            ``target``.

        Raises:
            UserError: As :meth:`read`.
        """
        if target.nbytes == 0:
            return target
        descriptor, is_direct = self._descriptor(path)
        assert not is_direct
        try:
            self._fill(path, descriptor, offset, target.nbytes, target, block_bytes=1)
        except OSError as error:
            _refuse(path, f"byte {offset}: {os.strerror(error.errno or 0)}", "a readable file")
        os.posix_fadvise(descriptor, offset, target.nbytes, os.POSIX_FADV_DONTNEED)
        with self._lock:
            self.counts.num_bytes += target.nbytes
        return target

    def _fill(
        self,
        path: Path,
        descriptor: int,
        start: int,
        needed: int,
        target: Bytes,
        *,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        view = target.data
        at = reached = 0
        while reached < needed:
            end = at + os.preadv(descriptor, [view[at:]], start + at)
            if end <= reached:
                size = os.fstat(descriptor).st_size
                _refuse(path, f"its end at byte {size}", f"{start + needed} bytes or more")
            # A direct read can only go on at a block: what follows a short one starts there.
            reached, at = end, end // block_bytes * block_bytes

    def _descriptor(self, path: Path) -> tuple[int, bool]:
        with self._lock:
            known = self._open.get(path)
            if known is None:
                known = self._open[path] = self._open_file(path, self._direct)
            return known

    def _reopen_buffered(self, path: Path) -> tuple[int, bool]:
        with self._lock:
            descriptor, is_direct = self._open[path]
            if is_direct:
                # Other threads may still read through the old descriptor: it stays open.
                flags = os.O_RDONLY | os.O_CLOEXEC
                buffered = os.open(path, flags)
                os.dup2(buffered, descriptor, inheritable=False)
                os.close(buffered)
                self._open[path] = (descriptor, False)
                self.counts.num_direct_files -= 1
                self.counts.num_buffered_files += 1
            return self._open[path]

    def _open_file(self, path: Path, direct: bool) -> tuple[int, bool]:
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            if direct and hasattr(os, "O_DIRECT"):
                try:
                    descriptor = os.open(path, flags | os.O_DIRECT)
                    self.counts.num_direct_files += 1
                    return descriptor, True
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
            descriptor = os.open(path, flags)
        except OSError as error:
            _refuse(path, f"not readable ({os.strerror(error.errno or 0)})", "a readable file")
        self.counts.num_buffered_files += 1
        return descriptor, False


def _refuse(path: Path, found: str, allowed: str) -> NoReturn:
    raise UserError(
        str(path),
        found=found,
        allowed=allowed,
        do="copy the file again; it changed, is damaged, or its storage fails",
    )
