"""Two torchvision operator schemas, without which it cannot be imported beside a CPU torch.

PyPI's torchvision is built for CUDA; its compiled operators do not load beside a CPU torch,
and its Python part then refers to operators that nobody defined. SGLang imports torchvision
unconditionally, transformers where it is installed. No text model calls these operators.
"""

from __future__ import annotations

NAMES = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_libraries: list[object] = []  # torch takes schemas back when their library object dies


def define_missing() -> bool:
    """Define those of the operators that are missing; return whether any was.

    Calling one fails in torch, which finds no kernel for it.
    """
    import torch

    missing = [name for name in NAMES if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            library.define(name + _SCHEMA)
        _libraries.append(library)
    return bool(missing)
