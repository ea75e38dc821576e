"""The launches of one expert layer: which kernels, which grids, which arguments, which buffers.

    sort_pairs -> gate_up -> down -> sum_slots

All sizes follow from shapes that the host knows, so the same launches can be recorded in a graph
and replayed with other ids. Buffers are named here and found by the caller.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_mi300a.moe.kernels import catalogue, work_split
from sglang_mi300a.moe.kernels.catalogue import MatrixKernel, WeightFormat

BF16_BYTES = 2
UNIT_BYTES = 16
_MOST_UINT32 = 2**32 - 1


@dataclass(frozen=True)
class Pointer:
    """The address of a named buffer; ``None`` is null."""

    buffer: str | None


@dataclass(frozen=True)
class Uint32:
    """An unsigned 32-bit number."""

    value: int


@dataclass(frozen=True)
class Float32:
    """A 32-bit float."""

    value: float


Argument = Pointer | Uint32 | Float32


@dataclass(frozen=True)
class Step:
    """One launch.

    Attributes:
        kernel: Name in the code object.
        grid: Workgroups in x and y.
        threads: Of a workgroup, in x.
        arguments: In the kernel's order.
    """

    kernel: str
    grid: tuple[int, int]
    threads: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Layer:
    """One expert layer's sizes on one rank, for a fixed number of tokens.

    Attributes:
        num_tokens: Rows of the activations, padding included.
        top_k: Experts of a token.
        num_experts: Local experts.
        hidden: Hidden size.
        inner: Neurons of an expert on this rank.
        weights: Format of the streams.
        token_tile: 16 or 32.
        num_cus: Compute units that a launch may fill.
        num_global_ids: Entries of the expert map; 0 = ids are local ones.
    """

    num_tokens: int
    top_k: int
    num_experts: int
    hidden: int
    inner: int
    weights: WeightFormat
    token_tile: int
    num_cus: int
    num_global_ids: int = 0

    @property
    def num_pairs(self) -> int:
        """(token, slot) pairs, and so sorted rows at most."""
        return self.num_tokens * self.top_k

    @property
    def most_units(self) -> int:
        """Work units at most."""
        return work_split.most_units(self.num_pairs, self.num_experts, self.token_tile)

    @property
    def activation_factor(self) -> float:
        """What activations are multiplied by before the kernels read them."""
        return catalogue.ACTIVATION_FACTORS[self.weights]

    @property
    def scales_activations(self) -> bool:
        """Whether the activations are copied, multiplied."""
        return self.activation_factor != 1.0

    def kernel(self, op: str) -> MatrixKernel:
        """Return the variant of an operation."""
        return catalogue.matrix_kernel(op, self.weights, self.token_tile, self.inner)

    def stream_bytes(self, op: str) -> int:
        """Return the bytes of all local experts' streams of one projection."""
        rows, k = (2 * self.inner, self.hidden) if op == "gate_up" else (self.hidden, self.inner)
        numerator = 64 if self.weights == "bf16" else 17
        return self.num_experts * rows * k * numerator // 32


# Names of the buffers. The caller's:
HIDDEN_STATES = "hidden_states"  # bf16 [num_tokens, hidden]
TOPK_IDS = "topk_ids"  # int32 [num_tokens, top_k]
TOPK_WEIGHTS = "topk_weights"  # float32 [num_tokens, top_k]
EXPERT_MAP = "expert_map"  # int32 [num_global_ids]
W13_STREAM = "w13_stream"
W2_STREAM = "w2_stream"
OUT = "out"  # bf16 [num_tokens, hidden]
# Scratch, of which nothing outlives the layer:
WORK = "work"
TOKENS = "tokens"
PAIR_ROWS = "pair_rows"
SCALED = "scaled"
INNER = "inner"
ROWS = "rows"


def scratch_bytes(layer: Layer) -> dict[str, int]:
    """Return the sizes of the buffers that the launches write besides the result, by name."""
    sizes = {
        WORK: (1 + layer.most_units + work_split.SPARE_UNITS) * UNIT_BYTES,
        TOKENS: layer.num_pairs * 4,
        PAIR_ROWS: layer.num_pairs * 4,
        INNER: layer.num_pairs * layer.inner * BF16_BYTES,
        ROWS: layer.num_pairs * layer.hidden * BF16_BYTES,
    }
    if layer.scales_activations:
        sizes[SCALED] = layer.num_tokens * layer.hidden * BF16_BYTES
    return sizes


def steps(layer: Layer) -> tuple[Step, ...]:
    """Return the launches of one expert layer, in order.

    Raises:
        ValueError: A size has no kernel, or is beyond what its 32-bit arithmetic holds.
    """
    check(layer)
    return (_sort_pairs(layer), _gate_up(layer), _down(layer), _sum_slots(layer))


