"""The applied table: one directory of read-only files that every process of a server reads.

``STATE/tables/gemm`` is a symbolic link to ``gemm-DIGEST``, which holds ``table.json``, one
``tunableopN.csv`` for each device ordinal (TunableOp puts the ordinal into its file's name and
would otherwise tune rank 0 alone) and ``aiter_bf16.csv``. The digest is that of the table, so a
server that runs on an older table keeps its files, and writers at the same time cannot mix theirs:
each makes a directory of its own and then swaps the link, which is one atomic step.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a import tables
from sglang_mi300a.artifact_manifest import checksum
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import aiter_csv, tunableop_csv, tuned_table
from sglang_mi300a.tables import Table

LINK = "gemm"
TABLE = "table.json"
AITER = "aiter_bf16.csv"
TUNABLEOP = "tunableop%d.csv"
"""TunableOp puts the device ordinal in place of ``%d``."""

_ORDINAL = re.compile(r"tunableop(\d+)\.csv")

APPLY_AGAIN = "sglang-mi300a tables apply FILE"


@dataclass(frozen=True)
class Applied:
    """A table that was applied.

    Attributes:
        directory: Where its files lie, the link resolved.
        table: The table.
        num_ordinals: Device ordinals it has files for.
    """

    directory: Path
    table: Table
    num_ordinals: int

    @property
    def digest(self) -> str:
        """Checksum of the table."""
        return checksum(tables.render(self.table).encode())

    def environment(self) -> dict[str, str]:
        """Return the variables that make TunableOp and AITER read it, and tune nothing."""
        return {
            "PYTORCH_TUNABLEOP_ENABLED": "1",
            "PYTORCH_TUNABLEOP_TUNING": "0",
            "PYTORCH_TUNABLEOP_FILENAME": str(self.directory / TUNABLEOP),
            "AITER_CONFIG_GEMM_BF16": str(self.directory / AITER),
        }


def files_of(table: Table, num_ordinals: int) -> dict[str, str]:
    """Return the text of each file of an applied table by name.

    Args:
        table: The table.
        num_ordinals: Devices of the node.
    """
    csv = tunableop_csv.render(table)
    return {
        TABLE: tables.render(table),
        AITER: aiter_csv.render(table),
        **{TUNABLEOP % ordinal: csv for ordinal in range(num_ordinals)},
    }


def apply(table: Table, root: Path, num_ordinals: int) -> Applied:
    """Write a table's files and point the link at them; return what is applied now.

    Args:
        table: A checked table.
        root: ``STATE/tables``; made if it is not there.
        num_ordinals: Devices of the node.

    Raises:
        UserError: The directory cannot be written, or AITER or TunableOp cannot be told its path.
    """
    check_root(root)
    text = tables.render(table)
    final = root / f"{LINK}-{checksum(text.encode())}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{LINK}-", dir=root))
    except OSError as error:
        raise _unwritable(root, error) from error
    try:
        for name, content in files_of(table, num_ordinals).items():
            _write_read_only(made / name, content)
        os.chmod(made, 0o755)
        _move_into_place(made, final)
        _point(root / LINK, final)
    except OSError as error:
        raise _unwritable(root, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Applied(final, table, num_ordinals)


def current(root: Path) -> Applied | None:
    """Return the applied table, every file compared with it; None if none is applied.

    Raises:
        UserError: A file is missing or differs; with its line and the command that repairs it.
    """
    link = root / LINK
    if not link.is_symlink():
        return None
    return read(Path(os.path.realpath(link)))


def read(directory: Path) -> Applied:
    """Return the applied table in a directory, every file compared with it; see :func:`current`."""
    path = directory / TABLE
    try:
        table = tuned_table.checked(tables.load(path), str(path))
    except UserError as error:
        raise UserError(
            error.where, found=error.found, allowed=error.allowed, do=f"run `{APPLY_AGAIN}`"
        ) from error
    ordinals = [_ORDINAL.fullmatch(file.name) for file in directory.iterdir()]
    num_ordinals = max((int(match[1]) for match in ordinals if match), default=-1) + 1
    for name, wanted in files_of(table, max(1, num_ordinals)).items():
        _compare(directory / name, wanted)
    return Applied(directory, table, num_ordinals)


def remove(root: Path) -> list[Path]:
    """Take the applied table and all earlier ones away; return the directories removed."""
    (root / LINK).unlink(missing_ok=True)
    removed = [path for path in sorted(root.glob(f"{LINK}-*")) if path.is_dir()]
    for path in removed:
        shutil.rmtree(path)
    return removed


def check_root(root: Path) -> None:
    """Check that AITER and TunableOp can be told a path under ``root``.

    Raises:
        UserError: It holds a character that one of them takes for something else.
    """
    for character, reader in ((":", "AITER separates files by it"), ("%", "TunableOp fills it in")):
        if character in str(root.absolute()):
            raise UserError(
                f"state directory {root}",
                found=f"{character!r} in its path ({reader})",
                allowed="a path without ':' and '%'",
                do="set SGLANG_MI300A_STATE_DIR to another directory",
            )


def _write_read_only(path: Path, content: str) -> None:
    """Write a file whole, on disk, so that no user but root can change it by accident."""
    with path.open("w", encoding="ascii", newline="\n") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)


def _move_into_place(made: Path, final: Path) -> None:
    """Rename a directory; one of the same table that is there already is replaced file by file."""
    try:
        os.rename(made, final)
    except OSError:
        if not final.is_dir():
            raise
        for file in made.iterdir():
            os.replace(file, final / file.name)


def _point(link: Path, final: Path) -> None:
    temporary = link.with_name(f".{link.name}-link-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(final.name)
    os.replace(temporary, link)


def _compare(path: Path, wanted: str) -> None:
    """Compare a staged file with what the table renders to."""
    again = f"run `{APPLY_AGAIN}` again"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            str(path), found=f"not readable ({error.strerror})", allowed="as applied", do=again
        ) from error
    if data == wanted.encode():
        return
    lines, theirs = data.splitlines(keepends=True), wanted.encode().splitlines(keepends=True)
    number = next(
        (at for at, (one, other) in enumerate(zip(lines, theirs, strict=False)) if one != other),
        min(len(lines), len(theirs)),
    )
    found = _shown(lines[number]) if number < len(lines) else "the file's end"
    allowed = _shown(theirs[number]) if number < len(theirs) else "the file's end"
    raise UserError(f"{path}: line {number + 1}", found=found, allowed=allowed, do=again)


def _shown(line: bytes) -> str:
    return repr(line.decode("ascii", errors="backslashreplace"))[:160]


def _unwritable(root: Path, error: OSError) -> UserError:
    return UserError(
        f"state directory {root}",
        found=f"not writable ({error.strerror})",
        allowed="a directory of yours",
        do="set SGLANG_MI300A_STATE_DIR to one, or correct its permissions",
    )
