"""What a launcher does about memory: judge the plan, say where ranks run, watch while serving."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_mi300a import boot_report, settings
from sglang_mi300a.boot_report import RankReport
from sglang_mi300a.cli import plan as plans
from sglang_mi300a.errors import JudgedAgainst, UserError
from sglang_mi300a.pools import (
    after_weights,
    binding,
    estimates,
    fit,
    job_memory,
    memory_plan,
    plan_report,
    unified_memory,
)
from sglang_mi300a.pools.byte_text import both
from sglang_mi300a.pools.job_memory import JobMemory
from sglang_mi300a.pools.node_file import DescribedNode
from sglang_mi300a.pools.watch import Sample, Watch, watched_reserves
from sglang_mi300a.pools.watcher import Gauges, HttpAdmissions, NoGauges, Watcher
from sglang_mi300a.served_model import ServedModel
from sglang_mi300a.weights import page_cache

JUDGED_HERE = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
"""SGLang then only warns where one accelerator has 10 % less free than another. Each APU is judged
by the plan instead: a page cache or another program on one of them is no reason not to start."""


@dataclass(frozen=True)
class Prepared:
    """What a launch does about memory.

    Attributes:
        job: For the ranks; None where no accelerator's memory is planned.
        fields: ``ServerArgs`` fields to set.
        environment: Variables to set where the user has not.
        said: Lines for the user.
    """

    job: JobMemory | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()


def prepare(
    model: ServedModel,
    preset: str,
    fields: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    on_cpu: bool,
) -> Prepared:
    """Return what a server does about memory, once its plan is found to fit.

    Args:
        model: What is served.
        preset: By name.
        fields: ``ServerArgs`` fields, the preset's and the user's.
        environment: Variables, the preset's and the user's.
        on_cpu: Whether it is served on SGLang's CPU engine.

    Raises:
        UserError: A size is out of range or does not go with another, or the node cannot be told.
        JudgedAgainst: The plan does not fit; how much is missing where, and what would fit.
    """
    root, only_warn = settings.simulated_node(), settings.memory_check() == "warn"
    _check_simulated(root, on_cpu)
    if on_cpu and root is None:
        plans.checked_sizes(model, fields, environment, 0, plans.Wishes())
        return Prepared(said=("memory: SGLang's CPU engine, not an APU: not checked",))
    if int(fields["nnodes"]) > 1:
        said = f"memory: {fields['nnodes']} nodes: not checked; `sglang-mi300a plan` judges one"
        return Prepared(said=(said,))
    root, said = (root, f"simulated node {root}: ") if root else (Path("/"), "")
    tp, ep = int(fields["tp_size"]), int(fields["ep_size"])
    visible = plans.visible_now()
    live = unified_memory.read(root, visible=visible, num_ranks=tp)
    devices = _devices(fields, tp, len(live.apus))
    ours = unified_memory.NodeMemory(live.name, tuple(live.apus[n] for n in devices), live.notes)
    node = DescribedNode(ours, estimates.HOST_PROCESSES, estimates.RESERVE)
    plan = plans.of_fields(model, fields, environment, tp, ep, node, expert_kernels=not on_cpu)
    others = plans.other_presets(model, preset, tp, ep, node)
    lines = [plan_report.verdict_line(plan, ours), *live.notes, *fit.warnings(plan, ours)]
    lines += _judge(plan, ours, others, only_warn)
    places = job_memory.placed(live, devices, visible)
    job = JobMemory(plan, tuple(places), str(root), only_warn)
    bound, cannot = _binding(job, live, fields) if not on_cpu else ({}, [])
    return Prepared(
        job,
        fields=bound,
        environment={**JUDGED_HERE, **(binding.IN_RANK if bound else {})},
        said=tuple(f"{said}{line}" for line in [*lines, *cannot]),
    )


def _check_simulated(root: Path | None, on_cpu: bool) -> None:
    if root is not None and not (on_cpu and root.is_dir()):
        raise UserError(
            f"environment variable {settings.SIMULATED_NODE}",
            found=f"{root}" if on_cpu else f"{root} on a machine with an accelerator",
            allowed="a directory with a recorded node's files, and SGLang's CPU engine",
            do="unset it",
        )


def _devices(fields: Mapping[str, Any], tp: int, num_visible: int) -> list[int]:
    """Return each rank's accelerator, as SGLang numbers them."""
    first, step = int(fields["base_gpu_id"]), int(fields["gpu_id_step"])
    devices = [first + rank * step for rank in range(tp)]
    if devices[-1] >= num_visible or first < 0 or step < 1:
        raise UserError(
            f"--tp-size {tp}, --base-gpu-id {first}, --gpu-id-step {step}",
            found=f"{num_visible} visible accelerators",
            allowed="a rank on each of as many accelerators",
            do=f"pass --tp-size {num_visible} and leave the others out, or make more visible "
            "(ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES)",
        )
    return devices


