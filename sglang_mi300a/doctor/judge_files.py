"""Findings about files: the model, caches and their locks, tuning tables, room on disks, ports."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_mi300a.doctor import places
from sglang_mi300a.doctor.facts import Facts, Lock
from sglang_mi300a.doctor.judge_memory import available
from sglang_mi300a.doctor.judging import Seen, judge
from sglang_mi300a.gemm.tuned_table import VALIDATORS
from sglang_mi300a.pools.byte_text import GIB

OLD_LOCK_S = 600.0
"""Longer than any one module of AITER is known to take."""
FORGOTTEN_S = 10.0
"""After which AITERs that know holders break a lock without one."""
MOST_SKEW_S = 5.0
SLOW_LOAD_S = 600.0
BUILD_JOB_BYTES = 8 * GIB
"""What one compile job of a kernel template takes. Source: flashinfer-ai/flashinfer 3899."""
CACHES = ("jit-cache", "aiter-configs", "torch-extensions", "triton-cache", "state", "local")
BUILDS = ("jit-cache", "torch-extensions")


# -- model -----------------------------------------------------------------------------------------


@judge(
    "breaks",
    why="what does not fit its own description would be served as noise, or not at all",
    cure="finish or repeat the download; for an artifact: sglang-mi300a artifact verify <model>",
    anywhere=True,
)
def model_at_fault(facts: Facts) -> Iterator[Seen]:
    """Judge that the model's files are whole and of the kind this package serves."""
    if facts.model is not None and facts.model.fault:
        yield Seen(facts.model.fault)


@judge(
    "breaks",
    why="an artifact is cut for so many ranks and no others",
    cure="pass --tp-size {tp}, or run shard-weights again with the ranks you want",
    anywhere=True,
)
def artifact_for_other_ranks(facts: Facts) -> Iterator[Seen]:
    """Judge that an artifact is for the ranks that are to be started."""
    if facts.model is not None and facts.model.tp not in (0, facts.tp):
        yield Seen(
            f"an artifact for {facts.model.tp} ranks, {facts.tp} asked",
            {"tp": str(facts.model.tp)},
        )


@judge(
    "risks",
    why="each start reads a checkpoint whole in every rank and cuts it anew; an artifact is read "
    "once, in order",
    cure="shard-weights --model <model> --out <artifact> --tp {tp}",
)
def checkpoint_not_sharded(facts: Facts) -> Iterator[Seen]:
    """Judge that an artifact is served."""
    if facts.model is not None and facts.model.kind == "checkpoint" and not facts.model.fault:
        place = facts.places.get("model")
        on = f" on {place.file_system}" if place is not None and place.file_system else ""
        yield Seen(f"a checkpoint{on}", {"tp": str(facts.tp)})


@judge(
    "risks",
    why="SGLang's own loaders look for weight files by pattern, in which [ and ] have a meaning of "
    "their own, and find none",
    cure="rename the folder, or serve it through a link without brackets",
    anywhere=True,
)
def bracket_in_the_model_path(facts: Facts) -> Iterator[Seen]:
    """Judge that the model's path is no pattern."""
    place = facts.places.get("model")
    if place is not None and place.has_bracket:
        yield Seen("[ or ] in the path of the model")


@judge(
    "risks",
    why="at the speed at which its files were read just now, a start takes that long",
    cure="copy the artifact to a faster disk, or stripe it over more storage servers",
)
def slow_storage(facts: Facts) -> Iterator[Seen]:
    """Judge that a load would end in ten minutes."""
    if facts.model is not None and facts.model.load_s > SLOW_LOAD_S:
        yield Seen(f"a load would take {facts.model.load_s:.0f} s")


# -- caches and locks ------------------------------------------------------------------------------


def _is_left(lock: Lock, facts: Facts) -> bool:
    """Return whether a lock has nobody who will release it, nor anybody who will break it."""
    if lock.holder == "alive":
        return False
    aiter = facts.software.aiter
    knows_holders = aiter is not None and aiter.lock_dialect in (
        "pid and host",
        "pid, host, namespace and start",
    )
    if lock.place != "torch-extensions" and knows_holders:
        if lock.holder == "dead" or (lock.holder == "none" and lock.age_s > FORGOTTEN_S):
            return False
    return lock.holder in ("dead", "another host") or lock.age_s > OLD_LOCK_S


@judge(
    "breaks",
    why="a build that was killed leaves its lock, and every rank waits for it without end",
    cure="when no build runs on any machine that shares the folder: rm {file}",
)
def build_lock_left(facts: Facts) -> Iterator[Seen]:
    """Judge that no lock is left behind."""
    for lock in facts.locks:
        if _is_left(lock, facts):
            file = f"<{lock.place}>/{lock.name}"
            holder = "names no holder" if lock.holder == "none" else f"holder: {lock.holder}"
            yield Seen(f"{file}, {lock.age_s:.0f} s old, {holder}", {"file": file})


