"""The compiled interpreter: built when needed, its tables read, and called through ctypes."""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np

from tests.gfx942 import toolchain
from tests.gfx942.decode import Opcode

CORE = Path(__file__).parent / "core"

# -ffp-contract=off: a product and a sum are rounded twice unless the instruction is fused.
FLAGS = "-std=c++20 -O2 -ftree-vectorize -march=native -ffp-contract=off -fPIC".split()

_NUMPY_TYPES = {
    **{f"u{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
}


def _processor() -> str:
    """Return what -march=native depends on."""
    for row in Path("/proc/cpuinfo").read_text().splitlines():
        if row.startswith(("flags", "Features")):
            return row
    return ""


def build() -> Path:
    """Return the shared library of the interpreter, compiled if its sources are new."""
    headers = [path.read_bytes() for path in sorted(CORE.glob("*.h"))]
    shared_key = [toolchain.version("g++"), _processor(), *FLAGS, *headers]

    def compiled(source: Path) -> Path:
        key = [*shared_key, source.read_bytes()]
        command = [toolchain.tool("g++"), *FLAGS, "-c", source, "-o"]
        return toolchain.kept(".o", key, lambda out: toolchain.run([*command, out]))

    sources = sorted(CORE.glob("*.cpp"))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compiled, sources))
    command = [toolchain.tool("g++"), "-shared", *objects, "-o"]
    return toolchain.kept(
        ".so", [path.name for path in objects], lambda out: toolchain.run([*command, out])
    )


class Core:
    """The interpreter as the rest of the package sees it.

    Attributes:
        opcodes: Rows of its table, by mnemonic.
        classes: Names of the classes by which instructions are counted.
        faults: Names of the reasons for stopping; ``fault_kind`` is 1 + the place.
        operand, instruction, launch, allocation, uninitialised: Record types.
    """

    def __init__(self, library: Path) -> None:
        """Load the library and read its tables."""
        self._library = ctypes.CDLL(str(library))
        for name in ("gfx942_opcodes", "gfx942_layouts"):
            getattr(self._library, name).restype = ctypes.c_char_p
        self._library.gfx942_run.argtypes = [ctypes.c_void_p]
        self.opcodes = dict(map(_opcode, self._library.gfx942_opcodes().decode().splitlines()))
        layouts = {}
        for row in self._library.gfx942_layouts().decode().splitlines():
            name, *fields = row.split()
            layouts[name] = fields
        self.classes = layouts.pop("classes")
        self.faults = layouts.pop("faults")
        types: dict[str, np.dtype] = {}
        for name, (*fields, size) in layouts.items():
            types[name] = _record(fields, int(size), types)
        self.operand = types["operand"]
        self.instruction = types["instruction"]
        self.launch = types["launch"]
        self.allocation = types["allocation"]
        self.uninitialised = types["uninitialised"]

    def run(self, launch: np.ndarray) -> bool:
        """Run a launch record (shape [1]); return whether it came to its end."""
        return self._library.gfx942_run(launch.ctypes.data) == 0


def _opcode(row: str) -> tuple[str, Opcode]:
    head, form, issue_class, signature, num_bytes = row.split("\t")
    number, _, name = head.partition(" ")
    return name, Opcode(int(number), name, form, int(issue_class), signature, int(num_bytes))


def _record(fields: list[str], size: int, types: dict[str, np.dtype]) -> np.dtype:
    names, formats, offsets = [], [], []
    for field in fields:
        name, kind, offset = field.split(":")
        names.append(name)
        formats.append(types[kind] if kind in types else _NUMPY_TYPES[kind])
        offsets.append(int(offset))
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


@cache
def core() -> Core:
    """Return the interpreter, built on first use."""
    return Core(build())
