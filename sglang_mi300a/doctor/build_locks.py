"""What kernel builds leave: libraries, and lock files with their holders. Nothing is deleted here.

Three kinds are told apart by content. PyTorch's and older AITERs' are empty; whoever waits for one
waits until the file goes. Newer AITERs write process id and host, the newest also the start time.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sglang_mi300a.doctor.facts import JitCache, Lock

_LOCK_NAME = re.compile(r"(lock|lock_[\w.+-]+|[\w.+-]+\.lock)")
_MOST_ENTRIES = 20_000
_DEEPEST = 3


def gather(
    folders: Mapping[str, Path], proc: Path = Path("/proc"), host: str | None = None
) -> tuple[Lock, ...]:
    """Return the lock files below folders.

    Args:
        folders: Where builds happen, by what they are for.
        proc: Process files, to see who is alive.
        host: This machine's name; None: ask.
    """
    name = socket.gethostname() if host is None else host
    found = []
    for place, folder in folders.items():
        for path in _lock_files(folder):
            try:
                age = time.time() - path.stat().st_mtime
                holder = _holder(path.read_text(encoding="utf-8", errors="replace"), proc, name)
            except OSError:  # released while being looked at, or another user's
                continue
            relative = path.relative_to(folder).as_posix()
            found.append(Lock(place, relative, round(age, 1), holder))
    return tuple(sorted(found, key=lambda lock: (lock.place, lock.name)))


def compiled(folder: Path) -> JitCache:
    """Return what AITER has compiled into its folder."""
    names = [path.name for path in folder.glob("*.so")] if folder.is_dir() else []
    prefill = [n for n in names if n.startswith("mha_batch_prefill") and "bf16" in n]
    return JitCache(len(names), any("nmask" in name for name in prefill))


def _lock_files(folder: Path) -> Iterator[Path]:
    left = _MOST_ENTRIES
    for here, folders, files in os.walk(folder):
        depth = len(Path(here).relative_to(folder).parts)
        if depth >= _DEEPEST:
            folders.clear()
        left -= len(files) + len(folders)
        if left < 0:
            return
        yield from (Path(here, name) for name in files if _LOCK_NAME.fullmatch(name))


def _holder(content: str, proc: Path, host: str) -> str:
    pid, where, _, started = [*content.splitlines(), "", "", "", ""][:4]
    if not pid.strip().isdigit():
        return "none"
    if where.strip() != host:
        return "another host"
    stat = proc / pid.strip() / "stat"
    try:
        now = stat.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "dead"
    start_ticks = now.rpartition(")")[2].split()[19:20]
    if started.strip() and start_ticks != [started.strip()]:
        return "dead"  # its number was given to another process
    return "alive"
