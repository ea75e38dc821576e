"""How much memory each accelerator of this node has to give, where CPU and GPU share it.

On an APU the memory that a rank can use is its own NUMA node's: free pages and those that the
kernel gives up on demand (page cache). The sum over the node belongs to the other ranks too and is
never used. Four limits come on top: the driver's page limit, the control groups of the job, the
NUMA nodes it may use, and what HIP itself says.

Sources: ``/sys/devices/system/node/node*/meminfo`` and ``/proc/meminfo`` as in Linux
``Documentation/filesystems/proc.rst``; ``mem_info_vram_*`` and ``mem_info_gtt_*`` as in
``Documentation/gpu/amdgpu/driver-misc.rst``; ``pages_limit`` (a count of 4 KiB pages for all APUs
of a node together, by default 96 of 128 GiB an APU) as in AMD's "MI300A system optimization". On an
APU ``hipMalloc`` takes pages of that kind and of the APU's NUMA node; host memory is not under the
limit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sglang_mi300a import device
from sglang_mi300a.device import Accelerator
from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import cgroup_memory, memory_holders
from sglang_mi300a.pools.byte_text import both
from sglang_mi300a.pools.cgroup_memory import CgroupRoom
from sglang_mi300a.pools.memory_holders import Held

TTM_PAGE_BYTES = 4096
APU_PAGES = 33_554_432
"""Pages of a whole MI300A, 128 GiB."""
TTM_MODULES = ("amdttm", "ttm")
"""AMD's own driver package calls the module ``amdttm``, the kernel's ``ttm``."""

_RECLAIMABLE = ("Active(file)", "Inactive(file)", "SReclaimable", "GPUReclaim")
"""What the kernel gives up on demand. ``GPUReclaim`` (newer kernels): pages that the graphics
driver keeps after they were freed."""


@dataclass(frozen=True)
class Limit:
    """A bound on what one accelerator's rank may allocate.

    Attributes:
        name: What bounds.
        num_bytes: What it leaves this rank.
        covers: ``all`` memory of the rank, or what the ``device`` driver allocates for it.
        where: The file or call that says so, with its value.
        raise_by: How to raise it; "" if it is not for the user to raise.
    """

    name: str
    num_bytes: int
    covers: Literal["all", "device"]
    where: str
    raise_by: str = ""


@dataclass(frozen=True)
class ApuMemory:
    """One accelerator's memory.

    Attributes:
        index: Position among the accelerators.
        name: Product.
        numa_node: Its NUMA node; -1 for a GPU with memory of its own.
        shared: Whether the CPU uses the same memory.
        total_bytes: Visible memory of its NUMA node (or of the GPU).
        free_bytes: Free pages of it, this accelerator's share.
        reclaimable_bytes: Pages that the kernel gives up on demand, this accelerator's share.
        limits: Further bounds.
        held: What holds the rest, as far as it can be seen.
    """

    index: int
    name: str
    numa_node: int
    shared: bool
    total_bytes: int
    free_bytes: int
    reclaimable_bytes: int
    limits: tuple[Limit, ...] = ()
    held: tuple[Held, ...] = ()

    @property
    def node_bytes(self) -> int:
        """What the memory itself has to give: free or reclaimable."""
        return self.free_bytes + self.reclaimable_bytes

    @property
    def available_bytes(self) -> int:
        """What the rank can use at most: the least of the memory and of every limit."""
        return min([self.node_bytes, *(limit.num_bytes for limit in self.limits)])


@dataclass(frozen=True)
class NodeMemory:
    """All accelerators of a node that a job can use.

    Attributes:
        name: What it is called in messages.
        apus: By index.
        notes: What could not be read, and what follows from it.
        ttm: The driver's module and its page limit, for all APUs together; None: no limit.
        cgroup: The control group that binds the job, for all ranks together; None: no limit.
    """

    name: str
    apus: tuple[ApuMemory, ...]
    notes: tuple[str, ...] = ()
    ttm: tuple[str, int] | None = None
    cgroup: CgroupRoom | None = None


@dataclass(frozen=True)
class HipView:
    """What HIP says of one device (``hipMemGetInfo``), bytes."""

    free_bytes: int
    total_bytes: int


def read(
    root: Path = Path("/"),
    *,
    visible: Sequence[int] | None = None,
    hip: Mapping[int, HipView] | None = None,
    num_ranks: int | None = None,
    with_holders: bool = True,
) -> NodeMemory:
    """Return what this node's accelerators have to give.

    Args:
        root: Directory that stands for ``/`` (a recorded machine in tests).
        visible: Accelerators that the job may use (``ROCR_VISIBLE_DEVICES``), in its order; None:
            all.
        hip: What HIP says, by position among the visible ones, where it was asked.
        num_ranks: Ranks that will share a control group's limit; None: one a visible accelerator.
        with_holders: Whether to look for what holds memory, process by process, which is slow.

    Raises:
        UserError: There is no accelerator, or its NUMA node's memory cannot be told.
    """
    everyone = device.accelerators(root / "sys")
    order = range(len(everyone)) if visible is None else visible
    chosen = [everyone[index] for index in order if index < len(everyone)]
    if not chosen:
        raise UserError(
            "this machine",
            found="no AMD accelerator" + (" among the visible ones" if everyone else ""),
            allowed="a node with accelerators, or a description of one",
            do="pass --node FILE, or --node with the name of a shipped node",
        )
    reader = _Reader(root, everyone, hip or {}, num_ranks or len(chosen))
    if with_holders:
        reader.holders = memory_holders.seen(root, {d.numa_node for d in everyone})
    return reader.read(chosen)


class _Reader:
    def __init__(
        self, root: Path, everyone: list[Accelerator], hip: Mapping[int, HipView], num_ranks: int
    ) -> None:
        self.root = root
        self.everyone = everyone
        self.hip = hip
        self.num_ranks = num_ranks
        self.notes: list[str] = []
        self.ttm = _page_limit(root)
        self.cgroup = cgroup_memory.read(root)
        self.counters = _driver_counters(root, everyone)
        self.holders: dict[int, list[Held]] = {}

    def read(self, chosen: list[Accelerator]) -> NodeMemory:
        everywhere = []
        if self.ttm is not None:
            num_apus = len([d for d in self.everyone if d.is_apu] or self.everyone)
            everywhere.append(ttm_limit(*self.ttm, num_apus))
        else:
            self.notes.append("no TTM page limit can be read; none is assumed")
        if self.cgroup is not None:
            everywhere.append(cgroup_limit(self.cgroup, self.num_ranks))
        apus = []
        for position, one in enumerate(chosen):
            counters = self.counters[one.index]
            if one.is_apu or counters.get("vram_total", 0) == 0:
                found = self._shared(one, counters, everywhere)
            else:
                found = _own(one, counters)
            limits = (*found.limits, *self._hip(position))
            apus.append(replace(found, index=position, limits=limits))
        return NodeMemory("this node", tuple(apus), tuple(self.notes), self.ttm, self.cgroup)

    def _shared(
        self, one: Accelerator, counters: Mapping[str, int], everywhere: Sequence[Limit]
    ) -> ApuMemory:
        numa_node = self._numa_node(one)
        meminfo, where = self._meminfo(numa_node)
        sharers = sum(1 for d in self.everyone if d.numa_node == one.numa_node)
        if sharers > 1:
            self.notes.append(
                f"NUMA node {numa_node} serves {sharers} accelerators; each gets its share"
            )
        missing = [name for name in ("MemTotal", "MemFree") if name not in meminfo]
        if missing:
            raise UserError(
                where,
                found=f"no {', '.join(missing)}",
                allowed="a meminfo of this NUMA node",
                do="run on a machine whose sysfs shows it, or pass --node FILE",
            )
        used = counters.get("gtt_used", 0)
        limits = [
            Limit(
                limit.name,
                max(0, limit.num_bytes - used) if limit.covers == "device" else limit.num_bytes,
                limit.covers,
                limit.where,
                limit.raise_by,
            )
            for limit in everywhere
        ]
        limits += self._cpuset(numa_node)
        if "gtt_total" in counters:
            limits.append(
                Limit(
                    "GTT size",
                    max(0, counters["gtt_total"] - used),
                    "device",
                    f"mem_info_gtt_total = {counters['gtt_total']} of this APU, {used} in use",
                    "leave amdgpu.gttsize out of the kernel's command line",
                )
            )
        held = [*memory_holders.on_node(meminfo, sharers), *self.holders.get(numa_node, ())]
        if used:
            held.append(Held("device memory of other programs", used, False, "stop them"))
        return ApuMemory(
            index=one.index,
            name=one.name,
            numa_node=numa_node,
            shared=True,
            total_bytes=meminfo["MemTotal"] // sharers,
            free_bytes=meminfo["MemFree"] // sharers,
            reclaimable_bytes=sum(meminfo.get(name, 0) for name in _RECLAIMABLE) // sharers,
            limits=tuple(limits),
            held=tuple(held),
        )

    def _numa_node(self, one: Accelerator) -> int:
        nodes = _nodes_with_memory(self.root)
        if one.numa_node >= 0:
            return one.numa_node
        if len(nodes) == 1:
            return nodes[0]
        raise UserError(
            f"accelerator {one.index} ({one.name})",
            found=f"no NUMA node of its PCI device; memory is on nodes {nodes or 'unknown'}",
            allowed="a device whose numa_node is told, or a machine of one NUMA node",
            do="turn NUMA on in the firmware, or pass --node FILE; the sum of all nodes is not "
            "this accelerator's memory",
        )

    def _meminfo(self, numa_node: int) -> tuple[dict[str, int], str]:
        path = self.root / f"sys/devices/system/node/node{numa_node}/meminfo"
        found = memory_holders.meminfo(path)
        if found:
            return found, str(path)
        if len(self.everyone) == 1 and len(_nodes_with_memory(self.root)) <= 1:
            self.notes.append(f"{_shown(path, self.root)} cannot be read; /proc/meminfo is used")
            path = self.root / "proc/meminfo"
            return memory_holders.meminfo(path), str(path)
        raise UserError(
            f"/{path.relative_to(self.root)}",
            found="not readable",
            allowed=f"the memory of NUMA node {numa_node}, of {len(self.everyone)} accelerators' "
            "nodes; the sum of all is not one accelerator's",
            do="mount /sys into the container, or pass --node FILE",
        )

    def _cpuset(self, numa_node: int) -> list[Limit]:
        match = re.search(
            r"^Mems_allowed_list:\s*([\d,-]+)$", _text(self.root / "proc/self/status"), re.M
        )
        if match is None or numa_node in numbers(match[1]):
            return []
        return [
            Limit(
                "cpuset",
                0,
                "all",
                f"/proc/self/status: Mems_allowed_list {match[1]}, without NUMA node {numa_node}",
                f"ask the job scheduler for memory of NUMA node {numa_node} "
                "(Slurm: --exclusive, or --mem-bind=none)",
            )
        ]

    def _hip(self, position: int) -> list[Limit]:
        view = self.hip.get(position)
        if view is None:
            return []
        if view.total_bytes == 0:  # as where a driver counts VRAM only, and an APU has none
            self.notes.append("hipMemGetInfo reports 0 bytes in all; it is not used")
            return []
        where = f"hipMemGetInfo: {both(view.free_bytes)} free of {both(view.total_bytes)}"
        return [Limit("HIP", view.free_bytes, "device", where)]


def ttm_limit(module: str, pages: int, num_apus: int) -> Limit:
    """Return the driver's page limit as one APU's share of it.

    Args:
        module: ``amdttm`` or ``ttm``.
        pages: Its ``pages_limit``, for all APUs together.
        num_apus: APUs of the node, also those that this job does not use.
    """
    wanted = APU_PAGES * num_apus
    raise_by = (
        f"put `options {module} pages_limit={wanted} page_pool_size={wanted}` into "
        f"/etc/modprobe.d/{module}.conf (or {module}.pages_limit={wanted} on the kernel's command "
        "line) and load the driver again; needs root"
    )
    return Limit(
        "TTM page limit",
        pages * TTM_PAGE_BYTES // num_apus,
        "device",
        f"{page_limit_file(module)} = {pages} pages of 4 KiB, {num_apus} APUs together",
        raise_by if pages < wanted else "",
    )


def page_limit_file(module: str) -> str:
    """Return where a module's page limit is read and stands."""
    return f"/sys/module/{module}/parameters/pages_limit"


