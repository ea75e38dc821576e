"""Compile HIP sources to one gfx942 code object, with any clang that has the AMDGPU target.

The sources use compiler builtins only, so neither ROCm nor a device library nor a C library's
header is needed (``-nostdinc`` holds them to it). Tried: Debian's clang-19 and clang-22, each with
its lld, and PyPI's ``ziglang``. ROCm's amdclang++ takes the same flags.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError

FLAGS = (
    "-x", "hip", f"--offload-arch={code_objects.ARCH}", "--offload-device-only",
    "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-nostdinc", "-std=c++17", "-O3",
    "-mcode-object-version=5",
    "-fno-discard-value-names",  # the metadata then holds the arguments' names
    "-fuse-cuid=none",  # no hash of paths in the object
    "-Wall", "-Wextra",
)  # fmt: skip
"""Flags of every build. Each compiler gets the same, and the same source gives the same bytes."""

LLVM_SUFFIXES = ("-19", "-22", "-21", "-20", "")
"""Of LLVM's programs, in the order in which they are tried. Register counts depend on the compiler;
the budgets are kept with the first."""

_NAMES = (*(f"clang{suffix}" for suffix in LLVM_SUFFIXES[:-1]), "amdclang++", "clang")
_ROCM = ("/opt/rocm/llvm/bin/clang", "/opt/rocm/lib/llvm/bin/clang")
_TIMEOUT_S = 1800

_PROBE = """
extern "C" __attribute__((global)) void probe(float* out) {
  out[__builtin_amdgcn_workitem_id_x()] = 1.0f;
}
"""


@dataclass(frozen=True)
class Clang:
    """A compiler that was seen to make a gfx942 code object.

    Attributes:
        command: What starts it.
        version: First line of its ``--version``.
        zig: Path of the ``zig`` that it is a part of, or None.
    """

    command: tuple[str, ...]
    version: str
    zig: str | None = None


def find_clang(asked: str | None = None) -> Clang:
    """Return the first clang on this machine that makes gfx942 code objects.

    Args:
        asked: Path or name of the only one to try.

    Raises:
        UserError: There is none; what each candidate said is in the message.
    """
    candidates = [Clang((asked,), "")] if asked else _candidates()
    said = []
    for candidate in candidates:
        try:
            found = Clang(candidate.command, _version(candidate), candidate.zig)
            code = compile_text(found, _PROBE, "probe")
            code_objects.read(code, "probe").kernel("probe")
        except OSError as error:
            said.append(f"{' '.join(candidate.command)}: {error.strerror}")
        except UserError as error:
            said.append(f"{' '.join(candidate.command)}: {error.found.splitlines()[0]}")
        else:
            return found
    raise UserError(
        "building the gfx942 kernels",
        found="; ".join(said) or f"none of {', '.join(_NAMES)}, {_ROCM[0]}, ziglang",
        allowed="a clang with the AMDGPU target and its lld: clang-19 with lld-19, amdclang++, "
        "or `pip install ziglang`",
        do="install one, or set SGLANG_MI300A_NO_KERNELS=1 for a package without kernels",
    )


def compile_file(clang: Clang, source: Path) -> bytes:
    """Return the code object of a HIP source and what it includes.

    Args:
        clang: The compiler.
        source: The file. ``#include "..."`` looks in its folder, then in the one above.

    Raises:
        UserError: The compiler refused; its message is carried. Warnings go to stderr.
    """
    return _compile(clang, [str(source), "-I", str(source.parent.parent)], source.name)


def compile_text(clang: Clang, text: str, where: str) -> bytes:
    """Return the code object of a HIP source text, ``where`` in errors; as :func:`compile_file`."""
    return _compile(clang, ["-"], where, text)


def _compile(clang: Clang, source: list[str], where: str, text: str | None = None) -> bytes:
    with tempfile.TemporaryDirectory(prefix="sglang-mi300a-") as folder:
        out = Path(folder) / "out.co"
        done = subprocess.run(
            [*clang.command, *FLAGS, *_linker(clang, Path(folder)), *source, "-o", str(out)],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        if done.returncode != 0 or not out.is_file():
            raise UserError(
                f"compiling {where}",
                found=done.stderr.strip() or f"exit code {done.returncode}",
                allowed="HIP sources that use compiler builtins only",
                do=f"correct them; compiler: {clang.version or clang.command[0]}",
            )
        sys.stderr.write(done.stderr)
        return out.read_bytes()


def room_source(csrc: Path, room: str) -> Path:
    """Return the source of a room's code object, ``csrc/<room>/<room>.hip``.

    It includes the room's other ``.hip`` files: a code object has one metadata note, and so is
    compiled as one text.

    Raises:
        UserError: It is missing, or leaves one of them out.
    """
    source = csrc / room / f"{room}.hip"
    others = sorted(path.name for path in source.parent.glob("*.hip") if path != source)
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    left_out = [name for name in others if f'#include "{name}"' not in text]
    if left_out or not source.is_file():
        raise UserError(
            f"kernels of room {room}",
            found=f"{source.name} does not include {', '.join(left_out)}",
            allowed=f"csrc/{room}/{source.name} with an #include for each other .hip file there",
            do="add the lines, or remove the files",
        )
    return source


def build_room(csrc: Path, room: str, out: Path, clang: Clang) -> code_objects.CodeObject:
    """Compile a room's kernels into ``<room>.gfx942.co`` and its record; return the code object.

    Args:
        csrc: Folder of all sources.
        room: Folder in it.
        out: Folder to write to; a reader never sees half a file, nor a record without its object.

    Raises:
        UserError: As :func:`room_source` and :func:`compile_file`.
    """
    sources = code_objects.sources_of(csrc, room)
    digest = code_objects.sources_digest(csrc, sources)
    image = compile_file(clang, room_source(csrc, room))
    path = out / f"{room}.{code_objects.ARCH}.co"
    code = code_objects.read(image, str(path))
    record = code_objects.BuildRecord(
        arch=code_objects.ARCH,
        compiler=clang.version,
        flags=FLAGS,
        sources=tuple(path.relative_to(csrc).as_posix() for path in sources),
        sources_sha256=digest,
        code_sha256=code.digest,
    )
    path.with_suffix(".json").unlink(missing_ok=True)
    replace(path, image)
    replace(path.with_suffix(".json"), record.to_json().encode())
    return code


def is_fresh(csrc: Path, room: str, out: Path, clang: Clang) -> bool:
    """Return whether a folder holds this room's object of these sources, flags and compiler."""
    try:
        _, record = code_objects.load_from(out, room)
    except UserError:
        return False
    now = code_objects.sources_digest(csrc, code_objects.sources_of(csrc, room))
    made = (record.sources_sha256, record.compiler, record.flags)
    return made == (now, clang.version, FLAGS)


def replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
        new = Path(file.name)
        try:
            file.write(data)
        except BaseException:
            new.unlink()
            raise
    new.chmod(0o644)
    new.replace(path)


def _candidates() -> Iterator[Clang]:
    for name in _NAMES:
        if found := shutil.which(name):
            yield Clang((found,), "")
    for name in _existing(_ROCM):
        yield Clang((name,), "")
    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for zig in _existing([f"{folder}/zig"]):
            yield Clang((zig, "clang"), "", zig)


def _existing(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if Path(path).is_file()]


def _version(clang: Clang) -> str:
    done = subprocess.run(
        [*clang.command, "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode != 0 or "clang" not in done.stdout:
        raise UserError(
            clang.command[0],
            found=(done.stderr or done.stdout).strip() or f"exit code {done.returncode}",
            allowed="a clang",
            do="name another compiler",
        )
    return done.stdout.splitlines()[0]


def _linker(clang: Clang, folder: Path) -> list[str]:
    """Return the flags that make clang find a linker: zig's is a part of zig, not a program."""
    if clang.zig is None:
        return []
    lld = folder / "lld"
    # clang calls `lld -flavor gnu ARGUMENTS`.
    lld.write_text(f'#!/bin/sh\nshift 2\nexec "{clang.zig}" ld.lld "$@"\n')
    lld.chmod(0o755)
    return [f"-B{folder}"]
