"""Findings about the accelerators: which, how many, how they are cut up, whether they answer."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_mi300a.code_objects import ARCH
from sglang_mi300a.doctor import environment
from sglang_mi300a.doctor.facts import Device, Facts
from sglang_mi300a.doctor.judging import Seen, judge

MI300A_CUS = 228
"""Visible compute units of a whole MI300A. Source: AMD CDNA 3 white paper."""


def of_our_kind(facts: Facts) -> list[Device]:
    """Return the gfx942 devices."""
    return [one for one in facts.devices.found if one.arch == ARCH]


def visible(facts: Facts) -> int:
    """Return how many devices the masks leave."""
    there = len(facts.devices.found)
    left = environment.visible(facts.environment, there)
    return there if left is None else len(left)


@judge(
    "breaks",
    why="the kernels are machine code for gfx942; nothing else runs them",
    cure="run on an MI300A node; on this machine, `sglang-mi300a demo` serves a tiny model on the "
    "CPU",
    anywhere=True,
)
def no_gfx942(facts: Facts) -> Iterator[Seen]:
    """Judge that there is a gfx942."""
    if not of_our_kind(facts):
        seen = ", ".join(f"{one.name} ({one.arch})" for one in facts.devices.found)
        yield Seen(f"no {ARCH} here: {seen or 'no AMD accelerator'}")


@judge(
    "risks",
    why="tables and the memory plan are for the MI300A: 228 compute units, memory shared with the "
    "CPU; other gfx942 parts have 304 or 80 units and memory of their own",
    cure="expect no tuned tables to match, and pass sizes by hand (`sglang-mi300a plan --help`)",
)
def not_an_mi300a(facts: Facts) -> Iterator[Seen]:
    """Judge that gfx942 devices are MI300A."""
    others = {one.name for one in of_our_kind(facts) if not one.is_apu}
    if others:
        yield Seen(f"{ARCH}, but {', '.join(sorted(others))}")


@judge(
    "breaks",
    why="in a partitioned mode each APU shows as several small devices that share one memory; the "
    "model needs the whole of four",
    cure="sudo amd-smi set --gpu all --compute-partition SPX",
)
def partitioned(facts: Facts) -> Iterator[Seen]:
    """Judge that each APU is one device."""
    for number, one in enumerate(of_our_kind(facts)):
        if one.compute_partition not in ("", "SPX"):
            yield Seen(f"device {number}: partition mode {one.compute_partition}")
        elif one.is_apu and one.num_visible_cus != MI300A_CUS:
            yield Seen(f"device {number}: {one.num_visible_cus} compute units, not {MI300A_CUS}")


@judge(
    "breaks",
    why="each rank needs a device of its own",
    cure="unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES, or pass a smaller "
    "--tp-size",
)
def fewer_devices_than_ranks(facts: Facts) -> Iterator[Seen]:
    """Judge that there is a visible device for each rank."""
    left = visible(facts)
    if left < facts.tp:
        yield Seen(f"{left} of {len(facts.devices.found)} devices visible, {facts.tp} ranks")


@judge(
    "breaks",
    why="HIP_VISIBLE_DEVICES counts among the devices that ROCR_VISIBLE_DEVICES leaves, from 0 "
    "again; a number that is not there hides the rest",
    cure="unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES",
)
def masks_stack(facts: Facts) -> Iterator[Seen]:
    """Judge that no mask names a device that an earlier one hid."""
    left = len(facts.devices.found)
    for name, chosen in environment.masks(facts.environment):
        lost = [str(number) for number in chosen if number >= left]
        if lost:
            yield Seen(f"{name} names device {', '.join(lost)}; {left} are left to choose from")
        left = len(chosen) - len(lost)


@judge(
    "risks",
    why="HIP reads HIP_VISIBLE_DEVICES, some libraries only CUDA_VISIBLE_DEVICES, and so ranks "
    "after the first may open another's device",
    cure="unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES",
)
def masks_disagree(facts: Facts) -> Iterator[Seen]:
    """Judge that the two spellings of HIP's mask say the same."""
    hip, cuda = (facts.environment.get(f"{name}_VISIBLE_DEVICES") for name in ("HIP", "CUDA"))
    if hip is not None and hip != cuda:
        yield Seen(f"HIP_VISIBLE_DEVICES {hip}, CUDA_VISIBLE_DEVICES {cuda or 'not set'}")


@judge(
    "risks",
    why="the order of a mask is the order of ranks, and no longer that of amd-smi; a rank is then "
    "bound to another APU's processors and looks at another's memory",
    cure="list the devices in ascending order",
)
def mask_reorders(facts: Facts) -> Iterator[Seen]:
    """Judge that masks keep the driver's order."""
    for name, chosen in environment.masks(facts.environment):
        if chosen != sorted(chosen):
            yield Seen(f"{name} is {facts.environment[name]}")


@judge(
    "breaks",
    why="without these device files no program can open an accelerator",
    cure="start the container with --device /dev/kfd --device /dev/dri --group-add video "
    "--group-add render",
)
def device_files_closed(facts: Facts) -> Iterator[Seen]:
    """Judge that the device files can be opened."""
    can_open, there = facts.devices.render
    if facts.devices.kfd != "open":
        yield Seen(f"/dev/kfd {facts.devices.kfd}")
    elif can_open < min(there, len(facts.devices.found)):
        yield Seen(f"{can_open} of {there} render nodes in /dev/dri can be opened")


@judge(
    "breaks",
    why="what crashes or hangs in a process of its own would do so in the server",
    cure="check the driver and the ROCm of this image against each other: `amd-smi version`",
)
def hip_fails(facts: Facts) -> Iterator[Seen]:
    """Judge that HIP's runtime answers."""
    if facts.trials.hip.status not in ("fine", "not tried"):
        yield Seen(f"HIP: {facts.trials.hip.status}")


@judge(
    "breaks",
    why="the server imports it and runs kernels through it",
    cure="use the image's own torch, on the driver that it asks for",
)
def torch_fails(facts: Facts) -> Iterator[Seen]:
    """Judge that torch computes on every device."""
    if facts.trials.torch.status not in ("fine", "not tried"):
        yield Seen(f"import and first kernels of torch: {facts.trials.torch.status}")


@judge(
    "risks",
    why="the memory that HIP reports is not the APU's: it shows a carve-out or nothing, and "
    "whatever is sized by it is wrong",
    cure="set the UMA frame buffer size in the firmware to its default",
)
def hip_sees_other_memory(facts: Facts) -> Iterator[Seen]:
    """Judge that HIP and the kernel agree on an APU's memory, to a factor of two."""
    for number, (hip, apu) in enumerate(
        zip(facts.trials.hip_devices, facts.memory.apus, strict=False)
    ):
        if not apu.total_bytes / 2 <= hip.total_bytes <= apu.total_bytes * 2:
            yield Seen(
                f"APU {number}: HIP {hip.total_bytes / 1e9:.1f} GB, its NUMA node "
                f"{apu.total_bytes / 1e9:.1f} GB"
            )


@judge(
    "note",
    why="for integrated devices stock SGLang takes the free memory of the whole node for one "
    "rank's; this package gives every pool its size instead",
    cure="nothing, with a preset; without one, pass --max-total-tokens and --max-mamba-cache-size",
)
def reported_as_integrated(facts: Facts) -> Iterator[Seen]:
    """Judge whether HIP calls the device integrated."""
    if any(one.is_integrated for one in facts.trials.hip_devices):
        yield Seen("HIP reports integrated devices")
