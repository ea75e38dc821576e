"""The kernels of the room's code object, a row each.

The code object has exactly these, with these sizes; the tests compare.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_mi300a import code_objects

ROOM = "gemm"
LANES = 64
ROW_TILE = 16
STEP_BYTES = 64
"""Bytes of a row that one load of all lanes takes."""

MAX_TOKENS = 256
"""Of one launch that the tables choose; the kernels take any number."""


@dataclass(frozen=True)
class SkinnyKernel:
    """One variant of the skinny product.

    Attributes:
        tokens: Of a unit.
        rows: Weight rows of an item.
        waves: Of a workgroup; they share K.
        ring: Steps along K that a wave has under way.
        registers: Vector registers, at most, so that ``workgroups_per_cu`` fit.
        lds_bytes: Exactly.
        workgroups_per_cu: That a compute unit holds at once.
    """

    tokens: int
    rows: int
    waves: int
    ring: int
    registers: int
    lds_bytes: int
    workgroups_per_cu: int

    @property
    def name(self) -> str:
        """In the code object."""
        return f"gemm_skinny_{self.tokens}x{self.rows}_w{self.waves}"

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.waves * LANES

    @property
    def k_multiple(self) -> int:
        """What K must be a multiple of: each wave takes whole rounds of its ring."""
        return self.waves * self.ring * STEP_BYTES // 2

    @property
    def weight_bytes_under_way(self) -> int:
        """Weight bytes on their way to a compute unit whenever a wave waits for a step."""
        a_step = self.rows * STEP_BYTES
        return self.workgroups_per_cu * self.waves * (self.ring - 1) * a_step

    def takes(self, n: int, k: int) -> bool:
        """Return whether it computes products with weights ``[n, k]``."""
        return n > 0 and k > 0 and n % self.rows == 0 and k % self.k_multiple == 0


KERNELS = (
    # Tokens, rows, waves, ring; registers, LDS, workgroups a compute unit.
    SkinnyKernel(16, 16, 16, 8, 128, 16384, 1),
    SkinnyKernel(64, 16, 16, 4, 128, 32768, 1),
    SkinnyKernel(16, 16, 8, 8, 80, 8192, 3),
    SkinnyKernel(32, 16, 8, 4, 64, 16384, 4),
    SkinnyKernel(48, 16, 8, 4, 84, 24576, 2),
    SkinnyKernel(64, 16, 8, 4, 104, 32768, 2),
    SkinnyKernel(64, 32, 8, 4, 168, 32768, 1),
    SkinnyKernel(96, 32, 8, 4, 256, 32768, 1),
    SkinnyKernel(128, 32, 8, 4, 256, 32768, 1),
    SkinnyKernel(16, 16, 2, 4, 64, 2048, 16),
    SkinnyKernel(64, 16, 2, 4, 128, 8192, 8),
    SkinnyKernel(128, 32, 2, 4, 256, 8192, 4),
)


def named(name: str) -> SkinnyKernel:
    """Return a variant by its name in the code object.

    Raises:
        KeyError: There is none.
    """
    return {kernel.name: kernel for kernel in KERNELS}[name]


def that_take(n: int, k: int) -> tuple[SkinnyKernel, ...]:
    """Return the variants that compute products with weights ``[n, k]``; maybe none."""
    return tuple(kernel for kernel in KERNELS if kernel.takes(n, k))


def build() -> str:
    """Return what names the build of the code object: times of another build mean nothing to it.

    Raises:
        UserError: It is missing, or older than its sources.
    """
    return code_objects.load(ROOM).digest[:16]
