"""Findings about variables of the shell that a server would be started from."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_mi300a.code_objects import ARCH
from sglang_mi300a.doctor.facts import Facts
from sglang_mi300a.doctor.judging import Seen, judge

LONG_ENOUGH_S = 600
"""The slowest kernel that AITER is known to compile in a request took 363 s."""
_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_ON = ("1", "true", "True")


def _set(facts: Facts, name: str) -> Iterator[str]:
    value = facts.environment.get(name)
    if value is not None:
        yield value


@judge(
    "breaks",
    why="a kernel compiled within the first request takes minutes; a health check that gives up "
    "earlier ends the server (SGLang's default is 20 s)",
    cure="unset SGLANG_HEALTH_CHECK_TIMEOUT (a launch raises it by what AITER has yet to compile)",
)
def health_check_too_short(facts: Facts) -> Iterator[Seen]:
    """Judge that a health check waits long enough."""
    for value in _set(facts, "SGLANG_HEALTH_CHECK_TIMEOUT"):
        if not value.isdigit() or int(value) < LONG_ENOUGH_S:
            yield Seen(f"SGLANG_HEALTH_CHECK_TIMEOUT={value}")


@judge(
    "risks",
    why="presets count on AITER's attention, norms and collectives, and leave what you set alone",
    cure="unset SGLANG_USE_AITER",
)
def aiter_turned_off(facts: Facts) -> Iterator[Seen]:
    """Judge that AITER is not turned off by hand."""
    for value in _set(facts, "SGLANG_USE_AITER"):
        if value not in _ON:
            yield Seen(f"SGLANG_USE_AITER={value}")


@judge(
    "breaks",
    why="SGLang asks for processors by number; under a cpuset that lacks some the call fails and "
    "the rank ends (EINVAL)",
    cure="unset SGLANG_SET_CPU_AFFINITY",
)
def affinity_under_a_cpuset(facts: Facts) -> Iterator[Seen]:
    """Judge that SGLang does not bind processors that the job may not use."""
    for value in _set(facts, "SGLANG_SET_CPU_AFFINITY"):
        allowed, there = facts.cpus.allowed_by_node, facts.cpus.by_node
        if value in _ON and sum(allowed.values()) < sum(there.values()):
            yield Seen(
                f"SGLANG_SET_CPU_AFFINITY={value} with {sum(allowed.values())} of "
                f"{sum(there.values())} processors"
            )


@judge(
    "breaks",
    why="SGLang loads only the plugins that this variable names; ranks without ours have no expert "
    "layer",
    cure="unset SGLANG_PLUGINS, or add mi300a to it",
    anywhere=True,
)
def plugin_left_out(facts: Facts) -> Iterator[Seen]:
    """Judge that SGLANG_PLUGINS names this package, if it names any."""
    for value in _set(facts, "SGLANG_PLUGINS"):
        if "mi300a" not in [part.strip() for part in value.split(",")]:
            yield Seen(f"SGLANG_PLUGINS={value}")


@judge(
    "breaks",
    why="HIP's build of torch has no expandable segments; with them custom all-reduce cannot share "
    "its buffers",
    cure="unset {name}",
)
def expandable_segments(facts: Facts) -> Iterator[Seen]:
    """Judge that torch's allocator is not told to use expandable segments."""
    for name in _ALLOCATORS:
        for value in _set(facts, name):
            if "expandable_segments:True" in value:
                yield Seen(f"{name}={value}", {"name": name})


@judge(
    "breaks",
    why="the runtime then loads kernels of another architecture",
    cure="unset HSA_OVERRIDE_GFX_VERSION",
)
def architecture_overridden(facts: Facts) -> Iterator[Seen]:
    """Judge that the architecture is not overridden."""
    for value in _set(facts, "HSA_OVERRIDE_GFX_VERSION"):
        yield Seen(f"HSA_OVERRIDE_GFX_VERSION={value}")


@judge(
    "breaks",
    why="what AITER and torch extensions compile would be for other cards only",
    cure="export {name}=gfx942",
)
def built_for_another_card(facts: Facts) -> Iterator[Seen]:
    """Judge that kernels are compiled for this card."""
    for name in ("GPU_ARCHS", "PYTORCH_ROCM_ARCH"):
        for value in _set(facts, name):
            if value and value != "native" and ARCH not in value:
                yield Seen(f"{name}={value}", {"name": name})


@judge(
    "risks",
    why="every kernel waits for the one before, or writes a line",
    cure="unset HIP_LAUNCH_BLOCKING AMD_SERIALIZE_KERNEL AMD_LOG_LEVEL",
)
def debugging_left_on(facts: Facts) -> Iterator[Seen]:
    """Judge that no debugging variable is left on."""
    for name in ("HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL", "AMD_LOG_LEVEL"):
        for value in _set(facts, name):
            if value not in ("", "0"):
                yield Seen(f"{name}={value}")


@judge(
    "risks",
    why="tuning while serving measures candidates in requests; some of them fault, and each rank "
    "may choose differently",
    cure="export PYTORCH_TUNABLEOP_TUNING=0",
)
def tuning_while_serving(facts: Facts) -> Iterator[Seen]:
    """Judge that TunableOp does not tune in a server."""
    enabled = facts.environment.get("PYTORCH_TUNABLEOP_ENABLED") == "1"
    if enabled and facts.environment.get("PYTORCH_TUNABLEOP_TUNING", "1") != "0":
        shown = facts.environment.get("PYTORCH_TUNABLEOP_TUNING", "not set, which means 1")
        yield Seen(f"PYTORCH_TUNABLEOP_TUNING {shown}")


@judge(
    "risks",
    why="together they keep TunableOp's lines about its table out of the log, so a table that was "
    "dropped is not noticed",
    cure="unset PYTORCH_TUNABLEOP_RECORD_UNTUNED PYTORCH_TUNABLEOP_UNTUNED_FILENAME",
)
def tunableop_goes_silent(facts: Facts) -> Iterator[Seen]:
    """Judge that untuned shapes are not recorded while serving."""
    names = ("PYTORCH_TUNABLEOP_RECORD_UNTUNED", "PYTORCH_TUNABLEOP_UNTUNED_FILENAME")
    if all(name in facts.environment for name in names):
        yield Seen(" and ".join(names))


@judge(
    "risks",
    why="drafting with replay sets its own dtype and overwrites this variable",
    cure="pass --mamba-ssm-dtype instead, and look at accuracy",
)
def state_dtype_by_variable(facts: Facts) -> Iterator[Seen]:
    """Judge that the state's dtype is not set where it is overwritten."""
    for value in _set(facts, "SGLANG_MAMBA_SSM_DTYPE"):
        if value != "float32":
            yield Seen(f"SGLANG_MAMBA_SSM_DTYPE={value}")


@judge(
    "risks",
    why="the switch that turns AITER on is for gfx942 and gfx950; images that set it break others",
    cure="unset SGLANG_USE_AITER",
    anywhere=True,
)
def aiter_on_another_card(facts: Facts) -> Iterator[Seen]:
    """Judge that AITER is not on where no card of its kind is."""
    archs = {one.arch for one in facts.devices.found}
    for value in _set(facts, "SGLANG_USE_AITER"):
        if value in _ON and archs and not archs & {ARCH, "gfx950"}:
            yield Seen(f"SGLANG_USE_AITER={value} on {', '.join(sorted(archs))}")
