"""What accelerators this node has, read from sysfs; neither torch nor HIP is touched.

Source of the fields: Linux ``Documentation`` of amdkfd's sysfs topology
(``/sys/class/kfd/kfd/topology/nodes/*/properties``): ``gfx_target_version`` is
``major * 10000 + minor * 100 + stepping`` (gfx942 is 90402), ``simd_count / simd_per_cu`` the
visible compute units, ``domain`` and ``location_id`` the PCI address. PCI ids: 0x74a0 is the
MI300A, 0x74a1 the MI300X (pci.ids).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")
MI300A_DEVICE_ID = 0x74A0
_NAMES = {MI300A_DEVICE_ID: "AMD Instinct MI300A", 0x74A1: "AMD Instinct MI300X"}


@dataclass(frozen=True)
class Accelerator:
    """One accelerator as the kernel driver describes it.

    Attributes:
        index: Position among the node's accelerators, in driver order.
        name: Product name, or the PCI id where it is not known.
        arch: ``gfx942`` and the like.
        num_visible_cus: Compute units, after partitioning.
        is_apu: Whether CPU and accelerator share the memory (by product, MI300A only).
        numa_node: NUMA node of its PCI device; -1 where the kernel does not say.
        pci_address: Of that device, ``0000:01:00.0``; partitions of one device share it.
    """

    index: int
    name: str
    arch: str
    num_visible_cus: int
    is_apu: bool
    numa_node: int
    pci_address: str = ""


def accelerators(sysfs: Path = SYSFS) -> list[Accelerator]:
    """Return the node's AMD accelerators; empty where there is no amdkfd driver.

    Args:
        sysfs: Root of sysfs (a recorded tree in tests).
    """
    nodes = sysfs / "class/kfd/kfd/topology/nodes"
    if not nodes.is_dir():
        return []
    found: list[Accelerator] = []
    for node in sorted(nodes.iterdir(), key=lambda path: int(path.name)):
        properties = _properties(node / "properties")
        version = properties.get("gfx_target_version", 0)
        if not version or not properties.get("simd_count"):
            continue  # a CPU node
        device_id = properties.get("device_id", 0)
        address = _pci_address(properties)
        found.append(
            Accelerator(
                index=len(found),
                name=_NAMES.get(device_id, f"AMD device 0x{device_id:04x}"),
                arch=arch_name(version),
                num_visible_cus=properties["simd_count"] // properties.get("simd_per_cu", 4),
                is_apu=device_id == MI300A_DEVICE_ID,
                numa_node=_numa_node(sysfs, address),
                pci_address=address,
            )
        )
    return found


def arch_name(gfx_target_version: int) -> str:
    """Return ``gfx942`` for 90402: major and minor decimal, stepping in hexadecimal."""
    major, rest = divmod(gfx_target_version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor}{stepping:x}"


def _properties(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:  # some driver versions refuse nodes outside the container's cgroup
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _pci_address(properties: dict[str, int]) -> str:
    location = properties.get("location_id", 0)
    bus, device, function = location >> 8, (location >> 3) & 0x1F, location & 0x7
    return f"{properties.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}"


def _numa_node(sysfs: Path, address: str) -> int:
    try:
        return int((sysfs / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def target_device(*, cpu_engine: bool, found: list[Accelerator]) -> str | None:
    """Return which of the package's targets this node is: ``gfx942``, ``cpu``, or None.

    Args:
        cpu_engine: Whether SGLang is told to use its CPU engine.
        found: The node's accelerators.
    """
    if cpu_engine:
        return "cpu"
    return "gfx942" if any(device.arch == "gfx942" for device in found) else None
