"""The operating system, its processors, and the limits of what is started from here."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Collection
from pathlib import Path

from sglang_mi300a.doctor.facts import Cpus, Limits, Machine
from sglang_mi300a.pools.unified_memory import numbers

_CONTAINER_FILES = (".dockerenv", "run/.containerenv", ".singularity.d", "singularity")


def machine(root: Path = Path("/"), kernel: str | None = None) -> Machine:
    """Return the operating system.

    Args:
        root: Directory that stands for ``/``.
        kernel: Release; None: the running one.
    """
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text(root / "etc/os-release"), re.M))
    return Machine(
        kernel=platform.release() if kernel is None else kernel,
        distribution=f"{release.get('ID', '')} {release.get('VERSION_ID', '')}".strip(),
        in_container=any((root / name).exists() for name in _CONTAINER_FILES),
    )


def cpus(root: Path = Path("/"), allowed: Collection[int] | None = None) -> Cpus:
    """Return processors by NUMA node, and those that this process may use.

    Args:
        root: Directory that stands for ``/``.
        allowed: Processors this process may use; None: ask the kernel.
    """
    may_use = os.sched_getaffinity(0) if allowed is None else set(allowed)
    by_node = {}
    for path in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        by_node[path.name.removeprefix("node")] = numbers(text(path / "cpulist"))
    return Cpus(
        by_node={node: len(found) for node, found in by_node.items()},
        allowed_by_node={node: len(found & may_use) for node, found in by_node.items()},
    )


def limits(root: Path = Path("/")) -> Limits:
    """Return the soft limits of this process and where core dumps go."""
    pattern = text(root / "proc/sys/kernel/core_pattern")
    return Limits(
        core_bytes=_soft(resource.RLIMIT_CORE),
        core_target="program" if pattern.startswith("|") else "file" if pattern else "",
        memlock_bytes=_soft(resource.RLIMIT_MEMLOCK),
        open_files=_soft(resource.RLIMIT_NOFILE),
    )


def _soft(which: int) -> int:
    soft = resource.getrlimit(which)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft


def text(path: Path) -> str:
    """Return a file's text, stripped; "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # not this kernel, or not this user's
        return ""
