"""Build what is compiled: the launcher's core, its pybind11 module, host code, the kernels.

All goes to ``build/native`` of the source tree, which git ignores; an editable install finds it
there, and a wheel is given copies. What is as new as its sources and its compiler is left alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import importlib.util
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import toolchain

CORE_FILE = "libsglang_mi300a_launcher.so"
PYBIND_MODULE = "pybind_module"
PYBIND_FILE = PYBIND_MODULE + str(sysconfig.get_config_var("EXT_SUFFIX"))

CORE_SOURCES = ("launcher.cpp", "hip_runtime.cpp")

HOST_FILE = "libsglang_mi300a_host.so"
HOST_SOURCES = ("stream_records.cpp",)
CXX_FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra",
    "-Wl,-z,defs", "-s",
)  # fmt: skip
_CXX_NAMES = ("g++", "c++", "clang++", "clang++-19", "clang++-22")
_ENDINGS = ("co", "json")
_TIMEOUT_S = 600


@dataclass(frozen=True)
class Built:
    """The compiled files of a tree.

    Attributes:
        code_objects: A code object and its record for each room that has kernels.
        launcher: The core, and the pybind11 module where it was asked for.
        host: The library of what runs on the host.
        made: Names of those that were not there, or not fresh.
    """

    code_objects: tuple[Path, ...]
    launcher: tuple[Path, ...]
    host: Path
    made: tuple[str, ...]


def build_tree(root: Path, *, with_pybind: bool, clang: str | None = None) -> Built:
    """Build into ``build/native`` of a source tree what is not there or not fresh.

    Args:
        root: The source tree.
        with_pybind: Whether to build the pybind11 module, for the running Python.
        clang: The only clang to try for the kernels; default: the first that works.

    Raises:
        UserError: A compiler is missing, or refuses a source.
    """
    launcher, made = build_launcher(root, with_pybind=with_pybind)
    host, host_made = build_host(root)
    kernels, kernels_made = build_kernels(root, clang)
    return Built(tuple(kernels), tuple(launcher), host, (*made, *host_made, *kernels_made))


def build_launcher(root: Path, *, with_pybind: bool) -> tuple[list[Path], list[str]]:
    """Build the core, and the pybind11 module if asked for; as :func:`build_tree`."""
    csrc, folder = root / "csrc", root / "build/native/launcher"
    core, module = folder / CORE_FILE, folder / PYBIND_FILE
    made = []
    with _one_at_a_time(root / "build/native"):
        if build_core(csrc, core):
            made.append(core.name)
        if with_pybind and build_pybind(csrc, module, core):
            made.append(module.name)
    return [core, module] if with_pybind else [core], made


def build_host(root: Path) -> tuple[Path, list[str]]:
    """Build the library of what runs on the host; as :func:`build_tree`."""
    folder, path = root / "csrc/host", root / "build/native/host" / HOST_FILE
    sources = [str(folder / name) for name in HOST_SOURCES]
    flags = [*CXX_FLAGS, "-O3", f"-Wl,-soname,{HOST_FILE}"]
    with _one_at_a_time(root / "build/native"):
        made = _compile(sources, path, flags, _headers_and(folder, HOST_SOURCES), [])
    return path, [path.name] if made else []


def build_kernels(root: Path, clang: str | None = None) -> tuple[list[Path], list[str]]:
    """Build the code object of each room that has kernels; as :func:`build_tree`."""
    csrc, folder = root / "csrc", root / "build/native/code_objects"
    rooms = code_objects.rooms_with_kernels(csrc)
    if not rooms:
        return [], []
    made = []
    with _one_at_a_time(root / "build/native"):
        found = toolchain.find_clang(clang)
        for room in rooms:
            if not toolchain.is_fresh(csrc, room, folder, found):
                toolchain.build_room(csrc, room, folder, found)
                made.append(f"{room}.{code_objects.ARCH}.co")
    files = [folder / f"{room}.{code_objects.ARCH}.{end}" for room in rooms for end in _ENDINGS]
    return files, made


def can_build_pybind() -> bool:
    """Return whether pybind11 and the running Python's headers are there."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return importlib.util.find_spec("pybind11") is not None and headers.is_file()


