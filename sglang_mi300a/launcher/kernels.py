"""Load a room's code object onto a device and launch its kernels.

    kernel = kernels.load(code_objects.load("moe"), x.device).kernel(SCALE_ROWS)
    kernel.launch((num_tokens,), (x, out, partial, columns, 0.5))

Load before a graph is captured: loading allocates. A launch neither allocates nor waits, on the
device or on the host, so it may be captured. What it writes and its workspaces are the caller's;
workspaces that a capture saw are kept alive by :mod:`owners`. A module is loaded once a device and
stays until the process ends, as graphs refer to its code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import owners, streams
from sglang_mi300a.launcher.binding import Binding, binding
from sglang_mi300a.launcher.failure import Three
from sglang_mi300a.launcher.signature import Buffer, Signature

_MAX_GRID = (1 << 32) - 1

observers: list[Callable[[Kernel, Sequence[Any]], None]] = []
"""Called before each launch with the kernel and its arguments. Empty but in tests and reports."""


class Kernel:
    """A kernel on one device.

    Attributes:
        signature: Its arguments.
        device: Where its tensors must be.
        budget: Its registers, LDS and arguments, as the code object says.
        num_launches: How often it was launched or captured here.
    """

    def __init__(self, module: Module, signature: Signature) -> None:
        """Look the kernel up; :meth:`Module.kernel` is the door."""
        layout = signature.layout(module.code)
        self.signature = signature
        self.device = module.device
        self.budget = module.code.kernel(signature.kernel)
        self.num_launches = 0
        self._launch = module.binding.launch
        self._number = module.binding.kernel(module.number, signature.kernel, layout)
        self._block = signature.block
        self._most_dynamic_lds_bytes = code_objects.LDS_BYTES - self.budget.lds_bytes
        self._workspaces = tuple(
            i
            for i, one in enumerate(signature.arguments)
            if isinstance(one, Buffer) and one.workspace
        )

    def launch(
        self,
        grid: Sequence[int],
        arguments: Sequence[Any],
        *,
        dynamic_lds_bytes: int = 0,
        stream: int | None = None,
    ) -> None:
        """Launch on a stream of the device; return when the launch is queued or captured.

        Args:
            grid: Workgroups; one to three numbers.
            arguments: Tensors and numbers, in the signature's order.
            dynamic_lds_bytes: LDS of a workgroup beyond the kernel's static one.
            stream: HIP's handle of it; default: the current one.

        Raises:
            UserError: An argument, the grid or the LDS does not fit; nothing was launched.
            LauncherError: HIP refused the launch.
        """
        values = self.signature.bits(arguments, self.device)
        workgroups = self._checked_grid(grid)
        if not 0 <= dynamic_lds_bytes <= self._most_dynamic_lds_bytes:
            raise self._refused(
                f"{dynamic_lds_bytes} bytes of dynamic LDS", f"0 to {self._most_dynamic_lds_bytes}"
            )
        for observer in observers:
            observer(self, arguments)
        if stream is None:
            stream = streams.current(self.device)
        is_captured = self._launch(
            self._number, workgroups, self._block, dynamic_lds_bytes, stream, values
        )
        self.num_launches += 1
        if is_captured:
            for i in self._workspaces:
                if arguments[i] is not None:
                    owners.keep(arguments[i])

    def _checked_grid(self, grid: Sequence[int]) -> Three:
        if not 1 <= len(grid) <= 3 or not all(1 <= size <= _MAX_GRID for size in grid):
            raise self._refused(f"grid {tuple(grid)}", "one to three numbers of 1 or more")
        x, y, z = (*grid, 1, 1)[:3]
        return x, y, z

    def _refused(self, found: str, allowed: str) -> UserError:
        return UserError(
            f"kernel {self.signature.kernel}",
            found=found,
            allowed=allowed,
            do="correct the call; nothing was launched",
        )


class Module:
    """A code object on one device.

    Attributes:
        code: The code object.
        device: The device; the CPU only where a stand-in runtime executes on host memory.
        binding: The binding it was loaded through.
        number: What the binding calls it.
    """

    def __init__(
        self, code: code_objects.CodeObject, device: torch.device, through: Binding
    ) -> None:
        """Load it; :func:`load` is the door.

        Raises:
            UserError: There is no usable HIP runtime, or it has no such device.
            LauncherError: HIP refused the code object.
        """
        runtime, is_on_host = through.open_runtime()
        if device.type != ("cpu" if is_on_host else "cuda"):
            raise UserError(
                f"loading {code.where}",
                found=f"device {device}",
                allowed=f"cpu, as {runtime} is a stand-in" if is_on_host else f"GPUs of {runtime}",
                do="move the tensors there, or choose another rung",
            )
        self.code = code
        self.device = device
        self.binding = through
        self.number = through.load(device.index or 0, code.image)
        self._kernels: dict[Signature, Kernel] = {}

    def kernel(self, signature: Signature) -> Kernel:
        """Return a kernel of this module; the same one for the same signature.

        Raises:
            UserError: The code object has no such kernel, or one with other arguments.
            LauncherError: HIP does not find it.
        """
        with _lock:
            if signature not in self._kernels:
                self._kernels[signature] = Kernel(self, signature)
            return self._kernels[signature]


_lock = threading.RLock()
_modules: dict[tuple[str, torch.device, int], Module] = {}


def load(
    code: code_objects.CodeObject, device: torch.device, through: Binding | None = None
) -> Module:
    """Return a code object on a device, loaded now or before.

    Args:
        code: The code object.
        device: Of the tensors; ``cuda`` without a number is the current one.
        through: The binding; default: the process's.

    Raises:
        UserError: There is no usable HIP runtime, or it has no such device.
        LauncherError: HIP refused the code object.
    """
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    through = through or binding()
    key = (code.digest, device, id(through))
    with _lock:
        if key not in _modules:
            _modules[key] = Module(code, device, through)
        return _modules[key]
