"""Patches put into SGLang's files and taken back: all of what was asked, or nothing.

Each file is written beside itself and renamed over. A journal in the ``sglang`` folder is there
from before the first rename until after the last, so that whoever looks after a kill knows that
files may be half changed; each of them is then whole, the old one or the new one, and reverting
tells them apart by digest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a import whole_files
from sglang_mi300a.errors import UserError
from sglang_mi300a.patches import unified_diff
from sglang_mi300a.patches.fit import Fit, digest, judge
from sglang_mi300a.patches.series import Patch, Series

JOURNAL = ".sglang-mi300a-patching.json"
"""In the ``sglang`` folder while files are being changed."""

_SUFFIX = ".sglang-mi300a-new"


@dataclass(frozen=True)
class Interrupted:
    """What a journal that was left behind says.

    Attributes:
        action: ``apply`` or ``revert``; "" where it was cut while it was written.
        patches: By name; empty where it was cut.
    """

    action: str
    patches: tuple[str, ...]


@dataclass(frozen=True)
class _Change:
    path: Path
    old: bytes
    new: bytes

    @property
    def beside(self) -> Path:
        return _beside(self.path)


def interrupted(root: Path) -> Interrupted | None:
    """Return what was being done when it ended too early; None if nothing was.

    Args:
        root: Directory that holds the ``sglang`` package.
    """
    try:
        text = (root / "sglang" / JOURNAL).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        data = json.loads(text)
        return Interrupted(str(data["action"]), tuple(map(str, data["patches"])))
    except (ValueError, KeyError, TypeError):  # cut before the first file was changed
        return Interrupted("", ())


def apply(series: Series, patches: Sequence[Patch], root: Path) -> list[str]:
    """Put patches into an SGLang; return the names of those that were not in it already.

    Args:
        series: That the patches are of.
        patches: Which.
        root: Directory that holds the ``sglang`` package.

    Raises:
        UserError: One does not fit, files cannot be written, or an earlier change did not end.
    """
    with _locked(root):
        if (left := interrupted(root)) is not None:
            raise UserError(
                str(root / "sglang" / JOURNAL),
                found=f"{left.action or 'a change'} of {', '.join(left.patches) or 'patches'} that "
                "did not end",
                allowed="none",
                do="sglang-mi300a patch revert, which mends it",
            )
        wanted = [fit for fit in judge(series, patches, root) if fit.status != "applied"]
        for fit in wanted:
            _check_fits(fit, root)
            if fit.status == "half applied":
                raise UserError(
                    f"patch {fit.patch.name}",
                    found=f"half applied, {fit.detail}",
                    allowed="all of its files without it",
                    do=f"sglang-mi300a patch revert {fit.patch.name}, which mends it",
                )
        changes = [one for fit in wanted for one in _changes(fit, root, fit.unpatched)]
        _carry_out(root, "apply", [fit.patch.name for fit in wanted], changes)
        return [fit.patch.name for fit in wanted]


def revert(series: Series, patches: Sequence[Patch], root: Path) -> list[str]:
    """Take patches out of an SGLang, byte for byte; return the names of those that were in it.

    Half-applied ones are mended, and what a change that did not end was about is reverted too.

    Raises:
        UserError: A file is neither with nor without its patch, or cannot be written.
    """
    with _locked(root):
        left = interrupted(root)
        if left is not None:
            more = set(left.patches) & {patch.name for patch in series.patches}
            patches = series.named([*(patch.name for patch in patches), *more])
            patches = patches if more else series.patches
        fits = judge(series, patches, root)
        for fit in fits:
            if fit.patched or left is not None:
                _check_fits(fit, root)
        there = [fit for fit in fits if fit.patched]
        changes = [one for fit in there for one in _changes(fit, root, fit.patched)]
        for patch in patches:
            for path in patch.touches:
                if left is not None:
                    _beside(root / path).unlink(missing_ok=True)
        _carry_out(root, "revert", [fit.patch.name for fit in there], changes, left is not None)
        return [fit.patch.name for fit in there]


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}{_SUFFIX}")


def _check_fits(fit: Fit, root: Path) -> None:
    if fit.misfits:
        first = fit.misfits[0]
        raise UserError(
            str(root / first.where) if first.where.endswith(".py") else f"{first.where} in {root}",
            found=first.found,
            allowed=f"{first.allowed} (patch {fit.patch.name})",
            do="leave it: no preset needs a patch; one fits only the SGLang it was made for, "
            "with no other change in its files",
        )


def _changes(fit: Fit, root: Path, paths: Sequence[str]) -> Iterator[_Change]:
    """Yield the change of each path from how it is to the other way."""
    for path in paths:
        digests, hunks = fit.patch.touches[path], fit.patch.changes[path]
        forth = path in fit.unpatched
        old = (root / path).read_bytes()
        steps = hunks if forth else [hunk.reverse() for hunk in hunks]
        try:
            new = unified_diff.apply(old.decode("utf-8"), steps).encode("utf-8")
        except unified_diff.Misfit as error:
            raise _unsound(fit, f"{path}: {error}") from error
        if digest(new) != (digests.after if forth else digests.before):
            raise _unsound(fit, f"{path} would become sha256 {digest(new)}")
        yield _Change(root / path, old, new)


def _unsound(fit: Fit, found: str) -> UserError:
    return UserError(
        f"patch {fit.patch.name}",
        found=found,
        allowed="the change that its digests were taken of",
        do="install it again: pip install --force-reinstall --no-deps sglang-mi300a",
    )


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold SGLang's folder against another process that patches; refuse if one does."""
    descriptor = os.open(root / "sglang", os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                str(root / "sglang"),
                found="another process that patches it",
                allowed="one at a time",
                do="wait until it ends",
            ) from None
        except OSError as error:
            # Some network file systems cannot lock a folder; the journal still keeps a second
            # `apply` out.
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
                raise
        yield
    finally:
        os.close(descriptor)


