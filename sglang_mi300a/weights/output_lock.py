"""One writer at a time for one thing in a directory, also across machines that share it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from sglang_mi300a.errors import UserError
from sglang_mi300a.process_identity import Holder, boot_id, is_alive, is_of_this_boot, myself

PREFIX = ".shard-weights-"
"""First part of every lock file's name."""
_NO_KERNEL_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_SETTLE_S = 0.2


class LockHeld(UserError):
    """Another process holds it, or a machine that left it behind may."""


class OutputLock:
    """A lock file, held from ``with`` to its end.

    The kernel's file lock decides among processes of one boot of one machine, and goes away with
    its process. Where the file system has none (Lustre mounted without ``flock``, say), the process
    that the file names decides: it is looked up by id and start time. Either may not reach other
    machines: a file left by another boot is therefore respected, and only a person can say that
    its writer is gone.
    """

    def __init__(self, directory: Path, what: str) -> None:
        self.path = directory / f"{PREFIX}{what}.lock"
        self._what = what
        self._descriptor = -1

    def __enter__(self) -> OutputLock:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                kernel_decided = self._lock(descriptor)
                if not self._is_still_there(descriptor):
                    os.close(descriptor)  # its holder took it away as it left
                    continue
                self._sign(descriptor, kernel_decided)
            except LockHeld:
                os.close(descriptor)
                raise
            self._descriptor = descriptor
            return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.unlink(self.path)
        os.close(self._descriptor)

    def _lock(self, descriptor: int) -> bool:
        """Take the kernel's lock; return False where there is none to take."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._held(_read(descriptor)) from None
        except OSError as error:
            if error.errno not in _NO_KERNEL_LOCKS:
                raise
            return False
        return True

    def _sign(self, descriptor: int, kernel_decided: bool) -> None:
        before = _read(descriptor)
        if before is not None and (
            before.boot_id != boot_id() or (not kernel_decided and _may_be_alive(before))
        ):
            raise self._held(before)
        me = myself()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(me)).encode(), 0)
        os.fsync(descriptor)
        if not kernel_decided:
            time.sleep(_SETTLE_S)  # of two that signed at once, the later one stays
            after = _read(descriptor)
            if after != me:
                raise self._held(after)

    def _is_still_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _held(self, holder: Holder | None) -> LockHeld:
        who = str(holder) if holder else "another process"
        return LockHeld(
            str(self.path),
            found=f"held by {who}",
            allowed=f"one shard-weights at a time for {self._what} of one directory",
            do="wait for it or choose another --out; if that machine or process is gone, "
            f"delete {self.path}",
        )


def _read(descriptor: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):  # empty: its writer was killed before it wrote
        return None


def _may_be_alive(holder: Holder) -> bool:
    return not is_of_this_boot(holder) or is_alive(holder)
