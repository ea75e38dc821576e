"""What the pools room changes in SGLang."""

from __future__ import annotations

from typing import Any

from sglang_mi300a import boot_timeline, gates, hooking, settings
from sglang_mi300a.hooking import AnySeam, Hook, Reliance
from sglang_mi300a.pools import after_weights, available_memory, fixed_sizes
from sglang_mi300a.pools.prefill_accumulation import (
    AccumulatingDelayer,
    Limits,
    first_rank_decides,
)
from sglang_mi300a.pools.turn_tail.seams import SEAMS as TURN_TAIL_SEAMS
from sglang_mi300a.pools.unified_memory import HipView

_ACCUMULATES = "SGLang's own delayer waits for new tokens and runs without overlap scheduling"
_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"
_NUMA = "sglang.srt.utils.numa_utils"


def _record() -> settings.Resolved:
    record = settings.resolved()
    assert record is not None  # ranks without a record install nothing
    return record


def _hip(device: str, gpu_id: int) -> HipView | None:
    import torch

    return HipView(*torch.cuda.mem_get_info(gpu_id)) if device == "cuda" else None


def _planned_bytes(original: Any, self: Any, pre_model_load_memory: int) -> int:
    after_weights.look_after(gates.of_this_process(), _record(), _hip(self.device, self.gpu_id))
    if self.mambaish_config is not None:
        # Its result is part of the profile; its side effect, the pool's slot count, is needed.
        self._handle_max_mamba_cache(fixed_sizes.ENDLESS_GIB)
    return fixed_sizes.ENDLESS_BYTES


def _assert_sizes(result: Any, self: Any, **_: Any) -> None:
    fixed_sizes.check_on_every_rank(result, self, _record(), gates.of_this_process())
    pools = (result.token_to_kv_pool, getattr(result.req_to_token_pool, "mamba_pool", None))
    gib = sum(float(getattr(pool, "mem_usage", 0.0)) for pool in pools)
    boot_timeline.mark("pools", round(gib * (1 << 30)))


def _available_memory(
    original: Any, device: str, gpu_id: int, distributed: bool = False, *rest: Any, **more: Any
) -> float:
    record, rank = _record(), gates.of_this_process()
    if not available_memory.is_planned(record, rank):
        found: float = original(device, gpu_id, distributed, *rest, **more)
        return found
    original(device, gpu_id, False, *rest, **more)  # gives back what torch keeps for reuse
    hip = _hip(device, gpu_id)
    return available_memory.available_gib(record, rank, hip, distributed=distributed)


def _accumulate_prefills(result: None, self: Any, *_: Any, **__: Any) -> None:
    boot_timeline.mark("scheduler")
    limits = Limits.from_text(settings.get(settings.ACCUMULATE), settings.ACCUMULATE)
    fits = not hooking.skipped("pools.accumulate_")
    if fits and self.prefill_delayer is None and limits.hold_back:
        self.prefill_delayer = AccumulatingDelayer(
            limits,
            queue=lambda: self.waiting_queue,
            in_chunks=lambda: self.chunked_req is not None,
            decided_by_one=first_rank_decides(self.tp_cpu_group),
        )


def _relies_on_executor(name: str, target: str, why: str) -> Reliance:
    return Reliance(
        name=f"pools.accumulate_{name}",
        target=target,
        required=False,
        why=why,
        remove_when=_ACCUMULATES,
    )


HOOKS: tuple[AnySeam, ...] = (
    Hook(
        name="pools.planned_bytes",
        target=f"{_CONFIGURATOR}._profile_available_bytes",
        kind="around",
        call=_planned_bytes,
        needs=("self", "pre_model_load_memory"),
        reached_by="pools",
        why="stock sizes pools from whatever is free at that moment, and on an APU that is the "
        "whole node's memory for each rank; --max-total-tokens is only an upper bound",
        remove_when="SGLang takes exact pool sizes",
    ),
    Hook(
        name="pools.assert_sizes",
        target=f"{_CONFIGURATOR}.configure",
        kind="after",
        call=_assert_sizes,
        needs=("self", "pre_model_load_memory"),
        reached_by="pools",
        why="a pool of another size than planned must stop the server, not surprise it later",
        remove_when="SGLang takes exact pool sizes",
    ),
    Hook(
        name="pools.available_memory",
        target="sglang.srt.utils.common.get_available_gpu_memory",
        kind="around",
        call=_available_memory,
        needs=("device", "gpu_id", "distributed", "empty_cache"),
        callers=(
            "sglang.srt.model_executor.model_runner.get_available_gpu_memory",
            "sglang.srt.distributed.bootstrap.get_available_gpu_memory",
        ),
        # Without it SGLang logs and compares the node's sum; pools are planned either way.
        required=False,
        reached_by="load",
        why="on an APU stock takes the whole node's free memory for that of each rank, so its log "
        "lines, its check that ranks are balanced and what graphs took are of no use; no option "
        "says otherwise",
        remove_when="SGLang reads an APU's own NUMA node",
    ),
    Reliance(
        name="pools.handle_max_mamba_cache",
        target=f"{_CONFIGURATOR}._handle_max_mamba_cache",
        why="its side effect sets the number of linear-attention state slots",
        remove_when="SGLang takes exact pool sizes",
    ),
    Reliance(
        name="pools.config_from_budget",
        target=f"{_CONFIGURATOR}.config_from_budget",
        why="it turns the byte budget back into tokens",
        remove_when="SGLang takes exact pool sizes",
    ),
    Reliance(
        name="pools.bind_to_numa_node",
        target=f"{_NUMA}.numa_bind_to_node",
        device="gfx942",
        required=False,
        why="it binds a rank to the CPUs and the memory of the NUMA node that --numa-node names",
        remove_when="SGLang finds the NUMA node of an APU by itself",
    ),
    Reliance(
        name="pools.numa_node_of_rank",
        target=f"{_NUMA}.get_numa_node_if_available",
        device="gfx942",
        required=False,
        why="it takes the NUMA node of a rank from --numa-node, by the device's number",
        remove_when="SGLang finds the NUMA node of an APU by itself",
    ),
    *TURN_TAIL_SEAMS,
    Hook(
        name="pools.accumulate_prefills",
        target="sglang.srt.managers.scheduler.Scheduler.__init__",
        kind="after",
        call=_accumulate_prefills,
        needs=("self",),
        required=False,
        reached_by="prefill",
        why="a prefill pass holds all running requests up, for one short prompt nearly as long as "
        "for several; stock's own delayer waits for other conditions and refuses to be built "
        "without overlap scheduling",
        remove_when=_ACCUMULATES,
    ),
    _relies_on_executor(
        "executor",
        "sglang.srt.managers.prefill_delayer.PrefillDelayerSinglePassExecutor",
        "it asks the delayer once a pass",
    ),
    _relies_on_executor(
        "verdict",
        "sglang.srt.managers.prefill_delayer._record_single_pass_result",
        "it reads the delayer's decision and counts it",
    ),
    _relies_on_executor(
        "pass",
        "sglang.srt.managers.scheduler.Scheduler.get_new_batch_prefill",
        "it takes Scheduler.prefill_delayer into every pass",
    ),
    _relies_on_executor(
        "admission",
        "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req",
        "it asks after the first queued request's prefix is known, and admits none if told so",
    ),
)