def _judge(
    plan: memory_plan.Plan,
    live: unified_memory.NodeMemory,
    others: Mapping[str, memory_plan.Plan],
    only_warn: bool,
) -> list[str]:
    problems = fit.check_fit(plan, live, others)
    if not problems:
        return []
    text = plan_report.problems_text(problems)
    if only_warn:
        return [f"the plan does not fit; starting all the same ({settings.MEMORY_CHECK})", text]
    raise JudgedAgainst(
        f"The memory plan does not fit.\n{text}\nEvery line of the plan: `sglang-mi300a plan`. "
        "Published figures and estimates in it may be too high for your machine; to start all the "
        f"same: {settings.MEMORY_CHECK}=warn"
    )


def _binding(
    job: JobMemory, live: unified_memory.NodeMemory, fields: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return SGLang's field that binds ranks, and what keeps them from being bound."""
    nodes = [apu.numa_node for apu in live.apus]
    if fields.get("numa_node") is not None or not all(apu.shared for apu in live.apus):
        return {}, []
    if min(nodes) < 0:
        return {}, ["no NUMA node of an accelerator is known: ranks are not bound"]
    wanted = {place.numa_node for place in job.places}
    cannot = binding.unusable(wanted, binding.running_on(), Path(job.root))
    return {"numa_node": nodes}, cannot


def watch(record: settings.Resolved, server_args: Any, say: Callable[[str], None]) -> None:
    """Watch the APUs of a server until it ends; return at once where it has none.

    Args:
        record: The launcher's decision.
        server_args: SGLang's ``ServerArgs``, complete.
        say: Where lines go.
    """
    job = JobMemory.of_data(record.memory)
    if job is None or not all(place.shared for place in job.places):
        return
    said = f"simulated node {job.root}: " if job.root != "/" else ""

    def sample() -> list[Sample]:
        return [Sample.of(apu) for apu in job.apus_now()]

    try:
        first = sample()
    except UserError as error:
        say(f"memory is not watched: {error}")
        return
    reserves, warnings = watched_reserves(job.plan.reserve.planned, first)
    for line in [*_taken(job, boot_report.read_all(Path(record.run_dir)), first), *warnings]:
        say(f"{said}{line}")
    full = server_args.pp_max_micro_batch_size or record.max_running_requests
    watcher = Watcher(
        watch=Watch(reserves),
        sample=sample,
        drop=lambda: page_cache.drop(Path(record.model_path).rglob("*.safetensors")),
        admissions=HttpAdmissions(server_args, int(full)),
        gauges=Gauges() if server_args.enable_metrics else NoGauges(),
        say=lambda line: say(f"{said}{line}"),
    )
    watcher.run(Path(record.run_dir).is_dir)


def _taken(job: JobMemory, reports: Mapping[int, RankReport], now: Sequence[Sample]) -> list[str]:
    """Return what each APU gave since its weights began to load, beside what was planned."""
    taken: dict[int, int] = {}
    planned: dict[int, int] = {}
    for rank, sample in enumerate(now):
        before = reports[rank].facts[after_weights.BEFORE]
        taken[sample.apu] = before - sample.free_bytes - sample.reclaimable_bytes
        planned[sample.apu] = planned.get(sample.apu, 0) + job.plan.ranks[rank].planned("device")
    return [
        f"APU {apu}: {both(num_bytes)} taken since its weights began to load, "
        f"{both(planned[apu])} planned for the device"
        for apu, num_bytes in taken.items()
    ]


def forbid_core_dumps() -> None:
    """Set the core-dump limit of this process and its children to 0.

    A rank's GPU core dump is about 20 GB, and on tmpfs it takes the memory that pools are cut
    from.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
