"""What a job may take of a node's accelerators: the plan, and the accelerator of every rank.

The launcher makes it and hands it to its ranks as plain data, so that all judge by one plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sglang_mi300a.model_dims import ModelDims
from sglang_mi300a.pools import unified_memory
from sglang_mi300a.pools.estimates import Amount
from sglang_mi300a.pools.memory_plan import Asked, Line, Plan, WeightBytes
from sglang_mi300a.pools.pool_sizes import Scheduler
from sglang_mi300a.pools.unified_memory import ApuMemory, HipView, NodeMemory


@dataclass(frozen=True)
class Place:
    """Where one rank runs.

    Attributes:
        apu: Position among the accelerators that the job sees, as HIP and messages count.
        accelerator: Position among all of the node's, as the kernel counts.
        numa_node: Its NUMA node; -1 for a GPU with memory of its own.
        shared: Whether the CPU uses the same memory.
    """

    apu: int
    accelerator: int
    numa_node: int
    shared: bool


@dataclass(frozen=True)
class JobMemory:
    """A job's plan and places.

    Attributes:
        plan: What each rank will hold.
        places: Where the ranks run, in rank order.
        root: Directory that stands for ``/``; another one for a simulated node.
        only_warn: Whether a plan that does not fit is said and not refused.
    """

    plan: Plan
    places: tuple[Place, ...]
    root: str = "/"
    only_warn: bool = False

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data; nothing is lost in JSON."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> JobMemory | None:
        """Return what :meth:`as_data` wrote; None for no data: no accelerator's memory is planned.

        Args:
            data: Written by this very version's launcher.
        """
        if not data:
            return None
        plan = data["plan"]
        asked = {**plan["asked"], "scheduler": Scheduler(**plan["asked"]["scheduler"])}
        return cls(
            plan=Plan(
                dims=ModelDims(**plan["dims"]),
                tp=plan["tp"],
                ep=plan["ep"],
                weights=tuple(WeightBytes(**row) for row in plan["weights"]),
                asked=Asked(**asked),
                host=Amount(**plan["host"]),
                reserve=Amount(**plan["reserve"]),
                extra=tuple(
                    Line(**{**row, "amount": Amount(**row["amount"])}) for row in plan["extra"]
                ),
            ),
            places=tuple(Place(**row) for row in data["places"]),
            root=data["root"],
            only_warn=data["only_warn"],
        )

    def apu_of(self, rank: int, *, hip: HipView | None = None, holders: bool = False) -> ApuMemory:
        """Return what the accelerator of a rank has to give now.

        Args:
            rank: The rank.
            hip: What HIP says of it, where it was asked.
            holders: Whether to look for what holds memory there, which is slow.

        Raises:
            UserError: Its memory cannot be told.
        """
        place = self.places[rank]
        live = unified_memory.read(
            Path(self.root),
            visible=[place.accelerator],
            hip={0: hip} if hip else None,
            num_ranks=len(self.places),
            with_holders=holders,
        )
        return replace(live.apus[0], index=place.apu)

    def apus_now(self) -> tuple[ApuMemory, ...]:
        """Return what the accelerators of all ranks have to give now, in rank order.

        Raises:
            UserError: The memory of one cannot be told.
        """
        return tuple(self.apu_of(rank) for rank in range(len(self.places)))


def placed(live: NodeMemory, devices: list[int], visible: list[int] | None) -> list[Place]:
    """Return the places of ranks.

    Args:
        live: The accelerators that the job sees.
        devices: Of each rank, its position among them.
        visible: Positions of what the job sees among all of the node's, in its order; None: all.
    """
    return [
        Place(
            apu=device,
            accelerator=device if visible is None else visible[device],
            numa_node=live.apus[device].numa_node,
            shared=live.apus[device].shared,
        )
        for device in devices
    ]
