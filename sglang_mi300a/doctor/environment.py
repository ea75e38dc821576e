"""Variables that decide whether serving works here, as a reader elsewhere may see them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping

from sglang_mi300a import settings

MASKS = (
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)
"""The first is the runtime's. Of the others, HIP's, the first that is set counts."""

NAMES = (
    *MASKS,
    "AITER_CONFIG_GEMM_BF16",
    "AITER_JIT_DIR",
    "AITER_REBUILD",
    "AMD_LOG_LEVEL",
    "AMD_SERIALIZE_KERNEL",
    "GPU_ARCHS",
    "HIP_LAUNCH_BLOCKING",
    "HSA_OVERRIDE_GFX_VERSION",
    "HSA_XNACK",
    "MAX_JOBS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_ROCM_ARCH",
    "PYTORCH_TUNABLEOP_ENABLED",
    "PYTORCH_TUNABLEOP_FILENAME",
    "PYTORCH_TUNABLEOP_RECORD_UNTUNED",
    "PYTORCH_TUNABLEOP_TUNING",
    "PYTORCH_TUNABLEOP_UNTUNED_FILENAME",
    "SGLANG_HEALTH_CHECK_TIMEOUT",
    "SGLANG_MAMBA_SSM_DTYPE",
    "SGLANG_MI300A",
    "SGLANG_PLATFORM",
    "SGLANG_PLUGINS",
    "SGLANG_SET_CPU_AFFINITY",
    "SGLANG_USE_AITER",
    "SGLANG_USE_CPU_ENGINE",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
)

A_PATH = "(a path)"
BY_UUID = "(by UUID)"
_PLAIN = re.compile(r"[\w.:,;=+%-]{0,100}")


def gather(get: Callable[[str], str | None] = settings.get) -> dict[str, str]:
    """Return the variables of :data:`NAMES` that are set, without paths and device ids."""
    found = {name: get(name) for name in NAMES}
    return {name: _shown(name, value) for name, value in found.items() if value is not None}


def _shown(name: str, value: str) -> str:
    if name in MASKS and not re.fullmatch(r"[\d, -]*", value):
        return BY_UUID
    return value if _PLAIN.fullmatch(value) else A_PATH


def masks(shell: Mapping[str, str]) -> list[tuple[str, list[int]]]:
    """Return the masks that apply, in order: each counts among the devices the one before left.

    Masks that name devices otherwise than by number are left out.
    """
    runtime, *hip = MASKS
    names = [runtime, *[name for name in hip if shell.get(name)][:1]]
    found = [(name, mask(shell.get(name))) for name in names]
    return [(name, numbers) for name, numbers in found if numbers is not None]


def visible(shell: Mapping[str, str], num_devices: int) -> list[int] | None:
    """Return which devices the masks leave, by the driver's order; None: all."""
    left: list[int] | None = None
    for _, numbers in masks(shell):
        pool = list(range(num_devices)) if left is None else left
        left = [pool[number] for number in numbers if number < len(pool)]
    return left


def mask(text: str | None) -> list[int] | None:
    """Return the device numbers of a mask, up to the first that is none (``-1``: no device).

    None if it is not set, is empty, or names devices otherwise.
    """
    if not text or text == BY_UUID:
        return None
    parts = (part.strip() for part in text.split(","))
    return [int(part) for part in itertools.takewhile(str.isdigit, parts)]