def cgroup_limit(room: CgroupRoom, num_ranks: int) -> Limit:
    """Return a control group's room as one rank's share of it."""
    return Limit(
        "cgroup",
        room.free_bytes // num_ranks,
        "all",
        f"{room.path} = {room.limit_bytes} ({both(room.limit_bytes)}), "
        f"{both(room.used_bytes)} of it in use, {num_ranks} ranks together",
        f"ask for a higher {room.path} (Slurm: --mem=0; docker: no --memory)",
    )


def _own(one: Accelerator, counters: Mapping[str, int]) -> ApuMemory:
    """Return the memory of a GPU that has its own."""
    used = counters.get("vram_used", 0)
    held = (Held("device memory of other programs", used, False, "stop them"),) if used else ()
    return ApuMemory(
        index=one.index,
        name=one.name,
        numa_node=-1,
        shared=False,
        total_bytes=counters["vram_total"],
        free_bytes=counters["vram_total"] - used,
        reclaimable_bytes=0,
        held=held,
    )


def numbers(text: str) -> set[int]:
    """Return the numbers of a kernel list such as ``0-2,5``."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _page_limit(root: Path) -> tuple[str, int] | None:
    for module in TTM_MODULES:
        text = _text(root / page_limit_file(module).lstrip("/"))
        if text.isdigit():
            return module, int(text)
    return None


def _nodes_with_memory(root: Path) -> list[int]:
    folder = root / "sys/devices/system/node"
    if not folder.is_dir():
        return []
    found = sorted(
        int(path.name[4:]) for path in folder.iterdir() if re.fullmatch(r"node\d+", path.name)
    )
    return [
        n
        for n in found
        if memory_holders.meminfo(folder / f"node{n}/meminfo").get("MemTotal", 1) > 0
    ]


def _driver_counters(root: Path, everyone: list[Accelerator]) -> dict[int, dict[str, int]]:
    """Return the driver's memory counters by accelerator.

    The driver's devices are told apart by NUMA node, and within one by PCI address.
    """
    by_node: dict[int, list[dict[str, int]]] = {}
    folder = root / "sys/bus/pci/devices"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not (path / "mem_info_gtt_total").is_file():
            continue
        node = _text(path / "numa_node")
        counters = {}
        for name in ("vram_total", "vram_used", "gtt_total", "gtt_used"):
            text = _text(path / f"mem_info_{name}")
            if text.isdigit():
                counters[name] = int(text)
        by_node.setdefault(int(node) if node.lstrip("-").isdigit() else -1, []).append(counters)
    taken: Counter[int] = Counter()
    found = {}
    for one in everyone:
        candidates = by_node.get(one.numa_node, [])
        place = taken[one.numa_node]
        found[one.index] = candidates[place] if place < len(candidates) else {}
        taken[one.numa_node] += 1
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:  # not this kernel, or not shown to this container
        return ""


def _shown(path: Path, root: Path) -> str:
    return f"/{path.relative_to(root)}"
