"""``golden.json``: log-probabilities that a right server gives, and how far one is from them.

``sglang-mi300a golden`` writes it beside a model's weights, from an implementation that shares
nothing with the server's; a start compares (``serving``). Format, version 1::

    format, version    "sglang-mi300a golden logits", 1
    tool_version       version of this package that wrote it
    reference          what computed it, in words
    source_xxh3_128    checksum over name, size and header checksum of the checkpoint's files
    rows               one a text, see Row
    self_xxh3_128      checksum of the file without this line

The rows hold token ids, so neither reading nor comparing needs a tokenizer.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from sglang_mi300a import whole_files
from sglang_mi300a.artifact_manifest import FileFacts, checksum
from sglang_mi300a.errors import UserError

NAME = "golden.json"
FORMAT = "sglang-mi300a golden logits"
VERSION = 1
MAX_BYTES = 16 << 20
_SELF = "self_xxh3_128"

FAR = 0.15
"""Mean distance above which a start warns: bfloat16 alone is not expected to come to that."""
WRONG = 0.5
"""Mean distance above which a start is refused: half of all tokens drawn would differ. Prompts go
through prefill alone; decode is wrong if more than half of the sure continuations part."""
SURE_NATS = 2.0
"""How far the reference's best token is ahead where any right server must choose the same."""


@dataclass(frozen=True)
class Row:
    """What comes after one prompt.

    Attributes:
        token_ids: The prompt.
        top_ids: The reference's likeliest next tokens, the best first.
        top_logprobs: Their natural log-probabilities.
        next_ids: Tokens that the reference itself goes on with, the best each time; may be empty.
        gaps: How far each of them is ahead of the second best, nats.
    """

    token_ids: tuple[int, ...]
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    next_ids: tuple[int, ...]
    gaps: tuple[float, ...]

    def num_sure(self) -> int:
        """Return how many of ``next_ids``, from the first on, leave no doubt."""
        for count, gap in enumerate(self.gaps):
            if gap < SURE_NATS:
                return count
        return len(self.gaps)


@dataclass(frozen=True)
class Golden:
    """A whole file; see the module's text."""

    tool_version: str
    reference: str
    source_xxh3_128: str
    rows: tuple[Row, ...]

    def render(self) -> str:
        """Return the text of ``golden.json``."""
        data = {"format": FORMAT, "version": VERSION, **asdict(self)}
        del data["rows"]
        lines = [f" {json.dumps(key)}: {json.dumps(data[key])}," for key in sorted(data)]
        rows = ",\n".join(f"  {json.dumps(asdict(row))}" for row in self.rows)
        body = "{\n" + "\n".join(lines) + f'\n "rows": [\n{rows}\n ],\n'
        return f'{body} "{_SELF}": "{checksum(body.encode())}"\n}}\n'


def source_checksum(files: Sequence[FileFacts]) -> str:
    """Return what tells one checkpoint from another: over its weight files' headers."""
    rows = sorted([file.name, file.size, file.xxh3_128] for file in files)
    return checksum(json.dumps(rows).encode())


def check_writable(directory: Path) -> None:
    """Check that the file can be put there, before anything is computed for it.

    Raises:
        UserError: There is no such directory, or it cannot be written.
    """
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise UserError(
            str(directory),
            found="not writable" if directory.is_dir() else "no such directory",
            allowed="a directory that can be written",
            do="name another with --out",
        )


def write(directory: Path, golden: Golden) -> Path:
    """Put the file beside a model's weights, whole; return its path.

    Raises:
        UserError: It cannot be written.
    """
    path = directory / NAME
    try:
        whole_files.write(path, golden.render().encode())
    except OSError as error:
        raise UserError(
            str(path),
            found=f"not writable ({error.strerror})",
            allowed="a directory that can be written",
            do="name another with --out, or make room",
        ) from error
    return path


