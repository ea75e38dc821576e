"""Directories with the files of the installed SGLang that patches touch."""

import hashlib
import os
import shutil
from pathlib import Path

from sglang_mi300a import plugin
from sglang_mi300a.patches import series

INSTALLED = plugin.installed_sglang().root
SERIES = series.read()
TOUCHED = sorted(path for patch in SERIES.patches for path in patch.touches)


def small(root: Path) -> Path:
    """Make a directory with an SGLang's version and the touched files; return it."""
    (root / "sglang/srt").mkdir(parents=True)
    for path in [*TOUCHED, "sglang/_version.py"]:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(INSTALLED / path, root / path)
    return root


def importable(root: Path) -> Path:
    """Make a directory with the whole SGLang, links except what patches touch; return it."""
    shutil.copytree(INSTALLED / "sglang", root / "sglang", copy_function=os.symlink)
    for path in [*TOUCHED, "sglang/_version.py"]:
        (root / path).unlink()
        shutil.copy2(INSTALLED / path, root / path)
    return root


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file's content and mode by path."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def is_patched(root: Path, without: str = "") -> dict[str, bool]:
    """Return whether each touched file has its patch; it must be one of the two, whole."""
    found = {}
    for patch in SERIES.patches:
        for path, digests in patch.touches.items():
            if path == without:
                continue
            digest = hashlib.sha256((root / path).read_bytes()).hexdigest()
            assert digest in (digests.before, digests.after), path
            found[path] = digest == digests.after
    return found
