"""What one step of the walk did: lines, commands, tables and pictures, and what went against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

EVIDENCE = {
    "E0": "computed or run on a CPU, SGLang's CPU engine included",
    "E1": "gfx942 machine code executed in an interpreter",
}
"""The levels that a step here can have."""

PASSED = "passed"
FAILED = "failed"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Line:
    """One sentence."""

    text: str


@dataclass(frozen=True)
class Command:
    """A command as it was typed, and what it printed."""

    typed: str
    output: str
    exit_code: int


@dataclass(frozen=True)
class Table:
    """Rows under a head; every cell a text."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """An image, and what it shows in words."""

    media_type: str
    data: bytes = field(repr=False)
    shows: str


Piece = Line | Command | Table | Picture


@dataclass
class Account:
    """One step, as it goes on.

    Attributes:
        name: Short name, in messages and for machines.
        title: What it shows.
        evidence: Its level, a key of :data:`EVIDENCE`.
        on_piece: Told each piece as it comes.
        pieces: What there is to read.
        faults: What went against; the step failed if there are any.
        status: ``passed``, ``failed`` or ``not run``.
        seconds: It took.
    """

    name: str
    title: str
    evidence: str
    on_piece: Callable[[Piece], None] = field(default=lambda piece: None, repr=False)
    pieces: list[Piece] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    status: str = PASSED
    seconds: float = 0.0

    def add(self, piece: Piece) -> None:
        """Add something to read."""
        self.pieces.append(piece)
        self.on_piece(piece)

    def say(self, text: str) -> None:
        """Add a sentence."""
        self.add(Line(text))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Add a table."""
        self.add(Table(tuple(head), tuple(tuple(map(str, row)) for row in rows)))

    def fault(self, text: str) -> None:
        """Say what went against: the step has failed, and goes on if it can."""
        self.faults.append(text)
        self.status = FAILED

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note a fault unless something holds."""
        if not holds:
            self.fault(otherwise)

    def not_run(self, why: str) -> None:
        """Say why the step was left out."""
        self.status = NOT_RUN
        self.say(f"not run: {why}")
