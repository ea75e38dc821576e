"""One writer per output directory, also across machines that share its file system."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from sglang_mi300a.errors import UserError

NAME = ".shard-weights.lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Holder:
    """Who holds the lock.

    Attributes:
        host: Host name.
        boot_id: The kernel's id of this boot: tells machines, and boots of one, apart.
        pid: Process id.
        start_ticks: When the process started, in clock ticks since boot: tells a reused pid.
    """

    host: str
    boot_id: str
    pid: int
    start_ticks: int


class OutputLock:
    """A lock file, held from ``with`` to its end.

    The kernel's file lock decides among processes of one boot of one machine, and goes away with
    its process. On a shared file system it may not reach other machines: a file left by another
    boot is therefore respected, and only a person can say that its writer is gone.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._descriptor = -1

    def __enter__(self) -> OutputLock:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read(descriptor)
                os.close(descriptor)
                raise self._refusal(holder) from None
            if self._is_still_there(descriptor):
                break
            os.close(descriptor)  # its holder took it away as it left, between open and lock
        before = _read(descriptor)
        if before is not None and before.boot_id != _boot_id():
            os.close(descriptor)
            raise self._refusal(before)
        text = json.dumps(asdict(_myself())).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
        os.fsync(descriptor)
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

    def _is_still_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _refusal(self, holder: Holder | None) -> UserError:
        who = f"process {holder.pid} on {holder.host}" if holder else "another process"
        return UserError(
            str(self.path),
            found=f"held by {who}",
            allowed="one shard-weights at a time into one directory",
            do="wait for it or choose another --out; if that machine or process is gone, "
            f"delete {self.path}",
        )


def _read(descriptor: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):  # empty: its writer was killed before it wrote
        return None


def _myself() -> Holder:
    # Field 22 of stat; the second, in parentheses, may hold spaces.
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return Holder(socket.gethostname(), _boot_id(), os.getpid(), int(after_name[19]))


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()
