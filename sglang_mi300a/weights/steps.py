"""A plan as a sequence of bounded reads and the copies that follow from each.

Both users of a plan take these steps: the converter for all ranks at once, so that each source byte
is read once; the loader for its own rank. Two kinds of group exist. A dense parameter is walked
source by source in chunks of rows. A stack of experts is walked expert by expert, so that weight
and scales of an expert meet and its layout can be applied. Either way the bytes of every stored
tensor come in ascending order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sglang_mi300a.artifact_manifest import DTYPE_BYTES, size_bytes
from sglang_mi300a.layout import ExpertTensor
from sglang_mi300a.weights.plan import Parameter, Piece, RankPlan, Source, num_columns
from sglang_mi300a.weights.reading import BLOCK_BYTES


class ExpertStorage(Protocol):
    """How experts are kept: a :class:`~sglang_mi300a.layout.Layout`, or a conversion before one."""

    def stored(self, plain: Sequence[ExpertTensor]) -> tuple[ExpertTensor, ...]:
        """Return the tensors that hold what ``plain`` held."""

    def apply(self, plain: Mapping[str, NDArray[np.uint8]]) -> dict[str, NDArray[np.uint8]]:
        """Return the stored bytes of one expert, by name."""


class Rows(NamedTuple):
    """Whole rows of a source tensor: one contiguous read."""

    source: str
    start: int
    stop: int


class Copy(NamedTuple):
    """A block of a read that becomes whole rows of a parameter.

    Attributes:
        rank_index: Index into the ranks that are made together.
        parameter: Which of the group's parameters.
        row_start, row_stop, column_start, column_stop: The block, rows counted from the read's
            first.
        destination_row: Row of the parameter (dense), or of one expert's share of it.
    """

    rank_index: int
    parameter: int
    row_start: int
    row_stop: int
    column_start: int
    column_stop: int
    destination_row: int


class Chunk(NamedTuple):
    """One read of a dense parameter."""

    rows: Rows
    copies: tuple[Copy, ...]


class ExpertStep(NamedTuple):
    """All that one expert slot of a group needs.

    Attributes:
        slot: Expert index on the rank.
        reads: Each with its copies.
        scaled: Indices into ``reads`` of weights and their scales, covering the same rows.
    """

    slot: int
    reads: tuple[Chunk, ...]
    scaled: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in an artifact and in the model: plain, or as its layout stores it.

    Attributes:
        name: Parameter name.
        dtype: Element type.
        shape: Shape on the rank.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return size_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class Group:
    """Parameters that are made together, on every rank that is made together.

    Attributes:
        by_rank: For each rank the group's parameters, in one order.
        stored: What is kept of them; the same on every rank.
    """

    by_rank: tuple[tuple[Parameter, ...], ...]
    stored: tuple[Stored, ...]

    @property
    def is_expert_stack(self) -> bool:
        """Whether it holds experts."""
        return self.by_rank[0][0].num_local_experts > 0

    @property
    def size(self) -> int:
        """Bytes kept on one rank."""
        return sum(tensor.size for tensor in self.stored)


def groups(plans: Sequence[RankPlan], layout: ExpertStorage) -> list[Group]:
    """Return the groups of plans that differ in the rank only."""
    split = [_by_group(plan) for plan in plans]
    result = []
    for name in split[0]:
        by_rank = tuple(tuple(groups_of_rank[name]) for groups_of_rank in split)
        result.append(Group(by_rank, _stored(by_rank[0], layout)))
    return result


def _by_group(plan: RankPlan) -> dict[str, list[Parameter]]:
    result: dict[str, list[Parameter]] = {}
    for parameter in plan.parameters:
        result.setdefault(parameter.group, []).append(parameter)
    return result


def _stored(parameters: tuple[Parameter, ...], layout: ExpertStorage) -> tuple[Stored, ...]:
    first = parameters[0]
    if not first.num_local_experts:
        return tuple(Stored(p.name, p.dtype, p.shape) for p in parameters)
    prefix = first.name.rpartition(".")[0]
    kept = layout.stored([p.expert_tensor for p in parameters])
    return tuple(
        Stored(f"{prefix}.{t.name}", t.dtype, (first.num_local_experts, *t.shape)) for t in kept
    )


def chunks(group: Group, sources: Mapping[str, Source], max_chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the reads of a dense group; no source row is in two of them.

    Args:
        group: Of one parameter.
        sources: Every tensor of the checkpoint.
        max_chunk_bytes: Bound of one read; a single row may exceed it.
    """
    pieces: dict[str, list[tuple[int, Piece]]] = {}
    for rank_index, (parameter,) in enumerate(group.by_rank):
        for piece in parameter.pieces:
            pieces.setdefault(piece.source, []).append((rank_index, piece))
    for name, wanted in pieces.items():
        max_rows = max(1, max_chunk_bytes // _row_bytes(sources[name]))
        for start, stop in _union([(piece.row_start, piece.row_stop) for _, piece in wanted]):
            for at in range(start, stop, max_rows):
                rows = Rows(name, at, min(at + max_rows, stop))
                copies = (_clip(0, rank, piece, rows) for rank, piece in wanted)
                yield Chunk(rows, tuple(copy for copy in copies if copy is not None))


def expert_steps(group: Group) -> Iterator[ExpertStep]:
    """Yield the steps of a stack of experts, by ascending slot."""
    for slot in range(group.by_rank[0][0].num_local_experts):
        wanted: dict[str, list[tuple[int, int, int, Piece]]] = {}
        scales_of: dict[str, str] = {}
        for rank_index, parameters in enumerate(group.by_rank):
            of_slot = [_pieces_of_slot(parameter, slot) for parameter in parameters]
            for index, (parameter, pieces) in enumerate(zip(parameters, of_slot, strict=True)):
                first_row = slot * _rows_per_expert(parameter)
                for piece in pieces:
                    row = (index, rank_index, first_row, piece)
                    wanted.setdefault(piece.source, []).append(row)
            if len(of_slot) == 2:
                scales_of.update((w.source, s.source) for w, s in zip(*of_slot, strict=True))
        reads: list[Chunk] = []
        places: dict[str, range] = {}
        for name, rows_wanted in wanted.items():
            before = len(reads)
            spans = [(piece.row_start, piece.row_stop) for *_, piece in rows_wanted]
            for start, stop in _union(spans):
                rows = Rows(name, start, stop)
                copies = (
                    _clip(index, rank, piece, rows, first_row)
                    for index, rank, first_row, piece in rows_wanted
                )
                reads.append(Chunk(rows, tuple(copy for copy in copies if copy is not None)))
            places[name] = range(before, len(reads))
        scaled = tuple(
            pair
            for weight, scale in scales_of.items()
            for pair in zip(places[weight], places[scale], strict=True)
        )
        yield ExpertStep(slot, tuple(reads), scaled)


def step_bytes(group: Group, sources: Mapping[str, Source]) -> int:
    """Return the room that one step of a stack of experts needs in a read buffer."""
    reads = next(expert_steps(group)).reads
    return sum(
        (chunk.rows.stop - chunk.rows.start) * _row_bytes(sources[chunk.rows.source])
        + 2 * BLOCK_BYTES
        for chunk in reads
    )


def _row_bytes(source: Source) -> int:
    return max(1, num_columns(source.shape) * DTYPE_BYTES[source.dtype])


def _rows_per_expert(parameter: Parameter) -> int:
    return parameter.shape[1]


def _pieces_of_slot(parameter: Parameter, slot: int) -> tuple[Piece, ...]:
    per_slot = len(parameter.pieces) // parameter.num_local_experts
    return parameter.pieces[slot * per_slot : (slot + 1) * per_slot]


def _union(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(set(spans)):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _clip(
    parameter: int, rank_index: int, piece: Piece, rows: Rows, first_row: int = 0
) -> Copy | None:
    start, stop = max(piece.row_start, rows.start), min(piece.row_stop, rows.stop)
    if start >= stop:
        return None
    return Copy(
        rank_index,
        parameter,
        start - rows.start,
        stop - rows.start,
        piece.column_start,
        piece.column_stop,
        piece.destination_row - first_row + start - piece.row_start,
    )
