"""The launcher's C interface (``csrc/launcher/launcher.h``) through ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char, c_char_p, c_int32, c_uint32, c_uint64, c_void_p
from pathlib import Path

from sglang_mi300a.launcher import failure
from sglang_mi300a.launcher.failure import Three

_NAME_BYTES = 96
_TEXT_BYTES = 1024
_ThreeWords = c_uint32 * 3


class _Failure(ctypes.Structure):
    _fields_ = (
        ("hip_code", c_int32),
        ("grid", _ThreeWords),
        ("block", _ThreeWords),
        ("kernel", c_char * _NAME_BYTES),
        ("call", c_char * _NAME_BYTES),
        ("hip_name", c_char * _NAME_BYTES),
        ("text", c_char * _TEXT_BYTES),
    )


class _Runtime(ctypes.Structure):
    _fields_ = (("host_memory", c_int32), ("path", c_char * _TEXT_BYTES))


class _Argument(ctypes.Structure):
    _fields_ = (("offset_bytes", c_uint32), ("size_bytes", c_uint32))


_PARAMETERS = {
    "mi300a_abi_version": (),
    "mi300a_open": (POINTER(_Runtime), POINTER(_Failure)),
    "mi300a_load": (c_int32, c_char_p, c_uint64, POINTER(c_int32), POINTER(_Failure)),
    "mi300a_unload": (c_int32, POINTER(_Failure)),
    "mi300a_kernel": (
        *(c_int32, c_char_p, POINTER(_Argument), c_uint32, POINTER(c_int32)),
        POINTER(_Failure),
    ),
    "mi300a_launch": (
        *(c_int32, POINTER(c_uint32), POINTER(c_uint32), c_uint32, c_void_p, POINTER(c_uint64)),
        *(c_uint32, POINTER(c_int32), POINTER(_Failure)),
    ),
}


class CtypesBinding:
    """The core in a library file; the methods are those of :class:`binding.Binding`."""

    def __init__(self, path: Path) -> None:
        """Open the library.

        Raises:
            OSError: It is missing, or not to be loaded.
        """
        self._core = ctypes.CDLL(str(path))
        for name, parameters in _PARAMETERS.items():
            function = getattr(self._core, name)
            function.argtypes = parameters
            function.restype = c_int32
        self._launch = self._core.mi300a_launch

    def abi_version(self) -> int:
        """Return the version of the core's interface."""
        return int(self._core.mi300a_abi_version())

    def open_runtime(self) -> tuple[str, bool]:
        """Return the HIP runtime's file, and whether it is a stand-in on host memory."""
        runtime, failed = _Runtime(), _Failure()
        _check(self._core.mi300a_open(byref(runtime), byref(failed)), failed)
        return runtime.path.decode(), bool(runtime.host_memory)

    def load(self, device: int, image: bytes) -> int:
        """Load a code object onto a device; return the module's number."""
        module, failed = c_int32(), _Failure()
        status = self._core.mi300a_load(device, image, len(image), byref(module), byref(failed))
        _check(status, failed)
        return module.value

    def unload(self, module: int) -> None:
        """Unload a module."""
        failed = _Failure()
        _check(self._core.mi300a_unload(module, byref(failed)), failed)

    def kernel(self, module: int, name: str, layout: tuple[tuple[int, int], ...]) -> int:
        """Look up a kernel by name and (offset, size) of its arguments; return its number."""
        arguments = (_Argument * len(layout))(*(_Argument(*one) for one in layout))
        number, failed = c_int32(), _Failure()
        status = self._core.mi300a_kernel(
            module, name.encode(), arguments, len(layout), byref(number), byref(failed)
        )
        _check(status, failed)
        return number.value

    def launch(
        self,
        kernel: int,
        grid: Three,
        block: Three,
        dynamic_lds_bytes: int,
        stream: int,
        values: tuple[int, ...],
    ) -> bool:
        """Launch; return whether the stream is being captured."""
        captured, failed = c_int32(), _Failure()
        count = len(values)
        status = self._launch(
            *(kernel, _ThreeWords(*grid), _ThreeWords(*block), dynamic_lds_bytes, stream),
            *((c_uint64 * count)(*values), count, byref(captured), byref(failed)),
        )
        if status:
            _check(status, failed)
        return captured.value != 0


def _check(status: int, failed: _Failure) -> None:
    if status == failure.OK:
        return
    failure.raise_for(
        status,
        call=failed.call.decode(),
        code=failed.hip_code,
        name=failed.hip_name.decode(),
        text=failed.text.decode("utf-8", "replace"),
        kernel=failed.kernel.decode(),
        grid=_three(failed.grid),
        block=_three(failed.block),
    )


def _three(words: ctypes.Array[c_uint32]) -> Three:
    x, y, z = (int(word) for word in words)
    return x, y, z