@judge(
    "risks",
    why="two servers that build into one folder wait for each other, and one may read what the "
    "other has half written",
    cure="export AITER_JIT_DIR=<a folder of its own>",
)
def build_running(facts: Facts) -> Iterator[Seen]:
    """Judge that nobody builds into the same folders."""
    for lock in facts.locks:
        if lock.holder == "alive":
            yield Seen(f"<{lock.place}>/{lock.name} is held")


@judge(
    "breaks",
    why="kernels are compiled and tables merged there; where that fails the import or the first "
    "request ends",
    cure="chmod u+rwx <{place}>, or choose another: AITER_JIT_DIR, TORCH_EXTENSIONS_DIR, "
    "TRITON_CACHE_DIR, SGLANG_MI300A_STATE_DIR, SGLANG_MI300A_LOCAL_DIR",
)
def cache_not_writable(facts: Facts) -> Iterator[Seen]:
    """Judge that caches can be written."""
    for name in CACHES:
        place = facts.places.get(name)
        if place is not None and not place.writable:
            yield Seen(f"<{name}> cannot be written by this user", {"place": name})


@judge(
    "breaks",
    why="a cache that another user filled has parts this user may not read, and imports fail on "
    "them",
    cure="export AITER_JIT_DIR=<a folder of your own>, or chmod -R a+rX <{place}> as its owner",
)
def cache_of_another_user(facts: Facts) -> Iterator[Seen]:
    """Judge that caches can be read."""
    for name in CACHES:
        place = facts.places.get(name)
        if place is not None and place.num_unreadable:
            yield Seen(f"{place.num_unreadable} entries of <{name}> are closed", {"place": name})


@judge(
    "risks",
    why="locks on shared file systems are slow, or are none; ranks of several nodes wait for each "
    "other, and a lock outlives its machine",
    cure="export AITER_JIT_DIR=/tmp/aiter-jit (TORCH_EXTENSIONS_DIR, TRITON_CACHE_DIR, "
    "SGLANG_MI300A_LOCAL_DIR alike)",
)
def cache_on_a_network_file_system(facts: Facts) -> Iterator[Seen]:
    """Judge that kernels are built on a local disk."""
    for name in ("jit-cache", "torch-extensions", "triton-cache", "local"):
        place = facts.places.get(name)
        if place is not None and places.is_network(place):
            yield Seen(f"<{name}> lies on {place.file_system}")


@judge(
    "breaks",
    why="compiled kernels are libraries, and cannot be loaded from there",
    cure="export AITER_JIT_DIR=<a folder on a file system mounted without noexec>",
)
def cache_without_exec(facts: Facts) -> Iterator[Seen]:
    """Judge that libraries can be loaded from caches."""
    for name in (*BUILDS, "triton-cache", "local"):
        place = facts.places.get(name)
        if place is not None and not place.executable:
            yield Seen(f"<{name}> is mounted noexec")


@judge(
    "risks",
    why="what is missing is compiled in the first request that needs it, for up to six minutes a "
    "module; watchdogs and impatient load balancers end the server meanwhile",
    cure="sglang-mi300a kernel-cache build",
)
def cold_kernel_cache(facts: Facts) -> Iterator[Seen]:
    """Judge that AITER has compiled what serving needs."""
    if facts.software.aiter is not None and not facts.jit.has_prefill_module:
        yield Seen(f"{facts.jit.num_modules} compiled modules of AITER, none for paged prefill")


