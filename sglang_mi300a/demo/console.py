"""The walk as it goes on, in a terminal."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence

from sglang_mi300a.demo.account import Account, Command, Line, Piece, Table

WIDTH = 100
MOST_LINES = 12


class Console:
    """Prints steps and what they say.

    Attributes:
        num_steps: Of the walk.
        quiet: Print nothing.
    """

    def __init__(self, num_steps: int, *, quiet: bool = False) -> None:
        self.num_steps = num_steps
        self.quiet = quiet
        self._number = 0
        self._began = time.monotonic()

    def start(self, account: Account) -> None:
        """Print a step's label."""
        self._number += 1
        clock = f"{time.monotonic() - self._began:4.0f} s"
        self._print(
            f"\n[{clock}] {self._number}/{self.num_steps} [{account.evidence}] {account.name}: "
            f"{account.title}"
        )

    def piece(self, piece: Piece) -> None:
        """Print what a step says; of a command's long output the end."""
        self._print("\n".join(f"    {line}" for line in _lines(piece)))

    def end(self, account: Account) -> None:
        """Print what went against."""
        for fault in account.faults:
            self._print(f"    FAILED: {fault}")

    def _print(self, text: str) -> None:
        if not self.quiet:
            print(text, flush=True)


def _lines(piece: Piece) -> list[str]:
    if isinstance(piece, Line):
        return textwrap.wrap(piece.text, WIDTH - 4)
    if isinstance(piece, Command):
        lines = piece.output.splitlines()
        skipped = len(lines) - MOST_LINES
        if skipped > 1:
            lines = [f"... {skipped} lines, in the page", *lines[skipped:]]
        return [f"$ {piece.typed}", *(f"  {line}" for line in lines)]
    if isinstance(piece, Table):
        return columns(piece.head, piece.rows)
    return [f"(picture in the page: {piece.shows})"]


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines, columns under each other."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]


def closing(accounts: Sequence[Account]) -> str:
    """Return the short table at the end."""
    rows = [(one.name, one.evidence, one.status, f"{one.seconds:.0f} s") for one in accounts]
    return "\n".join(["", *columns(("step", "level", "result", "took"), rows)])
