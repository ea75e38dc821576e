"""Which process of which machine holds something, so that others can name it and tell its death.

A process id alone names nobody: it is reused, and containers of one machine each have their own
process 1. The kernel's boot id tells machines and boots apart, the PID namespace tells containers
apart, the start time tells a reused id.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Holder:
    """Who holds a lock.

    Attributes:
        host: Host name.
        boot_id: The kernel's id of this boot: tells machines, and boots of one, apart.
        pid: Process id.
        start_ticks: When the process started, in clock ticks since boot: tells a reused pid.
        pid_namespace: The namespace that ``pid`` counts in, or "" where it was not recorded.
    """

    host: str
    boot_id: str
    pid: int
    start_ticks: int
    pid_namespace: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def myself() -> Holder:
    """Return this process."""
    pid = os.getpid()
    return Holder(
        socket.gethostname(), boot_id(), pid, start_ticks(pid) or 0, pid_namespace=pid_namespace()
    )


def is_of_this_boot(holder: Holder) -> bool:
    """Return whether this very kernel ran it, so that its process can be looked up."""
    return holder.boot_id == boot_id() and holder.pid_namespace in ("", pid_namespace())


def is_alive(holder: Holder) -> bool:
    """Return whether a process of this boot still runs; see :func:`is_of_this_boot`."""
    return start_ticks(holder.pid) == holder.start_ticks


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # From field 3 on; the second, in parentheses, may hold spaces.
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])  # a zombie holds nothing any more


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return _BOOT_ID.read_text().strip()


def pid_namespace() -> str:
    """Return this process's PID namespace, ``pid:[4026531836]``; "" where the kernel hides it."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
