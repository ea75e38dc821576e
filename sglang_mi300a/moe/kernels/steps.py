"""The launches of one expert layer: which kernels, which grids, which arguments, which buffers.

    sort_pairs -> gate_up -> down -> sum_slots

All sizes follow from shapes that the host knows, so the same launches can be recorded in a graph
and replayed with other ids. Buffers are named here and found by the caller.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sglang_mi300a.moe.kernels import catalogue, work_split
from sglang_mi300a.moe.kernels.catalogue import MatrixKernel, WeightFormat
from sglang_mi300a.stream_layout import HIDDEN, RECORD_BYTES

BF16_BYTES = 2
UNIT_BYTES = 16
_VALUES_BY_LANE = 8
_RESTRIPE_PER_CU = 8
_ACTIVATIONS_BY_WORKGROUP = catalogue.SORT_THREADS * _VALUES_BY_LANE
_MOST_UINT32 = 2**32 - 1

MOST_PAIRS = work_split.MAX_PAIRS - 1
"""(token, slot) pairs of one launch, at most."""

_BF16_32NDS = 64
_MXFP4_32NDS = 17
"""Stream bytes a weight, in 32nds."""


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
        shared_expert: Whether a bf16 expert of as many neurons takes every token too.
        gate_up_groups: Workgroups a compute unit in the first stage, and
        down_groups: in the second, at most; 0 = as many as it holds.
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
    shared_expert: bool = False
    gate_up_groups: int = 0
    down_groups: int = 0

    @property
    def num_pairs(self) -> int:
        """(token, slot) pairs."""
        return self.num_tokens * self.top_k

    @property
    def most_rows(self) -> int:
        """Rows of all experts, at most; the shared expert's stand behind."""
        return self.num_pairs + (self.num_tokens if self.shared_expert else 0)

    @property
    def shared_units(self) -> int:
        """Work units of the shared expert."""
        return -(-self.num_tokens // self.token_tile) if self.shared_expert else 0

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
        numerator = _BF16_32NDS if self.weights == "bf16" else _MXFP4_32NDS
        return self.num_experts * self._expert_values(op) * numerator // 32

    def shared_stream_bytes(self, op: str) -> int:
        """Return the bytes of the shared expert's stream of one projection."""
        return self._expert_values(op) * _BF16_32NDS // 32 if self.shared_expert else 0

    def _expert_values(self, op: str) -> int:
        rows = 2 * self.inner if op == "gate_up" else self.inner
        return rows * self.hidden


# Names of the buffers. The caller's:
HIDDEN_STATES = "hidden_states"  # bf16 [num_tokens, hidden]
TOPK_IDS = "topk_ids"  # int32 [num_tokens, top_k]
TOPK_WEIGHTS = "topk_weights"  # float32 [num_tokens, top_k]
EXPERT_MAP = "expert_map"  # int32 [num_global_ids]
W13_STREAM = "w13_stream"
W2_STREAM = "w2_stream"
SHARED_W13_STREAM = "shared_w13_stream"
SHARED_W2_STREAM = "shared_w2_stream"
SHARED_GATE = "shared_gate"  # bf16 [hidden]
OUT = "out"  # bf16 [num_tokens, hidden]
# Scratch, of which nothing outlives the layer:
WORK = "work"
TOKENS = "tokens"
PAIR_ROWS = "pair_rows"
SCALED = "scaled"
INNER = "inner"
ROWS = "rows"
SHARED_WORK = "shared_work"
SHARED_WEIGHTS = "shared_weights"
# Of the probe at start-up:
PROBE_STREAM = "probe_stream"  # probe.stream
PROBE_VALUES = "probe_values"  # float32, as probe.values


def scratch_bytes(layer: Layer) -> dict[str, int]:
    """Return the sizes of the buffers that the launches write besides the result, by name."""
    sizes = {
        WORK: _work_bytes(layer.most_units),
        TOKENS: layer.most_rows * 4,
        PAIR_ROWS: layer.num_pairs * 4,
        INNER: layer.most_rows * layer.inner * BF16_BYTES,
        ROWS: layer.most_rows * layer.hidden * BF16_BYTES,
    }
    if layer.scales_activations:
        sizes[SCALED] = layer.num_tokens * layer.hidden * BF16_BYTES
    if layer.shared_expert:
        sizes[SHARED_WORK] = _work_bytes(layer.shared_units)
        sizes[SHARED_WEIGHTS] = layer.num_tokens * 4
    return sizes


def _work_bytes(num_units: int) -> int:
    return (1 + num_units + work_split.SPARE_UNITS) * UNIT_BYTES


def steps(layer: Layer) -> tuple[Step, ...]:
    """Return the launches of one expert layer, in order.

    Raises:
        ValueError: A size has no kernel, or is beyond what its 32-bit arithmetic holds.
    """
    check(layer)
    return (sort_pairs(layer), gate_up(layer), down(layer), sum_slots(layer))


def check(layer: Layer) -> None:
    """Check that the kernels can take a layer.

    Raises:
        ValueError: They cannot; the message says which size and what is allowed.
    """
    _at_most("pairs (tokens * top_k)", layer.num_pairs, MOST_PAIRS)
    _at_most("local experts", layer.num_experts, work_split.MAX_EXPERTS)
    if layer.num_tokens < 1:
        raise ValueError("no tokens: nothing to launch")
    if layer.hidden != HIDDEN:
        raise ValueError(f"hidden size {layer.hidden}; the kernels take {HIDDEN}")
    for op in ("gate_up", "down"):
        _at_most(f"bytes of the {op} streams", layer.stream_bytes(op), _MOST_UINT32)
        kernel = layer.kernel(op)
        crew = _crew(layer, kernel)
        most = max(layer.most_units, layer.shared_units) << _log2_items(layer, kernel)
        _at_most(f"{op} workers * items", max(crew.routed, crew.shared) * most, _MOST_UINT32)
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


class _Crew(NamedTuple):
    """Workers of a launch: of the routed experts, then of the shared one; and its workgroups."""

    routed: int
    shared: int
    workgroups: int


def _crew(layer: Layer, kernel: MatrixKernel) -> _Crew:
    """Return as many workers as fit at once, or as can have work.

    The shared expert gets workgroups by its part of the bytes.
    """
    asked = layer.gate_up_groups if kernel.op == "gate_up" else layer.down_groups
    resident = layer.num_cus * min(asked or kernel.workgroups_per_cu, kernel.workgroups_per_cu)
    log2_items = _log2_items(layer, kernel)

    def groups_with_work(units: int) -> int:
        return -(-(units << log2_items) // kernel.workers)

    shared = 0
    if layer.shared_expert:
        routed_cost = layer.most_units * layer.stream_bytes(kernel.op) / layer.num_experts
        shared_cost = layer.shared_units * layer.shared_stream_bytes(kernel.op)
        part = round(resident * shared_cost / (shared_cost + routed_cost))
        shared = min(max(part, 1), resident - 1, groups_with_work(layer.shared_units))
    routed = min(resident - shared, groups_with_work(layer.most_units))
    return _Crew(routed * kernel.workers, shared * kernel.workers, routed + shared)


def _if_shared(layer: Layer, buffer: str) -> Pointer:
    return Pointer(buffer if layer.shared_expert else None)


def sort_pairs(layer: Layer) -> Step:
    """Return the launch that sorts, scales, and weighs the shared expert."""
    visits_activations = layer.scales_activations or layer.shared_expert
    visitors = -(-layer.num_tokens * HIDDEN // _ACTIVATIONS_BY_WORKGROUP)
    return Step(
        catalogue.SORT_PAIRS,
        (1 + (visitors if visits_activations else 0), 1),
        catalogue.SORT_THREADS,
        (
            Pointer(TOPK_IDS),
            Uint32(layer.num_tokens),
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
            Float32(layer.activation_factor),
            _if_shared(layer, SHARED_WORK),
            _if_shared(layer, SHARED_GATE),
            _if_shared(layer, SHARED_WEIGHTS),
        ),
    )


def gate_up(layer: Layer) -> Step:
    """Return the launch of both first projections and the gate."""
    kernel = layer.kernel("gate_up")
    crew = _crew(layer, kernel)
    return Step(
        kernel.name,
        (crew.workgroups, 1),
        kernel.threads,
        (
            Pointer(W13_STREAM),
            Uint32(layer.stream_bytes("gate_up")),
            Pointer(SCALED if layer.scales_activations else HIDDEN_STATES),
            Uint32(layer.num_tokens * HIDDEN * BF16_BYTES),
            Pointer(TOKENS),
            Uint32(layer.most_rows * 4),
            Pointer(WORK),
            Pointer(INNER),
            Uint32(_log2_items(layer, kernel)),
            Uint32(crew.routed),
            _if_shared(layer, SHARED_W13_STREAM),
            Uint32(layer.shared_stream_bytes("gate_up")),
            Pointer(HIDDEN_STATES),
            _if_shared(layer, SHARED_WORK),
            Uint32(crew.shared),
        ),
    )


def down(layer: Layer) -> Step:
    """Return the launch of the last projection."""
    kernel = layer.kernel("down")
    crew = _crew(layer, kernel)
    return Step(
        kernel.name,
        (crew.workgroups, 1),
        kernel.threads,
        (
            Pointer(W2_STREAM),
            Uint32(layer.stream_bytes("down")),
            Pointer(INNER),
            Pointer(WORK),
            Pointer(ROWS),
            Uint32(_log2_items(layer, kernel)),
            Uint32(crew.routed),
            _if_shared(layer, SHARED_W2_STREAM),
            Uint32(layer.shared_stream_bytes("down")),
            _if_shared(layer, SHARED_WORK),
            Uint32(crew.shared),
        ),
    )


def sum_slots(layer: Layer) -> Step:
    """Return the launch that adds up each token's experts."""
    return Step(
        catalogue.SUM_SLOTS,
        (-(-layer.hidden // (catalogue.SUM_THREADS * _VALUES_BY_LANE)), layer.num_tokens),
        catalogue.SUM_THREADS,
        (
            Pointer(ROWS),
            Uint32(scratch_bytes(layer)[ROWS]),
            Pointer(PAIR_ROWS),
            Pointer(TOPK_WEIGHTS),
            Uint32(layer.num_tokens),
            Uint32(layer.top_k),
            _if_shared(layer, SHARED_WEIGHTS),
            Pointer(OUT),
            Uint32(layer.hidden),
        ),
    )


def read_back(weights: WeightFormat, num_records: int) -> Step:
    """Return the launch that reads ``PROBE_STREAM`` back through a decode.

    Args:
        weights: ``subnormals`` or ``bf8``.
        num_records: Of the stream.
    """
    return Step(
        catalogue.DEQUANTISE[weights],
        (num_records, 1),
        catalogue.LANES,
        (
            Pointer(PROBE_STREAM),
            Uint32(num_records * RECORD_BYTES),
            Pointer(PROBE_VALUES),
        ),
    )


def restripe(stream: str, num_bytes: int, num_cus: int) -> Step:
    """Return the launch that rewrites a stream in place for the ``bf8`` decode. Not twice!

    Args:
        stream: Name of its buffer.
        num_bytes: Its size, a multiple of a record's.
        num_cus: Compute units to fill.
    """
    num_records = num_bytes // RECORD_BYTES
    waves = catalogue.RESTRIPE_THREADS // catalogue.LANES
    workgroups = min(num_cus * _RESTRIPE_PER_CU, -(-num_records // waves))
    return Step(
        catalogue.RESTRIPE,
        (workgroups, 1),
        catalogue.RESTRIPE_THREADS,
        (Pointer(stream), Uint32(num_records), Uint32(workgroups * waves)),
    )
