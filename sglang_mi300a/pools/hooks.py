"""What the pools room changes in SGLang."""

from __future__ import annotations

from typing import Any

from sglang_mi300a import settings
from sglang_mi300a.hooking import AnySeam, Hook, Reliance
from sglang_mi300a.pools.fixed_sizes import ENDLESS_BYTES, ENDLESS_GIB, check_sizes
from sglang_mi300a.pools.turn_tail.seams import SEAMS as TURN_TAIL_SEAMS

_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"


def _planned_bytes(original: Any, self: Any, pre_model_load_memory: int) -> int:
    if self.mambaish_config is not None:
        # Its result is part of the profile; its side effect, the pool's slot count, is needed.
        self._handle_max_mamba_cache(ENDLESS_GIB)
    return ENDLESS_BYTES


def _assert_sizes(result: Any, self: Any, **_: Any) -> None:
    record = settings.resolved()
    assert record is not None  # ranks without a record install nothing
    check_sizes(result, self, record)


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
    *TURN_TAIL_SEAMS,
)
