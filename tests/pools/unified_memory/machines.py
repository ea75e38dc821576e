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


def unpack_idle(root: Path) -> Path:
    """Write four MI300A on which nothing but the operating system runs."""
    idle = files("mi300a-node")["sys/devices/system/node/node3/meminfo"]
    changed = {
        f"sys/devices/system/node/node{node}/meminfo": idle.replace("Node 3", f"Node {node}")
        for node in range(4)
    }
    changed["sys/bus/pci/devices/0002:01:00.0/mem_info_gtt_used"] = "18653184\n"
    cpus = {
        f"sys/devices/system/node/node{n}/cpulist": f"{24 * n}-{24 * n + 23}\n" for n in range(4)
    }
    return unpack(root, "mi300a-node", changed={**changed, **cpus})


def take(root: Path, node: int, num_bytes: int, entry: str = "MemFree") -> None:
    """Take free pages of a NUMA node (negative: give back), as the kernel would then show it."""
    path = root / f"sys/devices/system/node/node{node}/meminfo"
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.split()[2] == f"{entry}:":
            kib = int(line.split()[3]) - num_bytes // 1024
            assert kib >= 0, line
            lines[number] = f"Node {node} {entry}: {kib} kB"
    path.write_text("\n".join(lines) + "\n")
