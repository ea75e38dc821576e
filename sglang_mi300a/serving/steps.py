"""How many forward steps of the target a rank ran, by kind and batch, in a graph or eagerly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DECODING = ("DECODE", "TARGET_VERIFY")
"""Names of SGLang's forward modes in which a captured batch is expected."""


@dataclass
class Steps:
    """Counts by forward mode, then by batch size (requests): steps in a graph, steps without."""

    counts: dict[str, dict[int, list[int]]] = field(default_factory=dict)

    def add(self, mode: str, batch: int, *, in_graph: bool) -> None:
        """Count a step."""
        row = self.counts.setdefault(mode, {}).setdefault(batch, [0, 0])
        row[0 if in_graph else 1] += 1

    def as_data(self) -> dict[str, dict[str, list[int]]]:
        """Return the counts as plain JSON values."""
        return {
            mode: {str(batch): list(row) for batch, row in sorted(rows.items())}
            for mode, rows in self.counts.items()
        }


def of_data(data: dict[str, dict[str, list[int]]]) -> Steps:
    """Return counts out of plain JSON values."""
    return Steps(
        {
            mode: {int(batch): list(row) for batch, row in rows.items()}
            for mode, rows in data.items()
        }
    )


def total(steps: Steps, modes: tuple[str, ...]) -> tuple[int, int]:
    """Return steps in graphs and steps without, over some modes."""
    rows = [row for mode in modes for row in steps.counts.get(mode, {}).values()]
    return sum(row[0] for row in rows), sum(row[1] for row in rows)


def decode_batches(steps: Steps) -> dict[int, int]:
    """Return decode steps by batch size."""
    found: dict[int, int] = {}
    for mode in DECODING:
        for batch, row in steps.counts.get(mode, {}).items():
            found[batch] = found.get(batch, 0) + sum(row)
    return found


_of_this_process = Steps()


def of_this_process() -> Steps:
    """Return this rank's counts."""
    return _of_this_process


def count(result: Any, self: Any, forward_batch: Any, *_: Any, **__: Any) -> None:
    """Count one forward of SGLang's ``ModelRunner``; drafts have graphs of their own, elsewhere."""
    if not self.is_draft_worker:
        _of_this_process.add(
            forward_batch.forward_mode.name,
            int(forward_batch.batch_size),
            in_graph=bool(result.can_run_graph),
        )