@judge(
    "risks",
    why="each compile job takes some 8 GiB, of memory that the devices share",
    cure="export MAX_JOBS={jobs}",
)
def too_many_build_jobs(facts: Facts) -> Iterator[Seen]:
    """Judge that a cold cache is not compiled by more jobs than there is memory for."""
    if facts.software.aiter is None or facts.jit.has_prefill_module or not facts.memory.apus:
        return
    given = facts.environment.get("MAX_JOBS", "")
    jobs = int(given) if given.isdigit() else sum(facts.cpus.allowed_by_node.values())
    free = sum(max(0, available(apu)) for apu in facts.memory.apus)
    if jobs * BUILD_JOB_BYTES > free:
        fitting = max(1, free // BUILD_JOB_BYTES)
        yield Seen(
            f"{jobs} jobs for {free / GIB:.0f} GiB of available memory", {"jobs": str(fitting)}
        )


@judge(
    "risks",
    why="ages of locks and freshness of compiled kernels are told by these clocks",
    cure="sudo chronyc makestep (on this machine or the file server)",
)
def clocks_disagree(facts: Facts) -> Iterator[Seen]:
    """Judge that file systems and this machine agree on the time."""
    for name in BUILDS:
        place = facts.places.get(name)
        if place is not None and abs(place.clock_skew_s) > MOST_SKEW_S:
            yield Seen(f"<{name}> is {place.clock_skew_s:+.0f} s off this machine's clock")


# -- room and ports --------------------------------------------------------------------------------

_ROOM = {"shm": GIB, "temporary": GIB, "jit-cache": 2 * GIB, "state": GIB}
"""Free bytes that a server may need, by place."""


@judge(
    "breaks",
    why="ranks exchange messages and collectives their buffers in /dev/shm; containers get 64 MiB "
    "unless told",
    cure="start the container with --ipc=host, or --shm-size=16g",
    anywhere=True,
)
def little_shared_memory(facts: Facts) -> Iterator[Seen]:
    """Judge that /dev/shm has room."""
    place = facts.places.get("shm")
    if place is not None and min(place.free_bytes, place.total_bytes) < _ROOM["shm"]:
        yield Seen(f"/dev/shm: {place.free_bytes >> 20} of {place.total_bytes >> 20} MiB free")


@judge(
    "breaks",
    why="temporary files, compiled kernels or reports will not fit",
    cure="free space in <{place}>, or point TMPDIR, AITER_JIT_DIR or SGLANG_MI300A_STATE_DIR "
    "elsewhere",
    anywhere=True,
)
def disk_full(facts: Facts) -> Iterator[Seen]:
    """Judge that folders that are written have room."""
    for name, needed in _ROOM.items():
        place = facts.places.get(name)
        if name != "shm" and place is not None and place.free_bytes < needed:
            yield Seen(f"<{name}>: {place.free_bytes >> 20} MiB free", {"place": name})


@judge(
    "breaks",
    why="the server cannot listen there",
    cure="ss -ltnp 'sport = :{port}' shows who does; stop it, or pass another --port",
    anywhere=True,
)
def port_taken(facts: Facts) -> Iterator[Seen]:
    """Judge that ports are free."""
    for port, is_free in facts.ports.items():
        if not is_free:
            yield Seen(f"port {port} is taken", {"port": port})


# -- tuning tables ---------------------------------------------------------------------------------


@judge(
    "risks",
    why="TunableOp looks for one file a device, and a rank without its own runs untuned",
    cure="copy the table once for each device: for n in 0 1 2 3; do cp table.csv tunableop$n.csv; "
    "done; export PYTORCH_TUNABLEOP_FILENAME=<folder>/tunableop%d.csv",
)
def tuned_table_missing(facts: Facts) -> Iterator[Seen]:
    """Judge that every device has the same, filled TunableOp table."""
    found = facts.tables.tunable
    lost = [str(n) for n, one in enumerate(found) if not one.exists or not one.num_rows]
    if lost:
        yield Seen(f"no solutions for device {', '.join(lost)} of {len(found)}")
    elif len({one.sha256 for one in found}) > 1:
        yield Seen("the devices' tables differ, so ranks may choose different kernels")


@judge(
    "risks",
    why="TunableOp compares these lines byte by byte and drops the whole table on a difference "
    "that does not show when printed",
    cure="sed -i 's/\\r$//' <the tables>",
)
def tuned_table_with_carriage_returns(facts: Facts) -> Iterator[Seen]:
    """Judge that TunableOp's tables have LF line ends."""
    bad = [str(n) for n, one in enumerate(facts.tables.tunable) if one.has_carriage_return]
    if bad:
        yield Seen(f"CR LF line ends in the table of device {', '.join(bad)}")


@judge(
    "risks",
    why="solution numbers belong to one build of rocBLAS and hipBLASLt; TunableOp drops the whole "
    "table when a version differs or a line is missing",
    cure="tune again on this software, or unset PYTORCH_TUNABLEOP_ENABLED",
)
def tuned_table_for_other_software(facts: Facts) -> Iterator[Seen]:
    """Judge that TunableOp's tables are for this software, as far as files tell."""
    torch = facts.software.versions.get("torch", "")
    here = {"PT_VERSION": torch, "ROCM_VERSION": facts.software.rocm, "GCN_ARCH_NAME": "gfx942"}
    for number, one in enumerate(facts.tables.tunable):
        if not one.exists or one.has_carriage_return:
            continue
        missing = [name for name in VALIDATORS if name not in one.validators]
        wrong = [
            f"{name} {one.validators[name]}, here {value}"
            for name, value in here.items()
            if value and name in one.validators and not _begins_alike(one.validators[name], value)
        ]
        if missing or wrong:
            what = [*wrong, *(f"no {name}" for name in missing)]
            yield Seen(f"table of device {number}: {'; '.join(what)}")
            return


def _begins_alike(one: str, other: str) -> bool:
    """Return whether two versions agree in major and minor, or two names up to the colon."""
    if one.startswith("gfx"):
        return one.split(":")[0] == other
    return one.split(".")[:2] == other.split(".")[:2]


@judge(
    "risks",
    why="TunableOp writes its file again at exit, even with tuning off, and has emptied tables so",
    cure="chmod a-w <the tables>",
)
def tuned_table_will_be_overwritten(facts: Facts) -> Iterator[Seen]:
    """Judge that TunableOp cannot write its tables."""
    bad = [str(n) for n, one in enumerate(facts.tables.tunable) if one.exists and one.writable]
    if bad:
        yield Seen(f"the table of device {', '.join(bad)} can be written")


@judge(
    "risks",
    why="a table that is refused or misread leaves shapes on slow defaults, or ends the import",
    cure="make the table again on this machine, or unset the variable that names it",
)
def table_at_fault(facts: Facts) -> Iterator[Seen]:
    """Judge that other tuning tables are well formed and for this machine."""
    for one in facts.tables.others:
        if one.fault:
            yield Seen(f"{one.name}: {one.fault}")
