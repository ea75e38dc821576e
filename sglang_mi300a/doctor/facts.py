"""What was seen of a machine, as one record that can be sent to others.

Nothing in it is private: folders appear by what they are for (``jit-cache``), never by path;
variables from a fixed list, and paths in them are left out; processes without names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SCHEMA = 1
"""Of the record. Raised when a field changes its meaning or a new one has no default."""


@dataclass(frozen=True)
class Machine:
    """The operating system.

    Attributes:
        kernel: Release, as ``uname -r`` says.
        distribution: Name and version of the (container's) distribution.
        in_container: Whether this is a container.
    """

    kernel: str = ""
    distribution: str = ""
    in_container: bool = False


@dataclass(frozen=True)
class SGLangImport:
    """The SGLang that a server would import, found without importing it.

    Attributes:
        version: What its own version file says; "" if it has none.
        place: ``site-packages``, ``PYTHONPATH``, ``working directory`` or ``elsewhere``.
        num_candidates: Folders named ``sglang`` on the import path.
    """

    version: str = ""
    place: str = "site-packages"
    num_candidates: int = 1


@dataclass(frozen=True)
class AiterInstall:
    """The AITER that a server would import.

    Attributes:
        lock_dialect: What its lock files say of their holder: ``no owner``, ``pid and host``, or
            ``pid, host, namespace and start``; ``unknown`` where its source has another shape.
        lock_source_sha256: Of the source that decides that, 16 digits.
        missing_modules: What SGLang imports of it on this architecture and is not there.
    """

    lock_dialect: str = "unknown"
    lock_source_sha256: str = ""
    missing_modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class PluginEntry:
    """One entry point in SGLang's plugin group.

    Attributes:
        name: By which ``SGLANG_PLUGINS`` selects it.
        distribution: That declares it.
        importable: Whether its module is there.
    """

    name: str
    distribution: str
    importable: bool


@dataclass(frozen=True)
class Software:
    """What is installed.

    Attributes:
        python: Version.
        package: This package's version.
        kernels: "" if every shipped code object is whole, else what is wrong.
        versions: Of distributions, by name; what is not installed is left out.
        torch_hip: HIP version that torch was built for; "" for another build or none.
        rocm: Version of ROCm's own files; "" if there are none.
        sglang: What would be imported; None: nothing.
        aiter: What would be imported; None: nothing.
        plugins: Entry points in SGLang's plugin group.
        unmet: Distributions whose version is not the one that SGLang's metadata asks for.
        misfits: Required seams that do not fit the SGLang that would be imported.
        interpreter_has_space: Whether the path of the interpreter has a space in it.
        patches: Of this package's patches, those that are applied to that SGLang.
        half_patched: Those whose application or reversal did not end.
    """

    python: str = ""
    package: str = ""
    kernels: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    torch_hip: str = ""
    rocm: str = ""
    sglang: SGLangImport | None = None
    aiter: AiterInstall | None = None
    plugins: tuple[PluginEntry, ...] = ()
    unmet: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()
    interpreter_has_space: bool = False
    patches: tuple[str, ...] = ()
    half_patched: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """One accelerator, as the driver describes it.

    Attributes:
        name: Product.
        arch: ``gfx942``.
        num_visible_cus: Compute units, after partitioning.
        is_apu: Whether it shares memory with the CPU, by product.
        numa_node: Of its PCI device; -1 where the kernel does not say.
        compute_partition: ``SPX``, ``CPX``, …; "" where the driver does not say.
        memory_partition: ``NPS1``, …; "" where the driver does not say.
    """

    name: str
    arch: str
    num_visible_cus: int
    is_apu: bool
    numa_node: int
    compute_partition: str = ""
    memory_partition: str = ""


@dataclass(frozen=True)
class Devices:
    """The accelerators and the way to them.

    Attributes:
        found: By the driver's order, before any mask.
        driver: Version of the amdgpu driver package; "" for the kernel's own.
        kfd: ``open``, ``denied`` or ``missing``: the device file of compute.
        render: Render nodes that can be opened, and those that are there.
    """

    found: tuple[Device, ...] = ()
    driver: str = ""
    kfd: str = "missing"
    render: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class HeldMemory:
    """Something that holds memory of an APU.

    Attributes:
        what: Kind of holder.
        num_bytes: How much.
        reclaimable: Whether the kernel gives it up by itself.
    """

    what: str
    num_bytes: int
    reclaimable: bool


@dataclass(frozen=True)
class ApuRoom:
    """Memory of one visible accelerator, bytes.

    Attributes:
        numa_node: Whose memory it is; -1 for memory of its own.
        total_bytes: All of it.
        free_bytes: Free pages.
        reclaimable_bytes: Pages that the kernel gives up on demand.
        limits: What further bounds leave, by name.
        held: What holds the rest.
    """

    numa_node: int
    total_bytes: int
    free_bytes: int
    reclaimable_bytes: int
    limits: dict[str, int] = field(default_factory=dict)
    held: tuple[HeldMemory, ...] = ()


@dataclass(frozen=True)
class Memory:
    """Memory, as :mod:`sglang_mi300a.pools.unified_memory` reads it.

    Attributes:
        apus: By position among the visible accelerators.
        unreadable: Why it could not be read, or "".
        ttm_module: ``amdttm`` or ``ttm``; "" where no page limit is to be read.
        ttm_pages: The page limit, all APUs together.
        ttm_apus: APUs that share it.
        numa_balancing: Of the kernel; 0 is off.
    """

    apus: tuple[ApuRoom, ...] = ()
    unreadable: str = ""
    ttm_module: str = ""
    ttm_pages: int = 0
    ttm_apus: int = 0
    numa_balancing: int = 0


@dataclass(frozen=True)
class Cpus:
    """Processors.

    Attributes:
        by_node: Processors of each NUMA node, by its number as text.
        allowed_by_node: Those that this process may run on.
    """

    by_node: dict[str, int] = field(default_factory=dict)
    allowed_by_node: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """Limits of processes started from here; -1: none.

    Attributes:
        core_bytes: Size of a core dump.
        core_target: Where dumps go: ``file``, ``program`` (a pipe), or "" if unknown.
        memlock_bytes: Memory that may be pinned.
        open_files: Files that may be open.
    """

    core_bytes: int = 0
    core_target: str = ""
    memlock_bytes: int = -1
    open_files: int = -1


@dataclass(frozen=True)
class Place:
    """A folder, named by what it is for.

    Attributes:
        exists: Whether it is there; the rest is then of it, else of its nearest parent.
        file_system: Type, as mounted.
        free_bytes: Free for this user.
        total_bytes: Of the file system.
        writable: Whether a file can be made there.
        executable: Whether libraries can be loaded from there.
        num_unreadable: Entries that this user may not read.
        has_bracket: Whether ``[`` or ``]`` is in its path.
        clock_skew_s: Its clock less this machine's, seconds.
    """

    exists: bool = True
    file_system: str = ""
    free_bytes: int = 0
    total_bytes: int = 0
    writable: bool = True
    executable: bool = True
    num_unreadable: int = 0
    has_bracket: bool = False
    clock_skew_s: float = 0.0


@dataclass(frozen=True)
class JitCache:
    """What was compiled of AITER so far, for whatever machine.

    Attributes:
        num_modules: In its folder and in the stores of ``sglang-mi300a kernel-cache``.
        has_prefill_module: Whether the bf16 paged prefill without a mask is among them.
    """

    num_modules: int = 0
    has_prefill_module: bool = False


@dataclass(frozen=True)
class Lock:
    """A lock file of a kernel build. Doctor never deletes one.

    Attributes:
        place: The folder it is in.
        name: Below that.
        age_s: Since it was last written, seconds.
        holder: ``none`` named, ``alive``, ``dead``, or on ``another host``.
    """

    place: str
    name: str
    age_s: float
    holder: str


@dataclass(frozen=True)
class TunedFile:
    """TunableOp's table for one device.

    Attributes:
        exists: Whether it is there.
        num_rows: Solutions in it.
        has_carriage_return: Whether a line ends in CR LF.
        writable: Whether this user could overwrite it.
        sha256: Of its rows, 16 digits.
        validators: What it says it is for, by name.
    """

    exists: bool = False
    num_rows: int = 0
    has_carriage_return: bool = False
    writable: bool = False
    sha256: str = ""
    validators: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableFile:
    """Another tuning table that would be read.

    Attributes:
        name: File name, or the variable that leads to it.
        fault: Why it would be refused or misread, or "".
    """

    name: str
    fault: str


@dataclass(frozen=True)
class Tables:
    """Tuning tables.

    Attributes:
        tunable: TunableOp's, one a device; empty where TunableOp is off.
        others: AITER's (where a variable names one) and this package's.
    """

    tunable: tuple[TunedFile, ...] = ()
    others: tuple[TableFile, ...] = ()


@dataclass(frozen=True)
class Model:
    """What would be served.

    Attributes:
        kind: ``artifact`` or ``checkpoint``.
        fault: Why it cannot be served, or "".
        tp: Ranks that an artifact is for; 0 for a checkpoint.
        ep: Expert-parallel ranks among them; 0 for a checkpoint.
        has_draft: Whether an MTP layer is there.
        rank_bytes: Weights of the largest rank; 0 if unknown.
        plan_fault: What its memory plan lacks on this node, or "".
        load_s: Seconds that a load takes at the speed its files were read; 0 if not tried.
    """

    kind: str = "checkpoint"
    fault: str = ""
    tp: int = 0
    ep: int = 0
    has_draft: bool = False
    rank_bytes: int = 0
    plan_fault: str = ""
    load_s: float = 0.0


@dataclass(frozen=True)
class SeenByHip:
    """What HIP says of one visible device.

    Attributes:
        free_bytes: ``hipMemGetInfo``.
        total_bytes: ``hipMemGetInfo``.
        is_integrated: ``hipDeviceAttributeIntegrated``.
    """

    free_bytes: int
    total_bytes: int
    is_integrated: bool


@dataclass(frozen=True)
class Trial:
    """Something risky that was tried in a process of its own.

    Attributes:
        status: ``not tried``, ``fine``, or how it ended: ``signal 11``, ``no answer in 60 s``, or
            the last line of its error.
        seconds: How long it took.
    """

    status: str = "not tried"
    seconds: float = 0.0


@dataclass(frozen=True)
class Trials:
    """Everything that was tried in processes of their own.

    Attributes:
        hip: Opening HIP's runtime and asking it for its devices.
        torch: Importing torch and adding two numbers on each device.
        sglang: Importing SGLang's launcher.
        hip_devices: What HIP said.
    """

    hip: Trial = field(default_factory=Trial)
    torch: Trial = field(default_factory=Trial)
    sglang: Trial = field(default_factory=Trial)
    hip_devices: tuple[SeenByHip, ...] = ()


@dataclass(frozen=True)
class Facts:
    """The whole record.

    Attributes:
        tp: Ranks that are to be started.
        ports: Whether each asked port is free, by number as text.
        environment: Variables that matter, by name; paths in them are left out.
        places: Folders, by what they are for.
        failures: What could not be looked at, by topic, with the error.
    """

    tp: int = 4
    machine: Machine = field(default_factory=Machine)
    software: Software = field(default_factory=Software)
    devices: Devices = field(default_factory=Devices)
    memory: Memory = field(default_factory=Memory)
    cpus: Cpus = field(default_factory=Cpus)
    limits: Limits = field(default_factory=Limits)
    environment: dict[str, str] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    jit: JitCache = field(default_factory=JitCache)
    locks: tuple[Lock, ...] = ()
    tables: Tables = field(default_factory=Tables)
    model: Model | None = None
    ports: dict[str, bool] = field(default_factory=dict)
    trials: Trials = field(default_factory=Trials)
    failures: dict[str, str] = field(default_factory=dict)
