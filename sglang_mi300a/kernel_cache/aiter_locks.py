"""AITER's own lock files: which there are, who holds them, and a bounded wait for them.

AITER nests three while it builds a module into ``AITER_JIT_DIR``:

* the baton, ``build/lock_MODULE``, round the whole build (``build/FOLDER/lock`` for a kernel made
  from a template, ``NAME.csv.lock`` in ``/tmp/aiter_configs`` for a merged table);
* the build lock, ``build/MODULE/build/lock``, round ninja, as in torch's extension builder;
* ninja's own, ``build/MODULE/build/.ninja_lock``.

Who waits for one of the first two waits for ever where it was left by the dead: AITER 0.1.7 writes
no owner into them; the ROCm image's writes process id and host and succeeds a dead holder on the
same host only; a later one adds PID namespace, start time and a kernel lock. Nothing here deletes
one: a program that cannot know whether the holder lives says so, and stops.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sglang_mi300a.errors import UserError
from sglang_mi300a.process_identity import pid_namespace, start_ticks

Kind = Literal["baton", "build lock", "ninja lock"]
Dialect = Literal["no owner", "pid and host", "pid, host, namespace and start", "garbled"]
State = Literal["alive", "dead", "not known"]

CONFIG_DIR = Path("/tmp/aiter_configs")
"""Where AITER merges its tables, whatever the environment says."""
DEFAULT_WAIT_S = 900.0
_POLL_S = 0.5
_RECORD_BYTES = 4096


@dataclass(frozen=True)
class AiterLock:
    """One lock file.

    Attributes:
        path: The file.
        kind: Which of the three.
        dialect: What its writer wrote into it.
        holder: ``process 12 on node-7``, or that nobody signed.
        state: Whether the holder runs, as far as can be proved from here.
    """

    path: Path
    kind: Kind
    dialect: Dialect
    holder: str
    state: State


def find(jit_dir: Path, config_dir: Path | None = None) -> list[AiterLock]:
    """Return the lock files below a directory that serves as ``AITER_JIT_DIR``, and of the tables.

    A lock file that goes away meanwhile is not listed.
    """
    found = []
    for path, kind in (*_paths(jit_dir), *_config_paths(config_dir or CONFIG_DIR)):
        try:
            with path.open("rb") as file:
                record = file.read(_RECORD_BYTES)
        except (
            OSError
        ):  # released meanwhile, or unreadable: then the directory is refused elsewhere
            continue
        found.append(_judged(path, kind, record))
    return found


def _paths(jit_dir: Path) -> Iterator[tuple[Path, Kind]]:
    build = jit_dir / "build"
    for path in sorted(build.glob("lock_*")):
        yield path, "baton"
    for path in sorted(build.glob("*/lock")):
        yield path, "baton"
    for path in sorted(build.glob("*/*.lock")):
        yield path, "baton"
    for path in sorted(build.glob("*/build/lock")):
        yield path, "build lock"
    for path in sorted(build.glob("*/build/.ninja_lock")):
        yield path, "ninja lock"


def _config_paths(config_dir: Path) -> Iterator[tuple[Path, Kind]]:
    for path in sorted(config_dir.glob("*.lock")):
        yield path, "baton"


def _judged(path: Path, kind: Kind, record: bytes) -> AiterLock:
    if not record:
        state: State = "alive" if _kernel_lock_is_held(path) else "not known"
        return AiterLock(path, kind, "no owner", "a process that did not sign", state)
    lines = record.decode("utf-8", errors="replace").splitlines()
    if len(lines) < 2 or not lines[0].strip().isdigit() or len(lines[0]) > 10:
        return AiterLock(path, kind, "garbled", f"{lines[0][:40]!r}", "not known")
    pid, host = int(lines[0]), lines[1].strip()
    namespace, start, *_ = [*(line.strip() for line in lines[2:]), "", ""]
    dialect: Dialect = "pid, host, namespace and start" if namespace else "pid and host"
    state = _state(path, pid, host, namespace, start)
    return AiterLock(path, kind, dialect, f"process {pid} on {host}", state)


def _state(path: Path, pid: int, host: str, namespace: str, start: str) -> State:
    if _kernel_lock_is_held(path):
        return "alive"
    if host != socket.gethostname() or (namespace and namespace != pid_namespace()):
        return "not known"
    began = start_ticks(pid)
    if began is None or (start and str(began) != start):
        return "dead"
    return "alive"  # or its number was used again, which this dialect cannot tell


def _kernel_lock_is_held(path: Path) -> bool:
    """Return whether the kernel lists a file lock on it; taking it to see would disturb AITER."""
    try:
        place = path.stat()
        listed = Path("/proc/locks").read_text(encoding="utf-8")
    except OSError:
        return False
    device = f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{place.st_ino}"
    return any(device in line.split() and "FLOCK" in line for line in listed.splitlines())


def wait_until_free(
    jit_dir: Path, *, wait_s: float = DEFAULT_WAIT_S, config_dir: Path | None = None
) -> None:
    """Wait until AITER has released every lock file; delete none.

    Raises:
        UserError: One's holder is dead, or it was still there after ``wait_s``; names both.
    """
    deadline = time.monotonic() + wait_s
    while found := find(jit_dir, config_dir):
        dead = [lock for lock in found if lock.state == "dead"]
        if dead:
            raise refusal(dead, "its holder has ended")
        if time.monotonic() >= deadline:
            raise refusal(found, f"still there after {wait_s:.0f} s")
        time.sleep(_POLL_S)


class Watch:
    """Looks at a directory again and again while others build in it, and tells when to give up.

    Args:
        jit_dir: What ``AITER_JIT_DIR`` is set to.
        dead_s: How long a lock of a dead holder may stay; the ROCm image's AITER succeeds those.
        limit_s: How long any lock may stay.
    """

    def __init__(
        self, jit_dir: Path, *, dead_s: float = 60.0, limit_s: float = 2 * DEFAULT_WAIT_S
    ) -> None:
        self._jit_dir = jit_dir
        self._limits: dict[State, float] = {"dead": dead_s, "alive": limit_s, "not known": limit_s}
        self._since: dict[tuple[Path, State], float] = {}

    def problem(self, config_dir: Path | None = None) -> UserError | None:
        """Return the line that names a lock in the way for too long, or None."""
        now = time.monotonic()
        found = find(self._jit_dir, config_dir)
        seen = {(lock.path, lock.state): lock for lock in found}
        self._since = {key: self._since.get(key, now) for key in seen}
        for key, lock in seen.items():
            if now - self._since[key] >= self._limits[lock.state]:
                return refusal([lock], f"there for {now - self._since[key]:.0f} s")
        return None


def refusal(locks: Sequence[AiterLock], why: str) -> UserError:
    """Return the line that names a lock's file and holder."""
    first = locks[0]
    more = f"; and {len(locks) - 1} more" if len(locks) > 1 else ""
    return UserError(
        str(first.path),
        found=f"AITER's {first.kind}, {why}: held by {first.holder}, {first.state}, as far as can "
        f"be seen from {socket.gethostname()} ({first.dialect}){more}",
        allowed="no lock of AITER's in the way: whoever waits for it waits for ever",
        do=f"make sure that no build runs there, then delete it yourself: rm {first.path}",
    )
