"""Writes one safetensors file whose tensors arrive in pieces, and appears only when complete."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from sglang_mi300a.artifact_manifest import TensorChecksum
from sglang_mi300a.weights import safetensors_header
from sglang_mi300a.weights.steps import Stored

Bytes = NDArray[np.uint8]
FLUSH_BYTES = 64 << 20
"""Written bytes of a file that are sent to the disk at once."""
_ZEROS = np.zeros(1 << 20, dtype=np.uint8)


class PartFile:
    """A file under construction; a sink of the executor.

    Bytes go to a temporary name beside the final one. Rows that never arrive stay zero.

    Args:
        path: Final name.
        tensors: What it will hold, in order.
        wrote: Told how many bytes each write had; may raise to stop.
        flusher: Sends what was written to the disk while more is written.
    """

    def __init__(
        self,
        path: Path,
        tensors: Sequence[Stored],
        wrote: Callable[[int], None],
        flusher: Flusher | None = None,
    ) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.name}.tmp")
        head = safetensors_header.render((t.name, t.dtype, t.shape) for t in tensors)
        self._streams: dict[str, _Stream] = {}
        end = len(head)
        for tensor in tensors:
            self._streams[tensor.name] = _Stream(end, tensor.size)
            end += tensor.size
        self.size = end
        self._wrote = wrote
        self._flusher = flusher
        self._unflushed_bytes = 0
        self._head = head
        self._descriptor = -1

    def open(self) -> None:
        """Begin the file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._descriptor = os.open(self.temporary, flags, 0o644)
        os.ftruncate(self._descriptor, self.size)
        _write_all(self._descriptor, self._head, 0)

    def start_thread(self) -> None:
        """Need nothing; see :class:`~sglang_mi300a.weights.executing.Sink`."""

    def write(self, name: str, offset: int, data: Bytes) -> None:
        """Take bytes of a tensor; see :class:`~sglang_mi300a.weights.executing.Sink`."""
        stream = self._streams[name]
        skipped = stream.skip_to(offset)
        _write_all(self._descriptor, data, stream.begin + offset)
        stream.take(data)
        self._unflushed_bytes += data.nbytes
        if self._flusher is not None and self._unflushed_bytes >= FLUSH_BYTES:
            self._flusher.flush(self._descriptor)
            self._unflushed_bytes = 0
        self._wrote(skipped + data.nbytes)

    def finish(self) -> list[tuple[str, int, str]]:
        """Make the file durable under its final name.

        Returns:
            Name, offset and checksum of each tensor.
        """
        rows = []
        for name, stream in self._streams.items():
            self._wrote(stream.skip_to(stream.size))
            rows.append((name, stream.begin, stream.digest()))
        self._wait_for_flusher()
        os.fsync(self._descriptor)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._descriptor)
        self._descriptor = -1
        os.replace(self.temporary, self.path)
        return rows

    def _wait_for_flusher(self) -> None:
        if self._flusher is not None:
            self._flusher.wait_for(self._descriptor)

    def abandon(self) -> None:
        """Close and delete what was not finished."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # the file goes, whatever became of it
                self._wait_for_flusher()
            os.close(self._descriptor)
            self._descriptor = -1
            self.temporary.unlink(missing_ok=True)


class Flusher:
    """Sends written bytes to the disk in the background, and then drops them from the page cache.

    Without it the kernel keeps gigabytes back, until it stops the writers or a sync at the end of
    a file does: reads and writes would take turns instead of going on at the same time.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._begun: set[int] = set()
        self._ended = threading.Condition()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)

    def __enter__(self) -> Flusher:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.put(None)
        self._thread.join()

    def flush(self, descriptor: int) -> None:
        """Begin to write what a file has, unless that has begun; returns at once."""
        with self._ended:
            if descriptor not in self._begun:
                self._begun.add(descriptor)
                self._queue.put(descriptor)

    def wait_for(self, descriptor: int) -> None:
        """Return when nothing goes on with a file any more.

        Raises:
            OSError: Something could not be written. The kernel tells that once: whoever syncs the
                file afterwards is told that all is well.
        """
        with self._ended:
            self._ended.wait_for(lambda: descriptor not in self._begun)
            if self._error is not None:
                raise self._error

    def _run(self) -> None:
        while (descriptor := self._queue.get()) is not None:
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                self._error = self._error or error
            with self._ended:
                self._begun.discard(descriptor)
                self._ended.notify_all()


class _Stream:
    """Checksum and position of one tensor that arrives in order."""

    def __init__(self, begin: int, size: int) -> None:
        self.begin = begin
        self.size = size
        self._at = 0
        self._hasher = TensorChecksum()

    def skip_to(self, offset: int) -> int:
        """Go over rows that stay zero; return their bytes."""
        if not self._at <= offset <= self.size:
            raise AssertionError(f"bytes at {offset} after {self._at} of {self.size}")
        skipped = offset - self._at
        while self._at < offset:
            self.take(_ZEROS[: offset - self._at])
        return skipped

    def take(self, data: Bytes) -> None:
        self._hasher.update(data.data)
        self._at += data.nbytes

    def digest(self) -> str:
        return self._hasher.hexdigest()


def _write_all(descriptor: int, data: bytes | Bytes, offset: int) -> None:
    view = memoryview(data) if isinstance(data, bytes) else data.data
    while view.nbytes:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
