"""The compilers these tests need: found, called, and their products kept by content."""

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sglang_mi300a.launcher.toolchain import LLVM_SUFFIXES
from tests import repository

CACHE = repository.ROOT / "build" / "gfx942"
"""Compiled programs and the compiled interpreter; git ignores it, `make clean` removes it."""


class ToolMissing(AssertionError):
    """A prerequisite of these tests is not installed. A failure, not a skip: nothing was tested."""


@cache
def tool(name: str) -> str:
    """Return the path of a program: ``g++``, or one of LLVM 19 or later.

    Raises:
        ToolMissing: It is not on PATH; the message holds the line that installs it.
    """
    names = [name] if name == "g++" else [name + suffix for suffix in LLVM_SUFFIXES]
    for candidate in names:
        if path := shutil.which(candidate):
            return path
    raise ToolMissing(f"{name} is not installed. On Debian or Ubuntu, type:\n  {apt_line()}")


def apt_line() -> str:
    """Return what installs the prerequisites on Debian and Ubuntu."""
    packages = (repository.ROOT / "requirements" / "apt.txt").read_text().split()
    install = "sudo apt-get install -y --no-install-recommends"
    return f"sudo apt-get update && {install} {' '.join(packages)}"


def run(command: Sequence[str | Path]) -> str:
    """Return what a program printed.

    Raises:
        AssertionError: It failed; the message holds the command and its errors.
    """
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


@cache
def version(name: str) -> str:
    """Return a tool's first line of ``--version``: products of another version are made anew."""
    return run([tool(name), "--version"]).splitlines()[0]


def kept(suffix: str, key: Sequence[str | bytes], make) -> Path:
    """Return the file that ``make(path)`` wrote for this key, now or in an earlier run.

    Args:
        suffix: Ending of the file's name.
        key: All that the content depends on.
        make: Called with the path to write, at most once per key and machine.
    """
    digest = hashlib.sha256()
    for part in key:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    path = CACHE / (digest.hexdigest()[:32] + suffix)
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.stem}.{id(path)}.unfinished{suffix}")
        make(unfinished)
        unfinished.replace(path)
    return path


HIP_FLAGS = (
    "-x hip --offload-arch=gfx942 --offload-device-only -nogpuinc -nogpulib -O3 -std=c++17 "
    "--no-gpu-bundle-output"
).split()


def compile_hip(source: Path, flags: Sequence[str] = ()) -> Path:
    """Return the code object of a HIP source that uses compiler builtins only.

    Args:
        source: The ``.hip`` file.
        flags: Further flags, such as ``-DTOKENS=32``.
    """
    clang = [tool("clang"), *HIP_FLAGS, *flags, "-I", source.parent.parent, source]
    tool("ld.lld")
    # The key holds what the source includes, wherever that lies.
    preprocessed = run([*clang, "-E", "-P", "-o", "-"])
    key = [version("clang"), *HIP_FLAGS, *flags, source.name, preprocessed]
    return kept(".co", key, lambda out: run([*clang, "-o", out]))


def assemble(text: str) -> Path:
    """Return the code object of an assembler text for gfx942."""

    def make(out: Path) -> None:
        source = out.with_suffix(".s")
        source.write_text(text)
        flags = ["--target=amdgcn-amd-amdhsa", "-mcpu=gfx942"]
        run([tool("clang"), *flags, source, "-o", out])
        source.unlink()

    tool("ld.lld")
    return kept(".co", [version("clang"), text], make)