def build_core(csrc: Path, path: Path, more_flags: Sequence[str] = ()) -> bool:
    """Build the launcher's core unless it is fresh; return whether it was built.

    Args:
        csrc: Folder of all sources.
        path: The library to write.
        more_flags: Sanitizers and the like.

    Raises:
        UserError: The compiler is missing or refuses.
    """
    folder = csrc / "launcher"
    sources = [str(folder / name) for name in CORE_SOURCES]
    flags = [*CXX_FLAGS, *more_flags, f"-Wl,-soname,{CORE_FILE}"]
    return _compile(sources, path, flags, _headers_and(folder, CORE_SOURCES), ["-ldl"])


def build_pybind(csrc: Path, path: Path, core: Path) -> bool:
    """Build the pybind11 module unless it is fresh; return whether it was built.

    Args:
        csrc: Folder of all sources.
        path: The module to write, beside the core.
        core: The core, which it loads.

    Raises:
        UserError: pybind11, Python's headers or the compiler are missing, or the last refuses.
    """
    if not can_build_pybind():
        raise UserError(
            "building the launcher's pybind11 module",
            found=f"no pybind11, or no Python.h in {sysconfig.get_path('include')}",
            allowed="both",
            do="`pip install pybind11` and Python's headers, or build without it: the ctypes "
            "binding does the same",
        )
    include = importlib.import_module("pybind11").get_include()
    folder = csrc / "launcher"
    source = f"{PYBIND_MODULE}.cpp"
    flags = [
        *CXX_FLAGS[:-3], "-s",  # Python's own symbols stay undefined
        f"-I{include}", f"-I{sysconfig.get_path('include')}",
        "-Wall", "-Wextra", "-Wl,-rpath,$ORIGIN",
    ]  # fmt: skip
    needs = [*_headers_and(folder, [source]), core]
    return _compile([str(folder / source)], path, flags, needs, [str(core)])


def wheel_platform(libraries: Sequence[Path]) -> str:
    """Return a wheel's platform tag, ``manylinux_2_34_x86_64`` if libraries need glibc 2.34."""
    needed = [17]  # the oldest that the tag's form knows
    for path in libraries:
        needed += [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes())]
    return f"manylinux_2_{max(needed)}_{platform.machine()}"


def _compile(
    sources: list[str], path: Path, flags: list[str], needs: list[Path], libraries: list[str]
) -> bool:
    compiler = _cxx()
    key = hashlib.sha256("\0".join([compiler, _first_line(compiler), *flags]).encode())
    for need in needs:
        key.update(need.read_bytes())
    stamp = path.with_name(path.name + ".key")
    if path.is_file() and stamp.is_file() and stamp.read_text() == key.hexdigest():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sglang-mi300a-") as folder:
        out = Path(folder) / path.name
        done = subprocess.run(
            [compiler, *flags, *sources, "-o", str(out), *libraries],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise UserError(
                f"compiling {path.name}",
                found=done.stderr.strip() or f"exit code {done.returncode}",
                allowed="C++17",
                do=f"correct it; compiler: {compiler}",
            )
        stamp.unlink(missing_ok=True)
        toolchain.replace(path, out.read_bytes())
    toolchain.replace(stamp, key.hexdigest().encode())
    return True


def _headers_and(folder: Path, sources: Sequence[str]) -> list[Path]:
    return [*sorted(folder.glob("*.h")), *(folder / name for name in sources)]


def _cxx() -> str:
    for name in _CXX_NAMES:
        if found := shutil.which(name):
            return found
    raise UserError(
        "building the launcher and the host library",
        found=f"none of {', '.join(_CXX_NAMES)}",
        allowed="a C++17 compiler",
        do="install g++, or set SGLANG_MI300A_NO_KERNELS=1 for a package without kernels",
    )


def _first_line(compiler: str) -> str:
    done = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()[0]


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
