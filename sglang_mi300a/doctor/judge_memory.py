"""Findings about memory, which CPU and accelerators share, and about processors near it."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_mi300a.doctor import memory
from sglang_mi300a.doctor.facts import ApuRoom, Facts
from sglang_mi300a.doctor.judging import Seen, judge
from sglang_mi300a.pools.byte_text import GIB
from sglang_mi300a.pools.estimates import HOST_PROCESSES, RESERVE
from sglang_mi300a.pools.unified_memory import APU_PAGES

UNEVEN = 0.10
"""Part of an APU's memory by which APUs may differ in what is free."""
MOST_CACHE = 0.25
"""Part of an APU's memory that page cache may hold before it is worth dropping."""
MOST_HELD_BYTES = 2 * GIB


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def available(apu: ApuRoom) -> int:
    """Return what a rank can have at most, bytes."""
    return min([apu.free_bytes + apu.reclaimable_bytes, *apu.limits.values()])


def _held(facts: Facts, what: str, at_least: float = MOST_HELD_BYTES) -> Iterator[Seen]:
    for number, apu in enumerate(facts.memory.apus):
        num_bytes = sum(held.num_bytes for held in apu.held if held.what == what)
        if num_bytes > at_least:
            yield Seen(f"APU {number}: {what} hold {_gib(num_bytes)} of {_gib(apu.total_bytes)}")


@judge(
    "breaks",
    why="the sum over the node is not one APU's memory, so no pool can be planned",
    cure="mount /sys into the container, and turn NUMA on in the firmware",
)
def memory_unreadable(facts: Facts) -> Iterator[Seen]:
    """Judge that each APU's memory can be told."""
    if facts.memory.unreadable:
        yield Seen(facts.memory.unreadable)


@judge(
    "risks",
    why="with one NUMA node for several APUs, the ranks take from one account, and one rank's "
    "growth is another's failure",
    cure="set NUMA nodes per socket (NPS) to 1 in the firmware and keep NUMA on",
)
def apus_share_a_numa_node(facts: Facts) -> Iterator[Seen]:
    """Judge that each APU has a NUMA node of its own."""
    nodes = [apu.numa_node for apu in facts.memory.apus if apu.numa_node >= 0]
    for node in sorted(set(nodes)):
        if nodes.count(node) > 1:
            yield Seen(f"NUMA node {node} serves {nodes.count(node)} APUs")


@judge(
    "risks",
    why="the driver gives out so many pages and no more, by default 96 of an APU's 128 GiB; "
    "allocations beyond fail with memory still free",
    cure="put `options {module} pages_limit={pages} page_pool_size={pages}` into "
    "/etc/modprobe.d/{module}.conf and load the driver again",
)
def ttm_page_limit(facts: Facts) -> Iterator[Seen]:
    """Judge that the driver may give out all of the memory."""
    wanted = APU_PAGES * facts.memory.ttm_apus
    if facts.memory.ttm_module and facts.memory.ttm_pages < wanted:
        each = facts.memory.ttm_pages * 4096 / max(1, facts.memory.ttm_apus)
        yield Seen(
            f"{facts.memory.ttm_module} pages_limit {facts.memory.ttm_pages}: {_gib(each)} an APU",
            {"module": facts.memory.ttm_module, "pages": str(wanted)},
        )


@judge(
    "breaks",
    why="weights, host processes and the part that is kept free do not fit; the first that asks "
    "too much is killed",
    cure="sglang-mi300a plan --model <model>, which says what holds the memory and what fits",
)
def apu_short_of_memory(facts: Facts) -> Iterator[Seen]:
    """Judge that a rank's weights fit into every APU, with the usual reserve."""
    if facts.model is None or not facts.model.rank_bytes:
        return
    needed = facts.model.rank_bytes + HOST_PROCESSES.planned + RESERVE.planned
    for number, apu in enumerate(facts.memory.apus):
        if available(apu) < needed:
            name = min(
                {"free memory": apu.free_bytes + apu.reclaimable_bytes, **apu.limits}.items(),
                key=lambda pair: pair[1],
            )[0]
            yield Seen(
                f"APU {number}: {_gib(available(apu))} ({name}) for {_gib(needed)} of weights, "
                "host processes and reserve"
            )


@judge(
    "breaks",
    why="serve refuses to start a server whose pools, weights and graphs do not fit",
    cure="sglang-mi300a plan --model <model>, which says what would fit",
)
def plan_does_not_fit(facts: Facts) -> Iterator[Seen]:
    """Judge that the preset's memory plan fits this node."""
    if facts.model is not None and facts.model.plan_fault:
        yield Seen(facts.model.plan_fault)


@judge(
    "breaks",
    why="memory of a control group covers device allocations in part only: the job is killed while "
    "the device still reports free memory",
    cure="ask for all memory of the node (Slurm: --mem=0; docker: no --memory)",
)
def cgroup_below_the_node(facts: Facts) -> Iterator[Seen]:
    """Judge that a control group leaves each rank most of an APU."""
    for number, apu in enumerate(facts.memory.apus):
        left = apu.limits.get("cgroup")
        if left is not None and left < 0.75 * apu.total_bytes:
            yield Seen(f"rank {number}: cgroup leaves {_gib(left)} of {_gib(apu.total_bytes)}")


@judge(
    "breaks",
    why="pages of that APU are out of reach for the job; its rank computes from another's memory, "
    "two to ten times slower, or fails",
    cure="ask the scheduler for all memory nodes (Slurm: --exclusive --mem-bind=none)",
)
def cpuset_lacks_memory(facts: Facts) -> Iterator[Seen]:
    """Judge that the job may use the memory of every visible APU."""
    for number, apu in enumerate(facts.memory.apus):
        if "cpuset" in apu.limits:
            yield Seen(f"APU {number}: its NUMA node {apu.numa_node} is not in the job's cpuset")