def _carry_out(
    root: Path,
    action: str,
    names: Sequence[str],
    changes: Sequence[_Change],
    has_journal: bool = False,
) -> None:
    """Make changes; if one cannot be made, take back those that were and say why."""
    journal = root / "sglang" / JOURNAL
    if not changes and not has_journal:
        return
    for folder in sorted({journal.parent, *(one.path.parent for one in changes)}):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _unwritable(folder, "it is read-only for this user")
    try:
        if not has_journal:
            _begin(journal, json.dumps({"action": action, "patches": [*names]}))
        try:
            for one in changes:
                _write_beside(one.path, one.new)
            for one in changes:
                os.replace(one.beside, one.path)
            for folder in {one.path.parent for one in changes}:
                whole_files.sync(folder)
        except BaseException:
            _put_back(changes)
            if not has_journal:
                journal.unlink()
            raise
        journal.unlink()
        whole_files.sync(journal.parent)
    except OSError as error:
        raise _unwritable(Path(error.filename or root), error.strerror or str(error)) from error


def _begin(journal: Path, text: str) -> None:
    """Write the journal onto the disk, or leave none; one that is there is another's."""
    try:
        _write(journal, text.encode("utf-8"), 0o644)
        whole_files.sync(journal.parent)
    except FileExistsError:
        raise
    except BaseException:
        journal.unlink(missing_ok=True)
        raise


def _put_back(changes: Sequence[_Change]) -> None:
    """Undo by what is there, since an interruption can come between a rename and any note of it."""
    for one in changes:
        one.beside.unlink(missing_ok=True)
        if one.path.read_bytes() != one.old:
            _write_beside(one.path, one.old)
            os.replace(one.beside, one.path)
            whole_files.sync(one.path.parent)


def _write_beside(path: Path, content: bytes) -> None:
    """Write a file's new content beside it, onto the disk, with the same mode and owner."""
    beside = _beside(path)
    was = path.stat()
    beside.unlink(missing_ok=True)
    _write(beside, content, stat.S_IMODE(was.st_mode))
    now = beside.stat()
    if (now.st_uid, now.st_gid) != (was.st_uid, was.st_gid):
        with contextlib.suppress(PermissionError):  # only root may give a file away
            os.chown(beside, was.st_uid, was.st_gid)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a new file onto the disk; it is an error if there is one."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _unwritable(where: Path, found: str) -> UserError:
    return UserError(
        str(where),
        found=found,
        allowed="an SGLang whose files this user may replace",
        do="patch a copy that is yours (--sglang PATH) and put it first on PYTHONPATH, or run this "
        "as the owner",
    )
