"""How many compilers may run at once: as many as the memory holds, not as many as there are cores.

A compiler of AITER's templates takes up to 8 GiB, and on an APU it takes them from the GPU.
Source: published builds of the same template library, 24 cores and 40 GiB free, where more than
three at once ended the host.
"""

from __future__ import annotations

from pathlib import Path

COMPILER_BYTES = 8 << 30
"""One compiler's peak."""
RESERVE_BYTES = 16 << 30
"""Left to everybody else."""
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def that_fit(num_cores: int, free_bytes: int) -> int:
    """Return how many compilers may run at once, at least 1."""
    return max(1, min(num_cores, (free_bytes - RESERVE_BYTES) // COMPILER_BYTES))


def split(num_jobs: int, num_modules: int) -> tuple[int, int]:
    """Return how many modules to build at once, and with how many compilers each.

    A module has a few long files and many short ones, so two at once keep the cores busy.
    """
    at_once = max(1, min(num_modules, num_jobs // 4))
    return at_once, max(1, num_jobs // at_once)


def free_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the memory that may be taken: the machine's, or this container's if that is less."""
    for line in meminfo.read_text(encoding="ascii").splitlines():
        name, value, *_ = line.split()
        if name == "MemAvailable:":
            available = int(value) * 1024
            return min(available, _left_in_cgroup(cgroup, otherwise=available))
    raise AssertionError("no MemAvailable: a Linux older than 3.14")


def _left_in_cgroup(cgroup: Path, otherwise: int) -> int:
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no limit here, or version 1 of cgroups
        return otherwise
    return otherwise if limit == "max" else max(0, int(limit) - used)
