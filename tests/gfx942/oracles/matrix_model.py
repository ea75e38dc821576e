"""The model of CDNA3's matrix units that mmasim ships (arXiv 2511.10909), as a function of arrays.

mmasim builds a small library with ninja when it is imported; pip puts ninja beside the interpreter,
where PATH need not lead."""

import os
import sysconfig

import numpy as np
import torch

os.environ["PATH"] = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"

from mmasim.amd import MFMA

KINDS = {"bf16": torch.bfloat16, "f16": torch.float16}


def rounded_to(kind: str, numbers: np.ndarray) -> np.ndarray:
    """Return numbers (f64) as bit patterns (uint16) of a 16-bit format."""
    tensor = torch.from_numpy(np.ascontiguousarray(numbers)).to(KINDS[kind])
    return tensor.view(torch.int16).numpy().view(np.uint16)


def multiply_add(name: str, kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return the bits (uint32) of A * B + C.

    Args:
        name: Shape as in the mnemonic, ``16x16x16``.
        kind: Of A and B, ``bf16`` or ``f16``.
        a, b: Bit patterns (uint16) [M, K] and [K, N].
        c: f32 [M, N].
    """
    left, right = (
        torch.from_numpy(np.ascontiguousarray(m).view(np.int16)).view(KINDS[kind]) for m in (a, b)
    )
    result = MFMA("CDNA3", f"f32_{name}_{kind}")(left, right, torch.from_numpy(c.copy()))
    return result.numpy().view(np.uint32)