@judge(
    "risks",
    why="ranks take what is free on their own APU; where these differ, sizes taken from the "
    "fullest fail on it, and stock SGLang refuses to start without a preset",
    cure="free what holds the memory of that APU: `sglang-mi300a plan --model <model>` names it",
)
def uneven_free_memory(facts: Facts) -> Iterator[Seen]:
    """Judge that the APUs are about equally free."""
    free = [apu.free_bytes + apu.reclaimable_bytes for apu in facts.memory.apus]
    if free and max(free) - min(free) > UNEVEN * facts.memory.apus[0].total_bytes:
        least = free.index(min(free))
        holders = sorted(facts.memory.apus[least].held, key=lambda held: -held.num_bytes)
        by = "; ".join(f"{one.what} {_gib(one.num_bytes)}" for one in holders[:3])
        yield Seen(
            f"free: {', '.join(_gib(one) for one in free)}; APU {least} is held by {by or 'unseen'}"
        )


@judge(
    "risks",
    why="files that were read lately lie in the memory that pools are cut from; the kernel gives "
    "it up, but stock's measure of free memory and the driver may not wait",
    cure="sglang-mi300a doctor --model <model> --fix, or as root: sync; echo 1 > "
    "/proc/sys/vm/drop_caches",
)
def page_cache_holds_memory(facts: Facts) -> Iterator[Seen]:
    """Judge that page cache holds little of each APU."""
    for number, apu in enumerate(facts.memory.apus):
        cached = sum(held.num_bytes for held in apu.held if held.what == "page cache")
        if cached > MOST_CACHE * apu.total_bytes:
            yield Seen(f"APU {number}: page cache holds {_gib(cached)} of {_gib(apu.total_bytes)}")


@judge(
    "risks",
    why="pages that are not written back yet cannot be given up, whatever asks for them",
    cure="sync",
)
def page_cache_not_written_back(facts: Facts) -> Iterator[Seen]:
    """Judge that little is waiting to be written."""
    yield from _held(facts, "page cache not written back yet")


@judge(
    "risks",
    why="a crashed rank's dump on a tmpfs keeps its memory, in the memory that pools are cut from",
    cure="remove the dumps (`sglang-mi300a plan --model <model>` names them) and run ulimit -c 0",
)
def core_dumps_in_memory(facts: Facts) -> Iterator[Seen]:
    """Judge that no core dumps lie on a tmpfs."""
    yield from _held(facts, memory.CORE_DUMPS)


@judge(
    "risks",
    why="files on a tmpfs and shared memory cannot be given up, and lie in the memory that pools "
    "are cut from",
    cure="remove what is not needed from /dev/shm",
)
def files_in_memory(facts: Facts) -> Iterator[Seen]:
    """Judge that tmpfs and shared memory hold little."""
    yield from _held(facts, "tmpfs and shared memory", 8 * GIB)


@judge(
    "risks",
    why="huge pages that are set aside cannot be used by the device",
    cure="echo 0 > /proc/sys/vm/nr_hugepages",
)
def huge_pages_set_aside(facts: Facts) -> Iterator[Seen]:
    """Judge that few huge pages are set aside."""
    yield from _held(facts, "huge pages set aside")


@judge(
    "risks",
    why="another program computes on this APU; its memory is gone for this server, and stock "
    "SGLang refuses to start without a preset",
    cure="stop the other program: `amd-smi process`",
)
def device_in_use(facts: Facts) -> Iterator[Seen]:
    """Judge that no other program holds device memory."""
    yield from _held(facts, "device memory of other programs")


@judge(
    "risks",
    why="the kernel unmaps pages to see who uses them; devices stall on the faults",
    cure="sudo sysctl kernel.numa_balancing=0",
)
def numa_balancing(facts: Facts) -> Iterator[Seen]:
    """Judge that NUMA balancing is off."""
    if facts.memory.numa_balancing:
        yield Seen(f"kernel.numa_balancing is {facts.memory.numa_balancing}")


@judge(
    "risks",
    why="a rank far from its APU pays for every byte it reads, and cannot be bound beside it",
    cure="ask the scheduler for all processors (Slurm: --exclusive --cpu-bind=none)",
)
def processors_out_of_reach(facts: Facts) -> Iterator[Seen]:
    """Judge that the job may use processors beside every visible APU."""
    for node in sorted({apu.numa_node for apu in facts.memory.apus if apu.numa_node >= 0}):
        if facts.cpus.by_node.get(str(node)) and not facts.cpus.allowed_by_node.get(str(node)):
            yield Seen(f"none of NUMA node {node}'s {facts.cpus.by_node[str(node)]} processors")


@judge(
    "risks",
    why="a rank that dies is dumped with all memory it shares with the device, more than 100 GB; "
    "nodes were lost to it",
    cure="ulimit -c 0",
)
def core_dumps_allowed(facts: Facts) -> Iterator[Seen]:
    """Judge that dying ranks leave no dumps."""
    if facts.limits.core_bytes and facts.limits.core_target:
        size = "any size" if facts.limits.core_bytes < 0 else _gib(facts.limits.core_bytes)
        yield Seen(f"core dumps of {size} go to a {facts.limits.core_target}")


@judge(
    "risks",
    why="memory cannot be pinned for copies and network transfers",
    cure="ulimit -l unlimited (docker: --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept="
    "MEMLOCK)",
)
def little_may_be_pinned(facts: Facts) -> Iterator[Seen]:
    """Judge that at least 1 GiB may be pinned."""
    if 0 <= facts.limits.memlock_bytes < GIB:
        yield Seen(f"memlock limit {facts.limits.memlock_bytes} bytes")
