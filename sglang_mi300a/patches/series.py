"""The shipped patches: what each changes, why, and by which digests it knows its files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_mi300a import shipped
from sglang_mi300a.errors import UserError
from sglang_mi300a.patches import unified_diff
from sglang_mi300a.patches.unified_diff import Hunk

INDEX = "series.json"


@dataclass(frozen=True)
class Digests:
    """SHA-256 of a whole file, in hex, without and with the patch."""

    before: str
    after: str


@dataclass(frozen=True)
class Patch:
    """One patch.

    Attributes:
        name: By which it is asked for.
        file: The diff, in the folder of patches.
        why: What is wrong without it, and why no hook will do.
        upstream: Address of SGLang's own thread about it; "" if none is known.
        remove_when: When it can go.
        touches: Digests by path, ``sglang/...py``.
        changes: Hunks by path.
    """

    name: str
    file: str
    why: str
    upstream: str
    remove_when: str
    touches: dict[str, Digests]
    changes: dict[str, tuple[Hunk, ...]]


@dataclass(frozen=True)
class Series:
    """All patches, in order.

    Attributes:
        sglang: The SGLang they are for.
        patches: No two touch the same file, so that any of them can be applied without the others.
    """

    sglang: str
    patches: tuple[Patch, ...]

    def named(self, names: Iterable[str]) -> tuple[Patch, ...]:
        """Return the patches with these names, in the series' order; all of them for none.

        Raises:
            UserError: There is no patch of a name.
        """
        wanted = list(names)
        known = [patch.name for patch in self.patches]
        for name in wanted:
            if name not in known:
                raise UserError(
                    f"patch {name}",
                    found="no patch of this name",
                    allowed=", ".join(known),
                    do="sglang-mi300a patch list",
                )
        return tuple(patch for patch in self.patches if not wanted or patch.name in wanted)


def read(folder: Path | None = None) -> Series:
    """Return the patches in a folder (default: those that are shipped).

    Raises:
        UserError: A file is missing, or they do not agree with each other.
    """
    folder = shipped.patches() if folder is None else folder
    try:
        data = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        patches = tuple(_patch(folder, row) for row in data["patches"])
        _check(patches)
        return Series(data["sglang"], patches)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            str(folder),
            found=f"{type(error).__name__}: {error}",
            allowed=f"{INDEX} and a unified diff for each of its rows",
            do="install it again: pip install --force-reinstall --no-deps sglang-mi300a",
        ) from error


def _patch(folder: Path, row: dict[str, Any]) -> Patch:
    touches = {path: Digests(**digests) for path, digests in row["touches"].items()}
    changes = unified_diff.parse((folder / row["file"]).read_text(encoding="utf-8"))
    if set(changes) != set(touches):
        raise ValueError(f"{row['file']} does not change the files of its row")
    return Patch(**{**row, "touches": touches, "changes": changes})


def _check(patches: Sequence[Patch]) -> None:
    paths = [path for patch in patches for path in patch.touches]
    if len(set(paths)) != len(paths):
        raise ValueError("two patches touch the same file")
