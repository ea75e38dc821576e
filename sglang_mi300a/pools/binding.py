"""Which CPUs and whose memory a rank should use, and whether it does.

SGLang binds a rank that is told its NUMA node (``--numa-node``), CPUs within what the job may use,
memory preferred rather than forced: a rank that may take nothing but a full node's memory is
killed where it could have been slow. On ROCm SGLang never finds the node by itself, it skips the
binding where libnuma is missing, and a container may forbid it; so each rank looks.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a.pools.unified_memory import numbers

IN_RANK = {"SGLANG_NUMA_BIND_V2": "0"}
"""SGLang then binds in the rank. Otherwise it starts ranks through a script of ``numactl``, with
memory forced, leaves the script in /tmp, and does without where ``numactl`` is not installed."""

_GET_MEMPOLICY = 239  # of x86-64; the only architecture with such an APU
_MPOL_DEFAULT = 0
_POLICIES = ("default", "preferred", "bind", "interleave", "local", "preferred-many")
_LOCAL = ("default", "local")
"""Memory of the node that the thread runs on; what is left where a container forbids another."""
_MOST_NUMA_NODES = 1024


@dataclass(frozen=True)
class MemoryPolicy:
    """Where a thread's memory comes from.

    Attributes:
        name: As the kernel's ``MPOL_*``.
        numa_nodes: Nodes it names.
    """

    name: str
    numa_nodes: frozenset[int]


def cpus_of(numa_node: int, root: Path = Path("/")) -> set[int]:
    """Return the CPUs of a NUMA node; empty if the kernel does not say."""
    path = root / f"sys/devices/system/node/node{numa_node}/cpulist"
    try:
        return numbers(path.read_text(encoding="ascii").strip())
    except OSError:  # not shown to this container
        return set()


def unusable(numa_nodes: Collection[int], allowed: set[int], root: Path = Path("/")) -> list[str]:
    """Return what keeps ranks from being bound, one line a NUMA node.

    Args:
        numa_nodes: The ranks'.
        allowed: CPUs that the job may use.
        root: Directory that stands for ``/``.
    """
    found = []
    for node in sorted(set(numa_nodes)):
        cpus = cpus_of(node, root)
        if cpus and not cpus & allowed:
            found.append(
                f"this job may use CPUs {as_list(allowed)}, none of NUMA node {node} "
                f"({as_list(cpus)}): the rank there is not bound and runs slower; ask the job "
                "scheduler for the whole node"
            )
    return found


def judge(
    numa_node: int, cpus: set[int], running_on: set[int], policy: MemoryPolicy | None
) -> list[str]:
    """Return what of a rank's binding did not take.

    Args:
        numa_node: The rank's.
        cpus: Of that node; empty where the kernel does not say.
        running_on: CPUs that the rank may run on.
        policy: Its memory policy; None where it cannot be asked.
    """
    found = []
    if cpus and not running_on <= cpus:
        found.append(
            f"runs on CPUs {as_list(running_on)} and not only on those of its NUMA node "
            f"{numa_node} ({as_list(cpus)}); is libnuma.so.1 installed?"
        )
    elsewhere = (
        policy is not None and policy.name not in _LOCAL and policy.numa_nodes != {numa_node}
    )
    if policy is not None and elsewhere:
        found.append(
            f"takes memory by policy {policy.name} of NUMA nodes {as_list(policy.numa_nodes)} and "
            f"not of its own, {numa_node}; start the server without numactl"
        )
    return found


def memory_policy() -> MemoryPolicy | None:
    """Return this thread's memory policy; None where the kernel does not tell."""
    mode = ctypes.c_int(_MPOL_DEFAULT)
    mask = (ctypes.c_ulong * (_MOST_NUMA_NODES // 64))()
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(
        _GET_MEMPOLICY, ctypes.byref(mode), mask, ctypes.c_ulong(_MOST_NUMA_NODES), None, 0
    )
    if failed or mode.value >= len(_POLICIES):
        return None
    nodes = {n for n in range(_MOST_NUMA_NODES) if mask[n // 64] >> n % 64 & 1}
    return MemoryPolicy(_POLICIES[mode.value], frozenset(nodes))


def running_on() -> set[int]:
    """Return the CPUs that this thread may run on."""
    return set(os.sched_getaffinity(0))


def as_list(found: Collection[int]) -> str:
    """Return numbers as the kernel writes them: ``0-2,5``."""
    parts: list[list[int]] = []
    for number in sorted(found):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts) or "none"
