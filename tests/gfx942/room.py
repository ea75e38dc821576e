"""The code object of a room of csrc/, by each compiler at hand; and bf16 numbers."""

import shutil
from functools import cache

import numpy as np
import torch

from tests import repository
from tests.gfx942 import toolchain
from tests.gfx942.machine import Machine

COMPILERS = [name for v in range(19, 30) if shutil.which(name := f"clang-{v}")] or ["clang"]
"""Those at hand. The first builds what all other tests run."""


@cache
def machine(room: str, compiler: str = COMPILERS[0]) -> Machine:
    """Return a room's code object, loaded."""
    source = repository.ROOT / "csrc" / room / f"{room}.hip"
    if compiler == COMPILERS[0]:
        return Machine(toolchain.compile_hip(source))
    folders = (source.parent, source.parent.parent)
    sources = [path.read_bytes() for f in folders for path in sorted(f.glob("*.h*"))]
    command = [compiler, *toolchain.HIP_FLAGS, "-I", source.parent.parent, source, "-o"]
    key = [toolchain.run([compiler, "--version"]), *toolchain.HIP_FLAGS, *sources]
    return Machine(toolchain.kept(".co", key, lambda out: toolchain.run([*command, out])))


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Return bf16 bits (uint16), to nearest, ties to even."""
    return torch.from_numpy(np.array(values, np.float32)).bfloat16().view(torch.uint16).numpy()


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """Return the float32 values of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    """Return the relative L2 distance; where nothing is wanted, the distance itself."""
    wide = want.astype(np.float64)
    size, distance = np.linalg.norm(wide), np.linalg.norm(got.astype(np.float64) - wide)
    return float(distance / size) if size else float(distance)