def check(layer: Layer) -> None:
    """Check that the kernels can take a layer.

    Raises:
        ValueError: They cannot; the message says which size and what is allowed.
    """
    _at_most("pairs (tokens * top_k)", layer.num_pairs, work_split.MAX_PAIRS - 1)
    _at_most("local experts", layer.num_experts, work_split.MAX_EXPERTS)
    if layer.num_tokens < 1:
        raise ValueError("no tokens: nothing to launch")
    if layer.hidden != 8 * 512:
        raise ValueError(f"hidden size {layer.hidden}; the kernels take {8 * 512}")
    for op in ("gate_up", "down"):
        _at_most(f"bytes of the {op} streams", layer.stream_bytes(op), _MOST_UINT32)
        kernel = layer.kernel(op)
        num_work = layer.most_units << _log2_items(layer, kernel)
        _at_most(f"{op} workers * items", _workers(layer, kernel) * num_work, _MOST_UINT32)
    _at_most("bytes of all result rows", scratch_bytes(layer)[ROWS], _MOST_UINT32)


def packed(step: Step, addresses: Mapping[str, int]) -> bytes:
    """Return the argument block of a launch.

    Args:
        step: The launch.
        addresses: Device address of each buffer it names.
    """
    block = bytearray()
    for argument in step.arguments:
        if isinstance(argument, Pointer):
            block += bytes(-len(block) % 8)
            block += struct.pack("<Q", addresses[argument.buffer] if argument.buffer else 0)
        elif isinstance(argument, Uint32):
            block += struct.pack("<I", argument.value)
        else:
            block += struct.pack("<f", argument.value)
    return bytes(block)


def _at_most(what: str, value: int, most: int) -> None:
    if value > most:
        raise ValueError(f"{value} {what}; the kernels take up to {most}")


def _log2_items(layer: Layer, kernel: MatrixKernel) -> int:
    rows = 2 * layer.inner if kernel.op == "gate_up" else layer.hidden
    items, rest = divmod(rows, kernel.item_rows)
    if rest or items & (items - 1) or items == 0:
        raise ValueError(
            f"{kernel.name}: {rows} rows; the kernel takes {kernel.item_rows} times a power of two"
        )
    return items.bit_length() - 1


def _workgroups(layer: Layer, kernel: MatrixKernel) -> int:
    """Return as many workgroups as fit at once, or as can have work."""
    most_work = layer.most_units << _log2_items(layer, kernel)
    resident = layer.num_cus * kernel.workgroups_per_cu
    return min(resident, -(-most_work // kernel.workers))


def _workers(layer: Layer, kernel: MatrixKernel) -> int:
    return _workgroups(layer, kernel) * kernel.workers


def _sort_pairs(layer: Layer) -> Step:
    num_activations = layer.num_tokens * layer.hidden if layer.scales_activations else 0
    by_workgroup = catalogue.SORT_THREADS * 8
    return Step(
        catalogue.SORT_PAIRS,
        (1 + -(-num_activations // by_workgroup), 1),
        catalogue.SORT_THREADS,
        (
            Pointer(TOPK_IDS),
            Uint32(layer.num_pairs),
            Uint32(layer.top_k),
            Pointer(EXPERT_MAP if layer.num_global_ids else None),
            Uint32(layer.num_global_ids),
            Uint32(layer.num_experts),
            Uint32(layer.token_tile.bit_length() - 1),
            Pointer(WORK),
            Pointer(TOKENS),
            Pointer(PAIR_ROWS),
            Pointer(HIDDEN_STATES),
            Pointer(SCALED if layer.scales_activations else None),
            Uint32(num_activations),
            Float32(layer.activation_factor),
        ),
    )


def _gate_up(layer: Layer) -> Step:
    kernel = layer.kernel("gate_up")
    activations = SCALED if layer.scales_activations else HIDDEN_STATES
    return Step(
        kernel.name,
        (_workgroups(layer, kernel), 1),
        kernel.threads,
        (
            Pointer(W13_STREAM),
            Uint32(layer.stream_bytes("gate_up")),
            Pointer(activations),
            Uint32(layer.num_tokens * layer.hidden * BF16_BYTES),
            Pointer(TOKENS),
            Uint32(layer.num_pairs * 4),
            Pointer(WORK),
            Pointer(INNER),
            Uint32(_log2_items(layer, kernel)),
            Uint32(_workers(layer, kernel)),
        ),
    )


def _down(layer: Layer) -> Step:
    kernel = layer.kernel("down")
    return Step(
        kernel.name,
        (_workgroups(layer, kernel), 1),
        kernel.threads,
        (
            Pointer(W2_STREAM),
            Uint32(layer.stream_bytes("down")),
            Pointer(INNER),
            Pointer(WORK),
            Pointer(ROWS),
            Uint32(_log2_items(layer, kernel)),
            Uint32(_workers(layer, kernel)),
        ),
    )


def _sum_slots(layer: Layer) -> Step:
    by_workgroup = catalogue.SUM_THREADS * 8
    return Step(
        catalogue.SUM_SLOTS,
        (-(-layer.hidden // by_workgroup), layer.num_tokens),
        catalogue.SUM_THREADS,
        (
            Pointer(ROWS),
            Uint32(scratch_bytes(layer)[ROWS]),
            Pointer(PAIR_ROWS),
            Pointer(TOPK_WEIGHTS),
            Uint32(layer.top_k),
            Pointer(OUT),
            Uint32(layer.hidden),
        ),
    )
