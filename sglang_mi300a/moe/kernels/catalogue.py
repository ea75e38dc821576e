"""The kernels of the room's code object, a row each.

A row holds what a launch must know and what a build is held to. The code object has exactly these
kernels, with these sizes; the tests compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WeightFormat = Literal["subnormals", "bf8", "bf16", "loads_only", "checkpoint"]
"""How weights become operands: two decodes of MXFP4 streams, or bf16 streams.

``subnormals`` is the fast decode and needs a matrix unit that keeps bf16 subnormals; ``bf8`` does
not, and reads streams that ``moe_restripe_for_bf8`` has rewritten in place.

The last two are for timing: ``loads_only`` loads and waits as ``subnormals`` and computes nothing,
``checkpoint`` computes as ``subnormals`` on bytes loaded from where a checkpoint has them.
"""

ACTIVATION_FACTORS: dict[WeightFormat, float] = {
    "subnormals": 2.0**64,
    "bf8": 1.0,
    "bf16": 1.0,
    "loads_only": 2.0**64,
    "checkpoint": 2.0**64,
}
"""What activations and inner values are multiplied by while the kernels have them."""

EXACT_SCALES: dict[WeightFormat, range] = {"subnormals": range(193), "bf8": range(240)}
"""E8M0 bytes under which a decode gives every code exactly. A scale becomes the exponent of a
float32, 62 or 15 above its byte, and 254 is the largest."""

LANES = 64
SIMDS = 4
REGISTERS = 512
"""Vector registers of a SIMD lane, shared by its waves."""

REGISTER_GRANULE = 8
MAX_WAVES = 8
"""Waves that a SIMD can hold."""

LDS_BYTES = 65536
"""Of a compute unit."""


WEIGHT_FORMATS: tuple[WeightFormat, ...] = ("subnormals", "bf8", "bf16")
TIMED_FORMATS: tuple[WeightFormat, ...] = ("loads_only", "checkpoint")


@dataclass(frozen=True)
class MatrixKernel:
    """One variant of ``gate_up`` or ``down``.

    Attributes:
        name: In the code object.
        op: ``gate_up`` or ``down``.
        weights: Format.
        token_tile: Rows of a work unit, at most.
        inner: K of ``down``: neurons of an expert on the rank. 0 where the kernel takes any.
        waves: Of a workgroup.
        workers: How many of these waves are workers of the flat split on their own.
        item_rows: Rows of the projection in one item.
        registers: Vector registers, at most, so that ``workgroups_per_cu`` fit.
        lds_bytes: Exactly.
        workgroups_per_cu: That a compute unit holds at once.
        ring: Records that a wave has under way while it works.
    """

    name: str
    op: Literal["gate_up", "down"]
    weights: WeightFormat
    token_tile: int
    inner: int
    waves: int
    workers: int
    item_rows: int
    registers: int
    lds_bytes: int
    workgroups_per_cu: int
    ring: int

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.waves * LANES

    @property
    def record_bytes(self) -> int:
        """Of the weight stream."""
        return 1024 if self.weights == "bf16" else 1088

    @property
    def bytes_under_way(self) -> int:
        """Weight bytes on their way to a compute unit whenever a wave waits for a record.

        The record waited for is not counted.
        """
        return self.workgroups_per_cu * self.waves * (self.ring - 1) * self.record_bytes


Variants = tuple[MatrixKernel, ...]


def _gate_up(
    tile: int,
    per_cu: int,
    registers: int,
    ring: int,
    bf16_ring: int,
    formats: tuple[WeightFormat, ...] = WEIGHT_FORMATS,
) -> Variants:
    return tuple(
        MatrixKernel(
            name=f"moe_gate_up_{tile}_{weights}",
            op="gate_up",
            weights=weights,
            token_tile=tile,
            inner=0,
            waves=8,
            workers=1,
            item_rows=32,
            registers=registers,
            lds_bytes=2048 * tile,
            workgroups_per_cu=per_cu,
            ring=bf16_ring if weights == "bf16" else ring,
        )
        for weights in formats
    )


def _down(
    inner: int, tile: int, waves: int, per_cu: int, registers: int, ring: int, bf16_ring: int
) -> Variants:
    split = inner > 512  # two waves share K and exchange sums
    return tuple(
        MatrixKernel(
            name=f"moe_down_k{inner}_{tile}_{weights}",
            op="down",
            weights=weights,
            token_tile=tile,
            inner=inner,
            waves=waves,
            workers=1 if split else waves,
            item_rows=64 if inner < 256 else 32,
            registers=registers,
            lds_bytes=512 * tile if split else 0,
            workgroups_per_cu=per_cu,
            ring=bf16_ring if weights == "bf16" else ring,
        )
        for weights in WEIGHT_FORMATS
    )


MATRIX_KERNELS: Variants = (
    # Tokens; workgroups a compute unit, registers; ring for MXFP4 and for bf16.
    *_gate_up(16, 2, 128, 4, 4),
    *_gate_up(32, 1, 256, 8, 8),
    # K, tokens, waves; workgroups a compute unit, registers; ring for MXFP4 and for bf16.
    *_down(128, 16, 8, 2, 128, 4, 8),
    *_down(128, 32, 4, 3, 168, 4, 8),
    *_down(256, 16, 8, 2, 128, 4, 8),
    *_down(256, 32, 4, 3, 168, 4, 8),
    *_down(512, 16, 8, 2, 128, 4, 4),
    *_down(512, 32, 4, 2, 256, 8, 16),
    *_down(1024, 16, 2, 8, 128, 4, 4),
    *_down(1024, 32, 2, 4, 256, 8, 16),
)

TIMED_KERNELS: Variants = (
    *_gate_up(16, 2, 128, 4, 4, TIMED_FORMATS),
    *_gate_up(32, 1, 256, 8, 8, TIMED_FORMATS),
)
"""The first stage, to time its parts: results mean nothing. ``checkpoint`` is for 512 experts of
256 neurons."""

SORT_PAIRS = "moe_sort_pairs"
SORT_THREADS = 1024
SUM_SLOTS = "moe_sum_slots"
SUM_THREADS = 256
RESTRIPE = "moe_restripe_for_bf8"
RESTRIPE_THREADS = 256
DEQUANTISE: dict[WeightFormat, str] = {
    "subnormals": "moe_dequantise_subnormals",
    "bf8": "moe_dequantise_bf8",
}
"""Reads a stream back through a decode: the probe at start-up."""

OTHER_KERNELS = (SORT_PAIRS, SUM_SLOTS, RESTRIPE, *DEQUANTISE.values())


def matrix_kernel(op: str, weights: WeightFormat, token_tile: int, inner: int) -> MatrixKernel:
    """Return the variant for a problem.

    Raises:
        ValueError: There is none; the message lists the sizes that have one.
    """
    all_kernels = (*MATRIX_KERNELS, *TIMED_KERNELS)
    of_kind = [k for k in all_kernels if (k.op, k.weights) == (op, weights)]
    for kernel in of_kind:
        if kernel.token_tile == token_tile and kernel.inner in (0, inner):
            return kernel
    sizes = sorted({(k.token_tile, k.inner) for k in of_kind})
    raise ValueError(
        f"no {op} kernel for {weights} weights, a tile of {token_tile} tokens and {inner} neurons; "
        f"there are (tile, neurons) {sizes}, 0 = any"
    )
