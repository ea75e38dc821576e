"""What is shipped beside the code: data folders, and the versions that this one was written for.

In a source tree, and so in an editable install, the folders lie beside the package and the versions
stand in ``pyproject.toml``. In an installed wheel both lie inside the package, where ``setup.py``
put them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from sglang_mi300a.errors import UserError

FOLDERS = ("patches", "tuning_tables")
"""Folders of the source tree that a wheel carries as ``sglang_mi300a/data/<folder>``."""

_PACKAGE = Path(__file__).parent
_TABLE = re.compile(r"\[([^\[\]]+)\]")
_TEXT_ENTRY = re.compile(r'([\w-]+) *= *"([^"]*)"')


def tuning_tables() -> Path:
    """Return the folder of the shipped tuning tables, one subfolder a room.

    Raises:
        UserError: The installation lacks it.
    """
    return _folder("tuning_tables")


def patches() -> Path:
    """Return the folder of the shipped SGLang patches.

    Raises:
        UserError: The installation lacks it.
    """
    return _folder("patches")


def version() -> str:
    """Return this package's version.

    Raises:
        UserError: The installation lacks it.
    """
    return facts()["version"]


def supported() -> dict[str, str]:
    """Return version specifiers (``>=2.9``) of what this package runs with, by name.

    The names are ``python``, ``sglang`` and ``torch``.

    Raises:
        UserError: The installation lacks them.
    """
    return {name: text for name, text in facts().items() if name != "version"}


def facts() -> dict[str, str]:
    """Return this package's version and the supported specifiers: what a wheel carries."""
    in_wheel = _PACKAGE / "supported.json"
    if in_wheel.is_file():
        carried: dict[str, str] = json.loads(in_wheel.read_text(encoding="utf-8"))
        return carried
    in_tree = _PACKAGE.parent / "pyproject.toml"
    if in_tree.is_file():
        return facts_in(in_tree.read_text(encoding="utf-8"))
    raise _incomplete(f"neither {in_wheel} nor {in_tree}")


def facts_in(pyproject: str) -> dict[str, str]:
    """Return what the text of this project's ``pyproject.toml`` says of versions.

    Reads tables and one-line text entries, which is all that is asked of it: Python 3.10 has no
    TOML reader, and a package that boots servers should not depend on one for four values.

    Raises:
        KeyError: The project's version or its Python range is missing.
    """
    table = ""
    entries: dict[str, dict[str, str]] = {}
    for line in pyproject.splitlines():
        if header := _TABLE.fullmatch(line.strip()):
            table = header[1]
        elif entry := _TEXT_ENTRY.match(line):
            entries.setdefault(table, {})[entry[1]] = entry[2]
    project = entries["project"]
    return {
        "version": project["version"],
        "python": project["requires-python"],
        **entries["tool.sglang_mi300a"],
    }


def _folder(name: str) -> Path:
    in_wheel = _PACKAGE / "data" / name
    in_tree = _PACKAGE.parent / name
    for path in (in_wheel, in_tree):
        if path.is_dir():
            return path
    raise _incomplete(f"neither {in_wheel} nor {in_tree}")


def _incomplete(found: str) -> UserError:
    return UserError(
        "installation of sglang-mi300a",
        found=found,
        allowed="an installed wheel, or the package inside its source tree",
        do="install it again: pip install --force-reinstall --no-deps sglang-mi300a",
    )
