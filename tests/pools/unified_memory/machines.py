"""Machines as files of sysfs and procfs, unpacked below a directory.

Composed in the formats that the kernel's documentation states; none was taken from an MI300A node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures" / "machines"


def files(name: str) -> dict[str, str]:
    """Return the files of a recorded machine by path."""
    return dict(json.loads((FIXTURES / f"{name}.json").read_text())["files"])


def unpack(
    root: Path,
    name: str,
    *,
    without: tuple[str, ...] = (),
    changed: Mapping[str, str] | None = None,
) -> Path:
    """Write a recorded machine below ``root`` and return it.

    Args:
        root: An empty directory.
        name: The recording.
        without: Beginnings of paths to leave out.
        changed: Files to write otherwise, or besides.
    """
    wanted = {path: text for path, text in files(name).items() if not path.startswith(without)}
    for path, text in {**wanted, **(changed or {})}.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root
