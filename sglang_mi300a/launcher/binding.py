"""Reach the launcher's core: through pybind11 where its module was built, else through ctypes."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import ctypes_binding, native_build
from sglang_mi300a.launcher.failure import Three

ABI_VERSION = 1
"""Of csrc/launcher/launcher.h, which this package was written for."""


class Binding(Protocol):
    """What both bindings offer; each raises as :func:`failure.raise_for`.

    Modules and kernels are numbers that are never given twice.
    """

    def abi_version(self) -> int:
        """Return the version of the core's interface."""

    def open_runtime(self) -> tuple[str, bool]:
        """Return the HIP runtime's file, and whether it is a stand-in on host memory."""

    def load(self, device: int, image: bytes) -> int:
        """Load a code object onto a device; return the module's number."""

    def unload(self, module: int) -> None:
        """Unload a module."""

    def kernel(self, module: int, name: str, layout: tuple[tuple[int, int], ...]) -> int:
        """Look up a kernel by name and (offset, size) of its arguments; return its number."""

    def launch(
        self,
        kernel: int,
        grid: Three,
        block: Three,
        dynamic_lds_bytes: int,
        stream: int,
        values: tuple[int, ...],
    ) -> bool:
        """Launch; return whether the stream is being captured. ``values`` are unsigned bits."""


@functools.cache
def binding() -> Binding:
    """Return the binding of this process: pybind11's if it was built for this Python, else ctypes.

    Raises:
        UserError: The core is not there, or is of another version.
    """
    folder = code_objects.compiled_folder("launcher")
    found = pybind_module(folder)
    return open_binding(folder) if found is None else _checked(found, folder)


def open_binding(folder: Path) -> Binding:
    """Return the ctypes binding of the core in a folder.

    Raises:
        UserError: It is not there, or is of another version.
    """
    path = folder / native_build.CORE_FILE
    try:
        return _checked(ctypes_binding.CtypesBinding(path), folder)
    except OSError as error:
        raise _unusable(str(path), str(error)) from error


def pybind_module(folder: Path) -> Binding | None:
    """Return the pybind11 module in a folder, or None if none was built for this Python.

    Raises:
        UserError: It is there and cannot be loaded.
    """
    path = folder / native_build.PYBIND_FILE
    if not path.is_file():
        return None
    name = f"{__package__}.{native_build.PYBIND_MODULE}"
    if name in sys.modules and sys.modules[name].__file__ == str(path):
        return cast(Binding, sys.modules[name])
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    try:
        module: ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise _unusable(str(path), str(error)) from error
    sys.modules[name] = module
    return cast(Binding, module)


def name_of(found: Binding) -> str:
    """Return what reports call a binding: ``pybind11`` or ``ctypes``."""
    return "pybind11" if isinstance(found, ModuleType) else "ctypes"


def _checked(found: Binding, folder: Path) -> Binding:
    version = found.abi_version()
    if version != ABI_VERSION:
        raise _unusable(str(folder), f"interface version {version}, this package has {ABI_VERSION}")
    return found


def _unusable(where: str, found: str) -> UserError:
    return UserError(
        where,
        found=found,
        allowed="the launcher's core of this very version",
        do="in a source tree `make setup` builds it; else install a wheel with kernels (its "
        "version has no +nokernels)",
    )
