"""The accelerators, as the kernel driver describes them, and whether this user may open them."""

from __future__ import annotations

import os
from pathlib import Path

from sglang_mi300a import device
from sglang_mi300a.doctor.facts import Device, Devices
from sglang_mi300a.doctor.machine import text


def gather(root: Path = Path("/")) -> Devices:
    """Return the accelerators.

    Args:
        root: Directory that stands for ``/``.

    Source: partition files as in Linux ``Documentation/gpu/amdgpu/driver-misc.rst``.
    """
    found = []
    for one in device.accelerators(root / "sys"):
        pci = root / "sys/bus/pci/devices" / one.pci_address
        found.append(
            Device(
                name=one.name,
                arch=one.arch,
                num_visible_cus=one.num_visible_cus,
                is_apu=one.is_apu,
                numa_node=one.numa_node,
                compute_partition=text(pci / "current_compute_partition"),
                memory_partition=text(pci / "current_memory_partition"),
            )
        )
    nodes = sorted((root / "dev/dri").glob("renderD*"))
    return Devices(
        found=tuple(found),
        driver=text(root / "sys/module/amdgpu/version"),
        kfd=_access(root / "dev/kfd"),
        render=(sum(_access(node) == "open" for node in nodes), len(nodes)),
    )


def _access(path: Path) -> str:
    if not path.exists():
        return "missing"
    return "open" if os.access(path, os.R_OK | os.W_OK) else "denied"
