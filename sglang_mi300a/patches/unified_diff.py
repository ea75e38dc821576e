"""Unified diffs, applied at their very lines or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*\n")
_FILE = re.compile(r"--- a/(\S+)\n")


class Misfit(ValueError):
    """A text is no such diff, or a diff does not fit a text."""


@dataclass(frozen=True)
class Hunk:
    """One change.

    Attributes:
        before_line: Where ``before`` stands, from 1.
        before: Lines with their ends, context included.
        after_line: Where ``after`` stands, from 1.
        after: Lines with their ends, context included.
    """

    before_line: int
    before: tuple[str, ...]
    after_line: int
    after: tuple[str, ...]

    def reverse(self) -> Hunk:
        """Return the change back."""
        return Hunk(self.after_line, self.after, self.before_line, self.before)


def parse(text: str) -> dict[str, tuple[Hunk, ...]]:
    """Return the hunks of each file, by its path.

    Only changes of files that are there before and after can be said, and every line ends.

    Raises:
        Misfit: The text is something else.
    """
    left = _lines(text)
    found: dict[str, tuple[Hunk, ...]] = {}
    while left:
        header = _FILE.fullmatch(left.pop(0))
        path = header[1] if header else ""
        if not header or path in found or not left or left.pop(0) != f"+++ b/{path}\n":
            raise Misfit("a file's two header lines are missing, differ, or come twice")
        hunks = []
        while left and (numbers := _HUNK.fullmatch(left[0])):
            del left[0]
            hunks.append(_hunk(numbers, left))
        if not hunks:
            raise Misfit(f"no change of {path}")
        found[path] = tuple(hunks)
    if not found:
        raise Misfit("it is empty")
    return found


def _hunk(numbers: re.Match[str], left: list[str]) -> Hunk:
    wanted = [1 if numbers[group] is None else int(numbers[group]) for group in (2, 4)]
    before: list[str] = []
    after: list[str] = []
    while [len(before), len(after)] != wanted:
        sign, line = (left[0][0], left[0][1:]) if left else ("", "")
        if sign not in {" ", "-", "+"}:
            raise Misfit(f"{numbers[0].strip()} has fewer lines than it says")
        del left[0]
        if sign != "+":
            before.append(line)
        if sign != "-":
            after.append(line)
        if len(before) > wanted[0] or len(after) > wanted[1]:
            raise Misfit(f"{numbers[0].strip()} has more lines than it says")
    return Hunk(int(numbers[1]), tuple(before), int(numbers[3]), tuple(after))


def apply(text: str, hunks: Iterable[Hunk]) -> str:
    """Return a text with changes made.

    Raises:
        Misfit: A line is not where a hunk says, or is another one.
    """
    return "".join(_applied(_lines(text), hunks))


def _applied(lines: list[str], hunks: Iterable[Hunk]) -> Iterator[str]:
    at, made = 0, 0
    for hunk in hunks:
        start = hunk.before_line - 1
        kept = lines[at:start]
        made += len(kept)
        if start < at or tuple(lines[start : start + len(hunk.before)]) != hunk.before:
            raise Misfit(f"line {hunk.before_line} and what follows are not as the diff says")
        if made != hunk.after_line - 1:
            raise Misfit(f"the diff's line {hunk.after_line} would be line {made + 1}")
        yield from kept
        yield from hunk.after
        made += len(hunk.after)
        at = start + len(hunk.before)
    yield from lines[at:]


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)