def read(directory: Path) -> Golden | None:
    """Return what is beside a model's weights, or None where there is no such file.

    Raises:
        UserError: The file is not one of this version, or was edited.
    """
    path = directory / NAME
    try:
        if path.stat().st_size > MAX_BYTES:
            _refuse(path, f"{path.stat().st_size} bytes", f"at most {MAX_BYTES} bytes")
        return parse(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        _refuse(path, f"not readable ({error})", "a readable text")


def parse(text: str, path: Path) -> Golden:
    """Return the golden values in ``text``; ``path`` is only named in errors.

    Raises:
        UserError: As :func:`read`.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"no JSON ({error})", "a file as it was written")
    if not isinstance(data, dict):
        _refuse(path, f"JSON of type {type(data).__name__}", "a JSON object")
    found = (data.get("format"), data.get("version"))
    if found != (FORMAT, VERSION):
        _refuse(
            path,
            f"format {found[0]!r}, version {found[1]!r}",
            f"format {FORMAT!r}, version {VERSION}",
        )
    body, mark, tail = text.rpartition(f' "{_SELF}": ')
    if not mark or tail != f'"{checksum(body.encode())}"\n}}\n':
        _refuse(path, "a checksum that does not match the rest", "the file as it was written")
    try:
        rows = tuple(Row(**{name: tuple(row[name]) for name in _ROW}) for row in data["rows"])
        golden = Golden(**{name: str(data[name]) for name in _TEXTS}, rows=rows)
    except (KeyError, TypeError) as error:
        _refuse(path, f"rows that do not fit ({error})", f"rows of {', '.join(_ROW)}")
    if not golden.rows or not all(_is_sound(row) for row in golden.rows):
        _refuse(path, "no row, or one whose lists do not belong together", "rows as written")
    return golden


_ROW = tuple(field.name for field in fields(Row))
_TEXTS = tuple(field.name for field in fields(Golden) if field.name != "rows")


def _is_sound(row: Row) -> bool:
    return (
        bool(row.token_ids)
        and bool(row.top_ids)
        and len(row.top_ids) == len(row.top_logprobs) == len(set(row.top_ids))
        and len(row.next_ids) == len(row.gaps)
        and all(math.isfinite(value) and value <= 0 for value in row.top_logprobs)
        and sum(map(math.exp, row.top_logprobs)) < 1 + 1e-3
    )


def check_source(golden: Golden, files: Sequence[FileFacts], path: Path) -> None:
    """Check that golden values are of the checkpoint with these files.

    Raises:
        UserError: They are of another one.
    """
    if golden.source_xxh3_128 != source_checksum(files):
        _refuse(
            path / NAME,
            f"values of checkpoint {golden.source_xxh3_128[:12]}…",
            f"values of this one, {source_checksum(files)[:12]}…",
        )


def _refuse(path: Path, found: str, allowed: str) -> NoReturn:
    raise UserError(
        str(path),
        found=found,
        allowed=allowed,
        do="make it again with `sglang-mi300a golden`, or remove it",
    )


# -- judging ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a server said after one row's prompt.

    Attributes:
        logprobs: Of the row's ``top_ids``, by token id.
        next_ids: Tokens that it went on with, greedily, as many as the row is sure of.
    """

    logprobs: Mapping[int, float]
    next_ids: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """How far a server is from the reference.

    Attributes:
        mean_distance: Mean over rows of :func:`distance`.
        largest_distance: Of one row.
        num_sure: Rows whose continuation begins with tokens that leave no doubt.
        num_parted: Of these, the ones where the server went on otherwise.
    """

    mean_distance: float
    largest_distance: float
    num_sure: int
    num_parted: int

    @property
    def is_wrong(self) -> bool:
        """Whether no rounding explains it."""
        return not self.mean_distance <= WRONG or 2 * self.num_parted > self.num_sure

    @property
    def is_far(self) -> bool:
        """Whether it deserves a look."""
        return not self.mean_distance <= FAR or self.num_parted > 0

    def __str__(self) -> str:
        """Return one phrase for a report."""
        return (
            f"distance to the golden logits {self.mean_distance:.4f} in the mean, "
            f"{self.largest_distance:.4f} at most (0: equal, 1: nothing in common); "
            f"{self.num_sure - self.num_parted} of {self.num_sure} sure continuations equal"
        )


def distance(row: Row, logprobs: Mapping[int, float]) -> float:
    """Return the total variation between reference and server over a row's tokens and the rest.

    0 where both are equal, 1 where they have nothing in common. What is missing, or is not a
    number, counts as probability 0.
    """
    expected = [math.exp(value) for value in row.top_logprobs]
    found = [math.exp(min(logprobs.get(token, -math.inf), 0.0)) for token in row.top_ids]
    found = [value if value == value else 0.0 for value in found]
    parts = [abs(one - other) for one, other in zip(expected, found, strict=True)]
    return (sum(parts) + abs(sum(expected) - sum(found))) / 2


def judge(golden: Golden, answers: Sequence[Answer]) -> Verdict:
    """Return how far answers, one a row, are from the golden values."""
    distances, num_sure, num_parted = [], 0, 0
    for row, answer in zip(golden.rows, answers, strict=True):
        distances.append(distance(row, answer.logprobs))
        sure = row.next_ids[: row.num_sure()]
        num_sure += bool(sure)
        num_parted += answer.next_ids[: len(sure)] != sure
    return Verdict(statistics.fmean(distances), max(distances), num_sure, num_parted)


def as_data(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain JSON values."""
    return asdict(verdict)
