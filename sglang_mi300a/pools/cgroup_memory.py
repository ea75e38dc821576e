"""How much memory the control groups of this process still leave it, version 1 and 2.

Source: Linux ``Documentation/admin-guide/cgroup-v2.rst`` and ``cgroup-v1/memory.rst``; the mounts
are found as ``proc_pid_mountinfo(5)`` and ``cgroups(7)`` describe.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_V1_UNLIMITED = 1 << 62
"""Version 1 writes "no limit" as the largest page-aligned signed number."""


@dataclass(frozen=True)
class CgroupRoom:
    """What the tightest control group leaves.

    Attributes:
        path: Its limit file, as this process sees it.
        limit_bytes: The limit.
        used_bytes: What is charged to it, without what could be reclaimed.
    """

    path: str
    limit_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        """What is left, never negative."""
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True)
class _Dialect:
    limits: tuple[str, ...]
    usage: str
    reclaimable: tuple[str, ...]


_V2 = _Dialect(
    ("memory.max", "memory.high"),
    "memory.current",
    ("inactive_file", "active_file", "slab_reclaimable"),
)
_V1 = _Dialect(
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def read(root: Path = Path("/")) -> CgroupRoom | None:
    """Return what the tightest control group above this process leaves; None without a limit.

    Args:
        root: Directory that stands for ``/`` (a recorded machine in tests).
    """
    rooms = []
    for folder, top, dialect in _memory_groups(root):
        for level in (folder, *folder.parents):
            room = _room(level, dialect, root)
            if room is not None:
                rooms.append(room)
            if level == top:
                break
    return min(rooms, key=lambda room: room.free_bytes, default=None)


def _memory_groups(root: Path) -> list[tuple[Path, Path, _Dialect]]:
    """Return this process's group, the topmost one it can see, and how to read them."""
    paths = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    found = []
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", ""][:3]
        if kind not in paths or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        mounted, mount_point = before.split(" ")[3:5]
        top = root / mount_point.lstrip("/")
        dialect = _V2 if kind == "cgroup2" else _V1
        found.append((top / _below(mounted, paths[kind]), top, dialect))
    return [(folder if folder.is_dir() else top, top, dialect) for folder, top, dialect in found]


def _below(mounted: str, path: str) -> str:
    """Return a group's place below the mount, which may show a part of the hierarchy only."""
    if mounted == "/":
        return path.lstrip("/")
    if path == mounted or path.startswith(f"{mounted}/"):
        return path[len(mounted) :].lstrip("/")
    return ""


def _room(folder: Path, dialect: _Dialect, root: Path) -> CgroupRoom | None:
    limits = {}
    for name in dialect.limits:
        text = "".join(_lines(folder / name))
        if text.isdigit() and int(text) < _V1_UNLIMITED:
            limits[int(text)] = name
    if not limits:
        return None
    usage = "".join(_lines(folder / dialect.usage))
    stat = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat") if " " in line)
    reclaimable = sum(int(stat.get(name, "0")) for name in dialect.reclaimable)
    limit = min(limits)
    where = "/" + str((folder / limits[limit]).relative_to(root))
    used = int(usage) if usage.isdigit() else 0
    return CgroupRoom(where, limit, max(0, used - reclaimable))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:  # not this version of control groups, or not shown to this container
        return []
