"""Bytes into parameters of a torch module, in place, on whatever device they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import torch
from numpy.typing import NDArray

from sglang_mi300a import device as devices
from sglang_mi300a.artifact_manifest import DTYPE_BYTES
from sglang_mi300a.weights import host_writable
from sglang_mi300a.weights.host_writable import Runtime, Verdict
from sglang_mi300a.weights.steps import Stored

Bytes = NDArray[np.uint8]

TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "U8": torch.uint8,
}
"""Types that a model's parameters are stored in."""


class ParameterSink:
    """Copies bytes into parameters where they lie; any thread may write to its own tensor.

    Attributes:
        is_straight: Whether files are read straight into the parameters' memory.
    """

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], stored: Mapping[str, Stored]
    ) -> None:
        self.is_straight = False
        self._device = next(iter(parameters.values())).device
        self._flat = {name: p.data.view(-1) for name, p in parameters.items()}
        self._stored = {name: stored[name].dtype for name in parameters}

    def read_straight(self, runtime: Runtime | None = None) -> Verdict:
        """Read files straight into the parameters from now on, if a probe says that it works.

        Args:
            runtime: Stands in for the parameters' device.
        """
        verdict = self._probe(runtime)
        self.is_straight = verdict.passed
        return verdict

    def _probe(self, runtime: Runtime | None) -> Verdict:
        if runtime is not None:
            return host_writable.probe(runtime)
        if self._device.type == "cpu":
            return Verdict(True, "the parameters lie in host memory")
        if not any(found.is_apu for found in devices.accelerators()):
            return Verdict(False, "no APU: the device's memory is its own")
        return host_writable.probe(_Torch(self._device))

    def destination(self, name: str) -> Bytes | None:
        """Return a parameter's memory, uint8, or None if its bytes go through :meth:`write`."""
        flat = self._flat[name]
        if not self.is_straight or TORCH_DTYPES[self._stored[name]] is not flat.dtype:
            return None
        return host_writable.view(flat.data_ptr(), flat.nbytes)

    @contextmanager
    def pinned(self, buffers: Sequence[Bytes]) -> Iterator[None]:
        """Let the device copy from read buffers by itself, between ``with`` and its end.

        The buffers are ordinary memory that is registered with the runtime. Memory allocated by the
        runtime is device memory to the kernel on ROCm, which direct reads refuse (``EFAULT``).
        Where the runtime does not register them, copies work all the same and take longer.
        """
        registered: list[int] = []
        if self._device.type == "cuda":
            runtime = torch.cuda.cudart()
            for buffer in buffers:
                address = buffer.ctypes.data
                if int(runtime.cudaHostRegister(address, buffer.nbytes, 0)) != 0:
                    self._forget_last_error()
                    break
                registered.append(address)
        try:
            yield
        finally:
            for address in registered:
                torch.cuda.cudart().cudaHostUnregister(address)

    def _forget_last_error(self) -> None:
        """Take a refused call's error from the runtime; the next kernel launch would raise it."""
        with suppress(RuntimeError):
            torch.zeros(1, device=self._device)

    def start_thread(self) -> None:
        """Make the parameters' device this thread's own, which for a new thread is the first."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def write(self, name: str, offset: int, data: Bytes) -> None:
        """Copy, and convert if the model holds the tensor in another float type."""
        item = DTYPE_BYTES[self._stored[name]]
        if data.ctypes.data % item:
            data = data.copy()  # a tensor may start anywhere in a file
        values = torch.from_numpy(data).view(TORCH_DTYPES[self._stored[name]])
        first = offset // item
        self._flat[name][first : first + len(values)].copy_(values)


class _Torch:
    """The memory of a torch device, for the probe."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, size: int) -> tuple[torch.Tensor, int]:
        memory = torch.empty(size, dtype=torch.uint8, device=self._device)
        return memory, memory.data_ptr()

    def fill(self, memory: torch.Tensor, value: int) -> None:
        memory.fill_(value)
        torch.cuda.synchronize(self._device)

    def content(self, memory: torch.Tensor) -> bytes:
        return memory.cpu().numpy().tobytes()
