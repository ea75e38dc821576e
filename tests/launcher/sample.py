"""Small kernels of these tests (programs/sample): compiled, declared, and what they compute."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_mi300a import code_objects
from sglang_mi300a.launcher import toolchain
from sglang_mi300a.launcher.signature import Buffer, Scalar, Signature
from tests.gfx942 import toolchain as products

if TYPE_CHECKING:
    import torch

CSRC = Path(__file__).parent / "programs"
ROOM = "sample"
THREADS = 256

SCALE_ROWS = Signature(
    kernel="scale_rows",
    arguments=(
        Buffer("x", "float32", ("rows", "columns")),
        Buffer("row_scale", "float32", ("rows",)),
        Buffer("out", "float32", ("rows", "columns"), written=True),
        Scalar("factor", "f32"),
        Scalar("rows", "i32"),
        Scalar("columns", "i32"),
    ),
    threads=THREADS,
)
ADD_TABLE = Signature(
    kernel="add_table",
    arguments=(
        Buffer("x", "float32", ("count",)),
        Buffer("table", "float32", ("table_size",), workspace=True),
        Buffer("out", "float32", ("count",), written=True),
        Scalar("count", "u32"),
        Scalar("table_size", "u32"),
    ),
    threads=THREADS,
)
MIXED_WIDTHS = Signature(
    kernel="mixed_widths",
    arguments=(
        Buffer("out", "int32", (6,), written=True),
        Scalar("small", "i32"),
        Scalar("wide", "u64"),
        Scalar("real", "f64"),
        Buffer("optional", "float32", (None,), optional=True),
    ),
    threads=64,
)


@cache
def image() -> bytes:
    """Return the code object of the sample kernels."""
    sources = code_objects.sources_of(CSRC, ROOM)
    clang = toolchain.find_clang()
    key = [clang.version, *toolchain.FLAGS, *(path.read_bytes() for path in sources)]

    def make(path: Path) -> None:
        path.write_bytes(toolchain.compile_file(clang, CSRC / ROOM / "sample.hip"))

    return products.kept(".co", ["sample", *key], make).read_bytes()


@cache
def code() -> code_objects.CodeObject:
    """Return the sample kernels, read."""
    return code_objects.read(image(), "sample kernels")


def workgroups(num_elements: int) -> tuple[int]:
    """Return the grid for one thread an element."""
    return (-(-num_elements // THREADS),)


def scaled_rows(x: torch.Tensor, row_scale: torch.Tensor, factor: float) -> torch.Tensor:
    """Return what ``scale_rows`` computes, bit for bit: two roundings in the same order."""
    return x * row_scale[:, None] * x.new_tensor(factor)


def table_added(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return what ``add_table`` computes, bit for bit."""
    return x + table.repeat(-(-len(x) // len(table)))[: len(x)]
