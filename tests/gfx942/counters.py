"""What a launch executed: wave-instructions by class, mnemonic and place, and memory segments."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tests.gfx942.disassembly import Line


@dataclass(frozen=True)
class MemoryUse:
    """One memory instruction's traffic.

    Attributes:
        line: The instruction.
        executed: How often a wave executed it.
        lanes: Active lanes, summed over these.
        segments: Distinct 64-byte segments touched, summed over these; 0 for LDS and scratch.
    """

    line: Line
    executed: int
    lanes: int
    segments: int


@dataclass(frozen=True)
class UninitialisedRead:
    """A register (``v3``, ``a0``, ``s7``) or LDS word that was read before anything was written."""

    where: str
    text: str
    register: str
    workgroup: int
    wave: int

    def __str__(self) -> str:
        return f"{self.register} in {self.text!r} at {self.where}, workgroup {self.workgroup}"


@dataclass(frozen=True)
class Counters:
    """The counts of one launch.

    Attributes:
        kernel: Its name.
        lines: The code object's instructions; the arrays below have one entry for each.
        classes: The class of each.
        executed: Wave-instructions.
        lanes: Active lanes of memory instructions.
        segments: Distinct 64-byte segments of memory instructions.
        waves: Waves started.
        workgroups: Workgroups started.
        seconds: CPU time of the interpreter itself.
        uninitialised_reads: The first of these, each register once a wave.
    """

    kernel: str
    lines: Sequence[Line]
    classes: Sequence[str]
    executed: np.ndarray
    lanes: np.ndarray
    segments: np.ndarray
    waves: int
    workgroups: int
    seconds: float
    uninitialised_reads: tuple[UninitialisedRead, ...]

    @property
    def instructions(self) -> int:
        """All wave-instructions."""
        return int(self.executed.sum())

    @property
    def rate(self) -> float:
        """Wave-instructions a CPU second of the interpreter."""
        return self.instructions / max(self.seconds, 1e-9)

    @cached_property
    def by_class(self) -> Counter[str]:
        """Wave-instructions by class: valu, mfma, salu, branch, waitcnt, nop, barrier, smem,
        vmem_load, vmem_store, vmem_atomic, lds, scratch, message."""
        return self._sum(self.classes)

    @cached_property
    def by_mnemonic(self) -> Counter[str]:
        """Wave-instructions by mnemonic, without the encoding's suffix."""
        return self._sum([line.mnemonic for line in self.lines])

    def _sum(self, keys: Sequence[str]) -> Counter[str]:
        total: Counter[str] = Counter()
        for number in np.flatnonzero(self.executed):
            total[keys[number]] += int(self.executed[number])
        return total

    def at(self, pc: int) -> int:
        """Return how often the instruction at an address was executed."""
        return sum(
            int(count)
            for line, count in zip(self.lines, self.executed, strict=True)
            if line.pc == pc
        )

    @cached_property
    def memory(self) -> list[MemoryUse]:
        """The memory instructions that were executed, in order of addresses."""
        wanted = ("vmem_", "smem", "lds", "scratch")
        return [
            MemoryUse(
                self.lines[k], int(self.executed[k]), int(self.lanes[k]), int(self.segments[k])
            )
            for k in np.flatnonzero(self.executed)
            if self.classes[k].startswith(wanted)
        ]

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.by_class.items()))
        return f"{self.kernel}: {self.waves} waves, {self.instructions} instructions ({counts})"
