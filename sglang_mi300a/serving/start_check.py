"""What each rank checks and reports once the warm-up is over, all ranks at the same point.

It is called where SGLang empties its caches at the end of the warm-up: that request reaches every
rank between the same two steps, and nothing runs then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_mi300a import boot_report, boot_timeline
from sglang_mi300a.errors import JudgedAgainst
from sglang_mi300a.gates import RankGates
from sglang_mi300a.serving import fused_paths, steps

FACT = "start_check"
SIZES = ((1, 4096), (96, 4096))
"""Shapes [tokens, hidden] that are summed: one of decode's, one of prefill's."""


def expected_sum(num_ranks: int) -> int:
    """Return what a 1 on rank 0, a 2 on rank 1 and so on add up to."""
    return num_ranks * (num_ranks + 1) // 2


def sums_are_right(rank: int, num_ranks: int, device: str, all_reduce: Callable[[Any], Any]) -> str:
    """Return what is wrong with sums over ranks, or "".

    Args:
        rank: This rank among those that sum.
        num_ranks: How many.
        device: Of the tensors.
        all_reduce: As the model calls it; takes and returns a bfloat16 tensor.
    """
    import torch

    for shape in SIZES:
        # Small whole numbers: every partial sum is exact in bfloat16, in any order.
        pattern = (torch.arange(shape[0] * shape[1], device=device) % 7).reshape(shape)
        mine = (pattern * (rank + 1)).to(torch.bfloat16)
        got = all_reduce(mine).to(torch.int64)
        wrong = got != pattern * expected_sum(num_ranks)
        if bool(wrong.any()):
            return (
                f"all-reduce of {list(shape)} bfloat16 over {num_ranks} ranks: "
                f"{int(wrong.sum())} of {wrong.numel()} sums are wrong"
            )
    return ""


def run(gates: RankGates, check_sums: Callable[[], str]) -> None:
    """Check this rank, and write its report; called again later it only writes.

    Args:
        gates: This rank's.
        check_sums: Returns what is wrong with sums over ranks, or "".

    Raises:
        JudgedAgainst: Sums over ranks are wrong.
    """
    before = gates.facts.get(FACT)
    if before is None:
        with gates.refusing():
            problem = check_sums()
            if problem:
                raise JudgedAgainst(
                    f"rank {gates.rank}: {problem}; do: pass --disable-custom-all-reduce and "
                    "report this"
                )
        boot_timeline.mark("self-test")
        gates.facts["warm_up_steps"] = steps.of_this_process().as_data()
    gates.facts[FACT] = {
        "collective": "right",
        "sums": [list(shape) for shape in SIZES],
        "landed_elsewhere_bytes": gates.facts.get("memory.landed_elsewhere_bytes"),
    }
    gates.facts["steps"] = steps.of_this_process().as_data()
    gates.facts["fused_paths"] = fused_paths.taken()
    boot_report.add_fact("timeline", boot_timeline.as_data(boot_timeline.marks()))
    gates.report()
