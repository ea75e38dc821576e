"""What to do about memory that grows short while serving: a decision from samples, nothing else.

Pools do not grow, but an APU's memory also belongs to the page cache, to other programs and to the
host side of the server. Too little of it ends in the kernel's out-of-memory killer, so first the
page cache of our own weight files is given back, and then the scheduler is told to admit one
request at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sglang_mi300a.pools.byte_text import MIB, both
from sglang_mi300a.pools.unified_memory import ApuMemory

STEPS_BETWEEN_DROPS = 30
STEPS_TO_RESUME = 3
_WORTH_DROPPING_BYTES = 64 * MIB
_RESUME_NUMERATOR, _RESUME_DENOMINATOR = 5, 4
"""Admissions resume at 1.25 of the reserve, so that they do not start and stop at its edge."""


@dataclass(frozen=True)
class Sample:
    """One APU at one moment.

    Attributes:
        apu: Its index.
        free_bytes: Free pages of its NUMA node.
        reclaimable_bytes: Pages that the kernel gives up on demand.
        available_bytes: What may be allocated: both, under every limit.
    """

    apu: int
    free_bytes: int
    reclaimable_bytes: int
    available_bytes: int

    @classmethod
    def of(cls, apu: ApuMemory) -> Sample:
        """Return the sample of an APU that was read."""
        return cls(apu.index, apu.free_bytes, apu.reclaimable_bytes, apu.available_bytes)


@dataclass(frozen=True)
class Decision:
    """What to do after one round of samples.

    Attributes:
        drop: Whether to give back the page cache of our files.
        pause: Whether admissions should be paused now.
        said: Lines for the user.
    """

    drop: bool
    pause: bool
    said: tuple[str, ...]


def watched_reserves(
    planned_bytes: int, samples: Iterable[Sample]
) -> tuple[dict[int, int], list[str]]:
    """Return the reserve to watch of each APU, and what to say of those that begin under it.

    Where less than the planned reserve is left when serving begins, estimates of the plan were too
    low; pausing for good would help nobody. Half of what is there is watched instead.

    Args:
        planned_bytes: The plan's reserve.
        samples: Of all APUs when serving begins.
    """
    reserves, said = {}, []
    for sample in samples:
        reserves[sample.apu] = min(planned_bytes, sample.available_bytes // 2)
        if sample.available_bytes < planned_bytes:
            said.append(
                f"APU {sample.apu}: serving begins with {both(sample.available_bytes)} available, "
                f"under the planned reserve of {both(planned_bytes)}: estimates of the plan were "
                f"too low; half of it is watched as the reserve"
            )
    return reserves, said


class Watch:
    """The state between rounds.

    Attributes:
        paused: Whether admissions should be paused.
    """

    def __init__(self, reserves: Mapping[int, int]) -> None:
        self.paused = False
        self._reserves = dict(reserves)
        self._short_steps = 0
        self._good_steps = 0
        self._steps_since_drop = STEPS_BETWEEN_DROPS

    def step(self, samples: Iterable[Sample]) -> Decision:
        """Return what to do, given one sample of each APU."""
        rows = list(samples)
        said: list[str] = []
        drop = self._drops(rows, said)
        self._pauses(rows, said)
        return Decision(drop, self.paused, tuple(said))

    def _drops(self, rows: list[Sample], said: list[str]) -> bool:
        self._steps_since_drop += 1
        crowded = [
            row
            for row in rows
            if row.free_bytes < self._reserves[row.apu]
            and row.reclaimable_bytes >= _WORTH_DROPPING_BYTES
        ]
        if not crowded or self._steps_since_drop <= STEPS_BETWEEN_DROPS:
            return False
        self._steps_since_drop = 0
        said += [
            f"APU {row.apu}: {both(row.free_bytes)} of free pages, under the reserve of "
            f"{both(self._reserves[row.apu])}; the page cache of the weight files is given back"
            for row in crowded
        ]
        return True

    def _pauses(self, rows: list[Sample], said: list[str]) -> None:
        short = [row for row in rows if row.available_bytes < self._reserves[row.apu]]
        self._short_steps = self._short_steps + 1 if short else 0
        enough = all(row.available_bytes >= self._resume_at(row.apu) for row in rows)
        self._good_steps = self._good_steps + 1 if enough else 0
        # One round under the reserve gives the dropped cache its chance.
        if not self.paused and self._short_steps >= 2:
            self.paused = True
            said += [
                f"APU {row.apu}: {both(row.available_bytes)} available, under the reserve of "
                f"{both(self._reserves[row.apu])}: admissions are paused, requests wait and run "
                f"one at a time, until {both(self._resume_at(row.apu))} are available"
                for row in short
            ]
        elif self.paused and self._good_steps >= STEPS_TO_RESUME:
            self.paused = False
            said.append("every APU has its reserve again: admissions resume")

    def _resume_at(self, apu: int) -> int:
        return self._reserves[apu] * _RESUME_NUMERATOR // _RESUME_DENOMINATOR
