"""Whether the stand-ins may be used on this machine: not beside the real thing, not on hardware."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from sglang_mi300a import device

REAL_DISTRIBUTIONS = ("sgl-kernel", "sglang-kernel", "sglang-kernel-cpu")
"""Names under which SGLang's kernels are published or built (CUDA and ROCm; CPU)."""


def reason_to_refuse(
    *,
    standins: Path,
    search_path: Iterable[str],
    accelerators: Iterable[device.Accelerator],
    torch_sees_device: Callable[[], bool],
) -> str:
    """Return why the stand-in must not be used here, with what to do; "" if it may.

    Cheapest look first. That a driver is loaded is no reason: laptops have one for their graphics,
    and the CPU engine is meant for them. The accelerator this package serves is a reason, and so
    is any that this process's torch could use.

    Args:
        standins: The folder that holds the stand-in.
        search_path: ``sys.path``.
        accelerators: AMD accelerators of this node.
        torch_sees_device: Whether torch finds a device.
    """
    others = [entry for entry in search_path if Path(entry or ".").resolve() != standins.resolve()]
    for name in REAL_DISTRIBUTIONS:
        for found in metadata.distributions(name=name, path=others):
            return (
                f"{found.metadata['Name']} {found.version} is installed; take {standins} off "
                f"PYTHONPATH, or use an environment without {name}"
            )
    package = PathFinder.find_spec("sgl_kernel", others)
    if package is not None:
        return (
            f"another sgl_kernel is at {package.origin or 'a namespace'}; take {standins} off "
            "PYTHONPATH, or use an environment without it"
        )
    for each in accelerators:
        if each.arch == "gfx942":
            return (
                f"this node has {each.name} ({each.arch}); serve on it (take {standins} off "
                "PYTHONPATH), or run the CPU engine where the device is hidden, in a container "
                "without /dev/kfd and /sys/class/kfd"
            )
    if torch_sees_device():
        return (
            f"torch finds an accelerator; take {standins} off PYTHONPATH, or install a CPU build "
            "of torch, or hide the device (CUDA_VISIBLE_DEVICES= or HIP_VISIBLE_DEVICES=-1)"
        )
    return ""


def refuse_here(standins: Path) -> None:
    """Do nothing where the stand-in may be used.

    Raises:
        ImportError: It must not, with the reason.
    """
    import torch

    reason = reason_to_refuse(
        standins=standins,
        search_path=sys.path,
        accelerators=device.accelerators(),
        torch_sees_device=torch.cuda.is_available,
    )
    if reason:
        raise ImportError(
            f"sglang-mi300a's stand-in for SGLang's CPU kernels is not used: {reason}",
            name="sgl_kernel",
        )
