"""Bytes into parameters of a torch module, in place, on whatever device they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from sglang_mi300a.artifact_manifest import DTYPE_BYTES
from sglang_mi300a.weights.steps import Stored

TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "U8": torch.uint8,
}
"""Types that a model's parameters are stored in."""


class ParameterSink:
    """Copies bytes into parameters where they lie; any thread may write to its own tensor."""

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], stored: Mapping[str, Stored]
    ) -> None:
        self._device = next(iter(parameters.values())).device
        self._flat = {name: p.data.view(-1) for name, p in parameters.items()}
        self._stored = {name: stored[name].dtype for name in parameters}

    def start_thread(self) -> None:
        """Make the parameters' device this thread's own, which for a new thread is the first."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def write(self, name: str, offset: int, data: NDArray[np.uint8]) -> None:
        """Copy, and convert if the model holds the tensor in another float type."""
        item = DTYPE_BYTES[self._stored[name]]
        if data.ctypes.data % item:
            data = data.copy()  # a tensor may start anywhere in a file
        values = torch.from_numpy(data).view(TORCH_DTYPES[self._stored[name]])
        first = offset // item
        self._flat[name][first : first + len(values)].copy_(values)
