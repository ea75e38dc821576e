"""The supported versions, as ``[tool.sglang_mi300a]`` of pyproject.toml states them once."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from sglang_mi300a import shipped
from sglang_mi300a.errors import UserError


def installed_version(name: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def fits(version: str, specifier: str) -> bool:
    """Return whether a version's release segment satisfies a specifier.

    Pre-release, development and local parts are ignored: an image's ``2.9.0a0`` counts as 2.9.0
    and ``0.5.18.dev3+g1234`` as 0.5.18. What decides whether a hook fits is its fingerprint.
    """
    try:
        release = Version(version).release
    except InvalidVersion:
        return False
    padded = (*release, 0, 0)[:3]
    return Version(".".join(map(str, padded))) in SpecifierSet(specifier)


def check_versions(
    version_of: Callable[[str], str | None] = installed_version,
    python: tuple[int, ...] = tuple(sys.version_info[:3]),
) -> None:
    """Check Python, torch and SGLang against the supported range.

    Args:
        version_of: Returns a distribution's version.
        python: The interpreter's version.

    Raises:
        UserError: One is missing or out of range.
    """
    for name, specifier in shipped.supported().items():
        version = ".".join(map(str, python)) if name == "python" else version_of(name)
        if version is None or not fits(version, specifier):
            raise UserError(
                name,
                found=version or "not installed",
                allowed=f"{name} {specifier} (by release segment)",
                do=f"install a supported {name} for this machine; this package never installs one",
            )
