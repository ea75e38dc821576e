"""Tiny random checkpoints with the true structure of the models that this package serves.

``make_tiny_model`` writes one; ``dequantised_twin`` writes what an MXFP4 one means in bf16, for
implementations that know no MXFP4. Importing this needs numpy only.
"""

from sglang_mi300a.tiny_model.make import (
    DENSE,
    KINDS,
    MOE_BF16,
    MOE_MXFP4,
    TinyModel,
    dequantised_twin,
    make_tiny_model,
)
from sglang_mi300a.tiny_model.sizes import TinySizes

__all__ = [
    "DENSE",
    "KINDS",
    "MOE_BF16",
    "MOE_MXFP4",
    "TinyModel",
    "TinySizes",
    "dequantised_twin",
    "make_tiny_model",
]
