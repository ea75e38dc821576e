"""Locks of this package's own: a file on a local disk that says who holds it.

The kernel's file lock decides: it goes away with its process, however that ends, and neither a
clock that jumps nor a process id that comes again nor a container's other host name can deceive it.
So a lock left by the dead is free, one held by the living is held, and age is never looked at. The
record in the file (host, boot, process, its start) only names the holder to those who wait. A place
without such locks is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from sglang_mi300a import settings
from sglang_mi300a.errors import UserError
from sglang_mi300a.process_identity import Holder, myself

DEFAULT_WAIT_S = 1800.0
"""As long as the slowest published build of one module, twice: 13 to 15 minutes on a bad node."""
_POLL_S = 0.1
_NO_KERNEL_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_RECORD_BYTES = 4096


class StillHeld(UserError):
    """The lock was not free within the wait."""


class OwnerLock:
    """A lock file, held from ``with`` to its end, waited for no longer than it says.

    Args:
        path: The file; its directory must exist.
        what: What it guards, for the message.
        wait_s: How long to wait for it.
    """

    def __init__(self, path: Path, what: str, *, wait_s: float = DEFAULT_WAIT_S) -> None:
        self.path = path
        self._what = what
        self._wait_s = wait_s
        self._descriptor = -1

    def __enter__(self) -> OwnerLock:
        deadline = time.monotonic() + self._wait_s  # never set back, unlike the wall clock
        while not self._try():
            if time.monotonic() >= deadline:
                raise self._still_held()
            time.sleep(_POLL_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the lock back; a second time does nothing."""
        if self._descriptor >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            os.close(self._descriptor)
            self._descriptor = -1

    def _try(self) -> bool:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        taken = False
        try:
            taken = self._take(descriptor)
        finally:
            if not taken:
                os.close(descriptor)
        if taken:
            self._descriptor = descriptor
        return taken

    def _take(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_KERNEL_LOCKS:
                raise
            raise self._no_locks_here() from error
        if not self._is_still_there(descriptor):
            return False  # its holder took the file away as it left
        record = json.dumps(asdict(myself())).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, record, 0)
        return True

    def _no_locks_here(self) -> UserError:
        return UserError(
            str(self.path),
            found="a file system without file locks",
            allowed="a local disk, where the kernel says who lives",
            do=f"name another directory of this node: {settings.LOCAL_DIR}=/scratch/local/...",
        )

    def _is_still_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _still_held(self) -> StillHeld:
        holder = holder_of(self.path)
        return StillHeld(
            str(self.path),
            found=f"still held by {holder or 'a process that did not sign'} after "
            f"{self._wait_s:.0f} s",
            allowed=f"one process at a time for {self._what}",
            do="wait for it, or look at what it does (`kernel-cache list` names its log)",
        )


def holder_of(path: Path) -> Holder | None:
    """Return who signed a lock file; None where nobody did, or it is gone or garbled."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether some process holds the lock of this file now (nothing is changed)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _read(descriptor: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(descriptor, _RECORD_BYTES, 0)))
    except (ValueError, TypeError):
        return None
