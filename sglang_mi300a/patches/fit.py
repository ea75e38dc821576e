"""Whether patches fit the files of an SGLang, and which of them are in these."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sglang_mi300a import hook_fit
from sglang_mi300a.patches.series import Patch, Series
from sglang_mi300a.supported import fits

Status = Literal["applied", "not applied", "half applied", "does not fit"]


@dataclass(frozen=True)
class Misfit:
    """Why a patch does not fit.

    Attributes:
        where: The file, or SGLang.
        found: What is there.
        allowed: What should be.
    """

    where: str
    found: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}, expected {self.allowed}"


@dataclass(frozen=True)
class Fit:
    """How a patch stands to a tree.

    Attributes:
        patch: Which.
        patched: Its files that have it.
        unpatched: Its files that do not.
        misfits: Why it cannot be applied or taken back; empty if it can.
    """

    patch: Patch
    patched: tuple[str, ...]
    unpatched: tuple[str, ...]
    misfits: tuple[Misfit, ...]

    @property
    def status(self) -> Status:
        """All of it, in one word or two."""
        if self.misfits:
            return "does not fit"
        if self.patched and self.unpatched:
            return "half applied"
        return "applied" if self.patched else "not applied"

    @property
    def detail(self) -> str:
        """What there is to say beyond that."""
        if self.misfits:
            return "; ".join(map(str, self.misfits))
        if self.status == "half applied":
            return f"in {', '.join(self.patched)}, not in {', '.join(self.unpatched)}"
        return ""


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    return hashlib.sha256(content).hexdigest()


def judge(series: Series, patches: Iterable[Patch], root: Path) -> list[Fit]:
    """Return how patches stand to the SGLang in a directory.

    Args:
        series: That the patches are of.
        patches: Which.
        root: Directory that holds the ``sglang`` package.
    """
    version = hook_fit.version_in(hook_fit.DirectoryTree(root))
    wrong_version: tuple[Misfit, ...] = ()
    if not fits(version, f"=={series.sglang}"):
        wrong_version = (Misfit("SGLang", version, series.sglang),)
    return [_of(patch, root, wrong_version) for patch in patches]


def _of(patch: Patch, root: Path, misfits: tuple[Misfit, ...]) -> Fit:
    patched, unpatched = [], []
    for path, digests in patch.touches.items():
        found = _look(root, path)
        if found == digests.after:
            patched.append(path)
        elif found == digests.before:
            unpatched.append(path)
        else:
            expected = f"sha256 {digests.before}"
            misfits = (*misfits, Misfit(path, _in_words(found), expected))
    return Fit(patch, tuple(patched), tuple(unpatched), misfits)


def _look(root: Path, path: str) -> str:
    """Return a file's digest, or why it is not a file of its own here."""
    at = root
    for part in Path(path).parts:
        at = at / part
        if at.is_symlink():
            return f"a symbolic link at {at.relative_to(root)}"
    if not at.is_file():
        return "no such file"
    return digest(at.read_bytes())


def _in_words(found: str) -> str:
    return f"sha256 {found}" if len(found) == 64 and " " not in found else found
