"""What holds the memory of a NUMA node, as far as this user may see it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a.pools.byte_text import GIB, MIB

_WORTH_NAMING_BYTES = GIB // 16
_MOST_PROCESSES = 8
"""The biggest are asked on which nodes their memory lies; that is slow for each."""
_CORE_DUMP = re.compile(r"(gpu)?core(\.|$)")


@dataclass(frozen=True)
class Held:
    """Something that holds memory of an accelerator's NUMA node.

    Attributes:
        what: ``page cache``, ``core dumps on tmpfs``, ``process 4711 python3``, …
        num_bytes: How much.
        reclaimable: Whether the kernel gives it up by itself.
        remedy: What frees it; "" if it need not be freed.
    """

    what: str
    num_bytes: int
    reclaimable: bool
    remedy: str = ""


def on_node(found: Mapping[str, int], sharers: int) -> list[Held]:
    """Return what a NUMA node's meminfo tells.

    Args:
        found: Its entries, bytes.
        sharers: Accelerators that share the node; each is told its part.
    """
    rows = [
        Held("page cache", found.get("Active(file)", 0) + found.get("Inactive(file)", 0), True),
        Held("page cache not written back yet", found.get("Dirty", 0), True, "sync"),
        Held(
            "tmpfs and shared memory",
            found.get("Shmem", 0),
            False,
            "remove files from /dev/shm and other tmpfs",
        ),
        Held("memory of programs", found.get("AnonPages", 0), False, "stop them"),
        Held(
            "huge pages set aside",
            found.get("HugePages_Free", 0) * 2 * MIB,
            False,
            "echo 0 > /proc/sys/vm/nr_hugepages",
        ),
    ]
    shares = [Held(row.what, row.num_bytes // sharers, row.reclaimable, row.remedy) for row in rows]
    return [row for row in shares if row.num_bytes >= _WORTH_NAMING_BYTES]


def seen(root: Path, numa_nodes: Collection[int]) -> dict[int, list[Held]]:
    """Return core dumps and big processes by NUMA node.

    Args:
        root: Directory that stands for ``/``.
        numa_nodes: Nodes of interest.
    """
    found: dict[int, list[Held]] = {node: [] for node in numa_nodes}
    for held in _core_dumps(root):
        for rows in found.values():  # the kernel does not tell on which node a file's pages are
            rows.append(held)
    for pid, name in _biggest(root):
        for node, num_bytes in _bytes_by_node(root / f"proc/{pid}/numa_maps").items():
            if node in found and num_bytes >= _WORTH_NAMING_BYTES:
                found[node].append(Held(f"process {pid} {name}", num_bytes, False, f"kill {pid}"))
    return found


def _core_dumps(root: Path) -> list[Held]:
    rows = []
    for line in _text(root / "proc/self/mounts").splitlines():
        _, mount_point, kind = [*line.split(" "), "", ""][:3]
        folder = root / mount_point.lstrip("/")
        if kind != "tmpfs" or not folder.is_dir():
            continue
        try:
            files = [path for path in folder.iterdir() if _CORE_DUMP.match(path.name)]
            # Blocks, not length: dumps have holes.
            size = sum(path.stat().st_blocks * 512 for path in files if path.is_file())
        except OSError:  # not this user's folder
            continue
        if size >= _WORTH_NAMING_BYTES:
            rows.append(
                Held(
                    f"{len(files)} core dumps on tmpfs {mount_point}",
                    size,
                    False,
                    f"rm {mount_point}/{files[0].name}" + (" and the others" if files[1:] else ""),
                )
            )
    return rows


def _biggest(root: Path) -> list[tuple[int, str]]:
    """Return process numbers and names by resident memory, the biggest first."""
    found = []
    folder = root / "proc"
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.name.isdigit():
            continue
        status = _text(path / "status")
        resident = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.M)
        name = re.search(r"^Name:\s+(.+)$", status, re.M)
        if resident and int(resident[1]) * 1024 >= _WORTH_NAMING_BYTES:
            found.append((int(resident[1]), int(path.name), name[1] if name else "?"))
    return [(pid, name) for _, pid, name in sorted(found, reverse=True)[:_MOST_PROCESSES]]


def _bytes_by_node(numa_maps: Path) -> dict[int, int]:
    """Return a process's memory by NUMA node; empty where it belongs to another user."""
    found: dict[int, int] = {}
    for line in _text(numa_maps).splitlines():
        page = re.search(r"kernelpagesize_kB=(\d+)", line)
        for node, pages in re.findall(r" N(\d+)=(\d+)", line):
            size = int(pages) * 1024 * (int(page[1]) if page else 4)
            found[int(node)] = found.get(int(node), 0) + size
    return found


def meminfo(path: Path) -> dict[str, int]:
    """Return a meminfo's entries, in bytes (counts where it has no unit); empty if unreadable."""
    found = {}
    for line in _text(path).splitlines():
        match = re.match(r"(?:Node \d+ )?([\w()]+):\s+(\d+)( kB)?$", line)
        if match:
            found[match[1]] = int(match[2]) * (1024 if match[3] else 1)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # not this kernel, or not this user's
        return ""
