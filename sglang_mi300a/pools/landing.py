"""On which APU the weights landed, from what every APU had before and after they were loaded.

Where an APU's own memory runs short, the kernel quietly takes pages of a neighbour's. The server
then runs, slower, and the neighbour lacks what was planned for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_mi300a.pools.byte_text import GIB, both

_LEAST_BYTES = GIB
_SHARE = 0.05
"""What a difference must exceed to be told: contexts, libraries and other programs move too."""


@dataclass(frozen=True)
class Load:
    """One APU while weights were loaded.

    Attributes:
        apu: Its index.
        before_bytes: Free and reclaimable before.
        after_bytes: The same after.
        expected_bytes: Weights that belong there.
    """

    apu: int
    before_bytes: int
    after_bytes: int
    expected_bytes: int

    @property
    def surplus_bytes(self) -> int:
        """What went beyond the weights; negative where less went. Noise is 0."""
        found = self.before_bytes - self.after_bytes - self.expected_bytes
        return found if abs(found) > max(_LEAST_BYTES, _SHARE * self.expected_bytes) else 0


@dataclass(frozen=True)
class Landing:
    """Bytes that are not where they belong.

    Attributes:
        num_bytes: How many.
        apu: Whose weights; None: nobody's, another program took them.
        on: The APU whose memory they took; None: no other APU's, so of a NUMA node without one.
    """

    num_bytes: int
    apu: int | None
    on: int | None

    def __str__(self) -> str:
        """Return what happened and what to do."""
        if self.apu is None:
            return (
                f"APU {self.on}: {both(self.num_bytes)} more than its weights went while they were "
                "loaded; another program takes its memory"
            )
        where = (
            f"APU {self.on}" if self.on is not None else "a NUMA node that is no APU of this job"
        )
        return (
            f"APU {self.apu}: {both(self.num_bytes)} of its weights landed on {where}, which makes "
            "them slower to read and takes what was planned there; free memory of APU "
            f"{self.apu} before the start (`sglang-mi300a plan` names what holds it)"
        )


def landings(loads: Sequence[Load]) -> list[Landing]:
    """Return what landed elsewhere, the most first.

    Args:
        loads: One an APU of the job.
    """
    short = {load.apu: -load.surplus_bytes for load in loads if load.surplus_bytes < 0}
    over = {load.apu: load.surplus_bytes for load in loads if load.surplus_bytes > 0}
    found = []
    for apu, missing in sorted(short.items(), key=lambda pair: -pair[1]):
        for other in sorted(over, key=lambda one: -over[one]):
            moved = min(missing, over[other])
            if moved > 0:
                found.append(Landing(moved, apu, other))
                missing, over[other] = missing - moved, over[other] - moved
        if missing > _LEAST_BYTES:
            found.append(Landing(missing, apu, None))
    found += [Landing(left, None, other) for other, left in over.items() if left > _LEAST_BYTES]
    return sorted(found, key=lambda one: -one.num_bytes)
