"""What each visible APU has to give, and what holds the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sglang_mi300a import device
from sglang_mi300a.doctor.facts import ApuRoom, HeldMemory, Memory
from sglang_mi300a.doctor.machine import text
from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import unified_memory
from sglang_mi300a.pools.memory_holders import Held

A_PROCESS = "a program"
CORE_DUMPS = "core dumps on tmpfs"


def gather(
    root: Path = Path("/"), *, visible: Sequence[int] | None = None, num_ranks: int | None = None
) -> Memory:
    """Return the memory of the visible accelerators.

    Args:
        root: Directory that stands for ``/``.
        visible: Their positions; None: all.
        num_ranks: Ranks that share a control group's limit.
    """
    balancing = text(root / "proc/sys/kernel/numa_balancing")
    num_balancing = int(balancing) if balancing.isdigit() else 0
    everyone = device.accelerators(root / "sys")
    if not everyone:
        return Memory(unreadable="no accelerator", numa_balancing=num_balancing)
    try:
        found = unified_memory.read(root, visible=visible, num_ranks=num_ranks)
    except UserError as error:
        return Memory(unreadable=error.found, numa_balancing=num_balancing)
    module, pages = found.ttm or ("", 0)
    return Memory(
        apus=tuple(_room(one) for one in found.apus),
        ttm_module=module,
        ttm_pages=pages,
        ttm_apus=sum(one.is_apu for one in everyone) or len(everyone),
        numa_balancing=num_balancing,
    )


def _room(one: unified_memory.ApuMemory) -> ApuRoom:
    return ApuRoom(
        numa_node=one.numa_node,
        total_bytes=one.total_bytes,
        free_bytes=one.free_bytes,
        reclaimable_bytes=one.reclaimable_bytes,
        limits={limit.name: limit.num_bytes for limit in one.limits},
        held=tuple(HeldMemory(_kind(held), held.num_bytes, held.reclaimable) for held in one.held),
    )


def _kind(held: Held) -> str:
    """Return what holds it, without names and numbers of processes and files."""
    if held.what.startswith("process "):
        return A_PROCESS
    return CORE_DUMPS if "core dumps on tmpfs" in held.what else held.what
