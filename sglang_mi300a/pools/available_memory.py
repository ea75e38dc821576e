"""What SGLang is told when a rank asks how much memory its accelerator has free."""

from __future__ import annotations

from typing import Any

from sglang_mi300a.gates import RankGates
from sglang_mi300a.pools.byte_text import GIB
from sglang_mi300a.pools.job_memory import JobMemory
from sglang_mi300a.pools.unified_memory import HipView
from sglang_mi300a.settings import Resolved


def is_planned(record: Resolved | None, gates: RankGates) -> bool:
    """Return whether this rank runs on an APU whose memory this package accounts for.

    Args:
        record: What the launcher told this rank.
        gates: This rank's gates.
    """
    places = record.memory.get("places", ()) if record else ()
    return bool(places and places[gates.rank]["shared"])


def available_gib(
    record: Resolved, gates: RankGates, hip: HipView | None, *, distributed: bool
) -> float:
    """Return free memory of this rank's APU, its own NUMA node's under every limit, in GiB.

    Args:
        record: What the launcher told this rank.
        gates: This rank's gates.
        hip: What HIP says of the device; None on no accelerator.
        distributed: Whether the least of all ranks is meant; then all ranks call.

    Raises:
        UserError: Its memory cannot be told.
    """
    job = JobMemory.of_data(record.memory)
    assert job is not None
    mine: Any = job.apu_of(gates.rank, hip=hip).available_bytes
    return float(min(gates.all_gather(mine)) if distributed else mine) / GIB
