"""What an unfinished conversion has already done, so that a killed run can be taken up again.

``.partial/job.json`` says what is being made; one record for each finished file says what it holds.
A record is written after its file is durable. Files without a record are made again.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglang_mi300a import whole_files
from sglang_mi300a.errors import UserError

DIRECTORY = ".partial"
_JOB = "job.json"


@dataclass(frozen=True)
class Record:
    """One finished file.

    Attributes:
        file: Name relative to the output.
        size: Its bytes.
        tensors: Name, offset and checksum of each tensor.
        sources: Checksum of each checkpoint tensor that was read completely for it.
        neutralised_blocks: Blocks rewritten in those sources.
    """

    file: str
    size: int
    tensors: tuple[tuple[str, int, str], ...]
    sources: dict[str, str]
    neutralised_blocks: int


class Progress:
    """Records of one output directory."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.directory = output / DIRECTORY

    def start(self, job: dict[str, Any]) -> dict[str, Record]:
        """Begin a job, or take it up again; return what is finished, by file name.

        Raises:
            UserError: The directory holds an unfinished job of another kind.
        """
        path = self.directory / _JOB
        text = json.dumps(job, indent=1, sort_keys=True) + "\n"
        self.directory.mkdir(exist_ok=True)
        whole_files.write_if_absent(path, text.encode())
        whole_files.sync(self.output)
        before = path.read_text(encoding="utf-8")
        if before != text:
            raise UserError(
                str(self.output),
                found=f"an unfinished conversion that differs in {_differences(before, job)}",
                allowed="the same conversion, or an empty directory",
                do=f"repeat the first command to finish it, or delete {self.output}",
            )
        return self.finished()

    def add(self, record: Record) -> None:
        """Record a finished file."""
        name = record.file.replace("/", "--")
        text = json.dumps(asdict(record), sort_keys=True)
        whole_files.write(self.directory / f"{name}.json", text.encode())

    def end(self) -> None:
        """Forget the records; the manifest says it all now."""
        shutil.rmtree(self.directory, ignore_errors=True)
        whole_files.sync(self.output)

    def finished(self) -> dict[str, Record]:
        """Return what is finished, also by runs for other ranks, by file name."""
        found = {}
        for path in sorted(self.directory.glob("*--*.json")):
            data = json.loads(path.read_text(encoding="utf-8"))
            data["tensors"] = tuple(tuple(row) for row in data["tensors"])
            record = Record(**data)
            file = self.output / record.file
            if file.is_file() and file.stat().st_size == record.size:
                found[record.file] = record
        return found


def _differences(before: str, job: dict[str, Any]) -> str:
    try:
        old = json.loads(before)
        names = sorted(k for k in {*old, *job} if old.get(k) != job.get(k))
    except (ValueError, AttributeError, TypeError):
        names = []
    return ", ".join(names) or "everything"
