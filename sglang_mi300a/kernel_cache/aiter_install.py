"""The AITER at hand, read from its files: nothing of it is imported, since that needs a GPU.

Layout, as of AITER's wheel 0.1.7 and of its source tree: the package holds ``jit/core.py`` (the
builder) and ``jit/optCompilerConfig.json`` (one recipe a module); sources lie in ``aiter_meta/``
beside the package where ``aiter/install_mode`` says ``install``, and beside the package itself
where it says ``develop`` or is missing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a.errors import UserError

_SOURCE_FOLDERS = ("csrc", "gradlib", "3rdparty")
_NOT_SOURCE = {"__pycache__", ".git", "build"}
_READERS = 8


@dataclass(frozen=True)
class AiterInstall:
    """An installed or unpacked AITER.

    Attributes:
        package: Its Python package, ``.../aiter``.
        meta: Where its C++ sources lie.
        version: ``__version__``, or "" where it says none.
        commit: Git commit, where the install says one, or "".
    """

    package: Path
    meta: Path
    version: str
    commit: str

    @property
    def prebuilt(self) -> Path:
        """Where modules lie that came with it."""
        return self.package / "jit"

    def recipes(self) -> dict[str, object]:
        """Return AITER's module recipes by module name.

        Raises:
            UserError: The file is missing or is no such table.
        """
        path = self.package / "jit/optCompilerConfig.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _unfit(path, f"unreadable ({error})", "AITER's table of modules") from error
        if not isinstance(data, dict):
            raise _unfit(path, type(data).__name__, "a JSON object, one entry a module")
        return data

    def source_digest(self) -> str:
        """Return the SHA-256 over every file that a module is made from.

        Reads 6,400 files, 60 MB for the wheel; a second on a local disk.
        """
        files = sorted(self._sources())
        with ThreadPoolExecutor(_READERS) as pool:
            digests = pool.map(lambda entry: hashlib.sha256(entry[1].read_bytes()).digest(), files)
            total = hashlib.sha256()
            for (name, _), digest in zip(files, digests, strict=True):
                total.update(name.encode() + b"\0" + digest)
        return total.hexdigest()

    def _sources(self) -> Iterator[tuple[str, Path]]:
        for root, folders in ((self.package, ("jit", "ops")), (self.meta, _SOURCE_FOLDERS)):
            for folder in folders:
                for path in _walk(root / folder):
                    yield path.relative_to(root).as_posix(), path


def _walk(top: Path) -> Iterator[Path]:
    for directory, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name not in _NOT_SOURCE]
        for name in names:
            path = Path(directory, name)
            if not name.endswith((".so", ".pyc")) and path.is_file():
                yield path


def find() -> AiterInstall:
    """Return the AITER that this Python would import, without importing it.

    Raises:
        UserError: There is none, or it is not laid out as one.
    """
    spec = importlib.util.find_spec("aiter")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "aiter",
            found="not importable",
            allowed="AITER as the ROCm image of SGLang brings it",
            do="run this inside that image, or give the package's folder with --aiter",
        )
    return at(Path(next(iter(spec.submodule_search_locations))))


def at(package: Path) -> AiterInstall:
    """Return the AITER whose Python package is a given folder.

    Raises:
        UserError: It is not laid out as one.
    """
    if not (package / "jit/core.py").is_file():
        raise _unfit(package, "no jit/core.py", "AITER's Python package, with its builder")
    mode = package / "install_mode"
    is_installed = mode.is_file() and mode.read_text(encoding="utf-8").strip() == "install"
    root = package.resolve().parent
    meta = root / "aiter_meta" if is_installed else root
    if not (meta / "csrc").is_dir():
        raise _unfit(meta, "no csrc", "AITER's C++ sources: modules are built from them")
    version = _version(package)
    return AiterInstall(package, meta, version, _commit(root, version))


def _version(package: Path) -> str:
    path = package / "_version.py"
    if not path.is_file():
        return ""
    found = re.search(r"__version__ = .*?['\"]([^'\"]+)['\"]", path.read_text(encoding="utf-8"))
    return found[1] if found else ""


def _commit(root: Path, version: str) -> str:
    """Return the checkout's commit, else the one that the version ends in (``+gd9e5ef7ce``)."""
    try:
        head = (root / ".git/HEAD").read_text(encoding="utf-8").strip()
        if head.startswith("ref: "):
            head = (root / ".git" / head[5:]).read_text(encoding="utf-8").strip()
        return head
    except OSError:  # no checkout, or a packed reference
        found = re.search(r"\+g([0-9a-f]{7,40})", version)
        return found[1] if found else ""


def _unfit(path: Path, found: str, allowed: str) -> UserError:
    return UserError(
        str(path),
        found=found,
        allowed=allowed,
        do="install the AITER of SGLang's ROCm image again, or give its folder with --aiter",
    )
