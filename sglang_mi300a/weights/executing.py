"""Carry out the steps of a plan: read, check scales, cut, lay out, hand to a sink per rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sglang_mi300a import mxfp4
from sglang_mi300a.artifact_manifest import DTYPE_BYTES
from sglang_mi300a.errors import UserError
from sglang_mi300a.weights.checkpoint import Checkpoint
from sglang_mi300a.weights.plan import Source, num_columns
from sglang_mi300a.weights.reading import BLOCK_BYTES, Files
from sglang_mi300a.weights.steps import (
    Chunk,
    ExpertStep,
    ExpertStorage,
    Group,
    Rows,
    chunks,
    expert_steps,
)

Bytes = NDArray[np.uint8]

Seen = Callable[[Rows, Bytes], None]
"""Told of every read: the rows and their bytes, uint8 ``[rows, row bytes]``."""


class Sink(Protocol):
    """Where one rank's tensors go."""

    def start_thread(self) -> None:
        """Be told, in each thread that will write, before it does."""

    def write(self, name: str, offset: int, data: Bytes) -> None:
        """Take the bytes of a stored tensor from ``offset`` on; uint8, flat, C-contiguous.

        Offsets of one tensor ascend; bytes that are never written are zero.
        """


@dataclass
class Executor:
    """Makes groups of parameters out of a checkpoint; one per thread.

    Attributes:
        checkpoint: Where the sources lie.
        sources: Their types and shapes.
        files: Reads them.
        buffer: Room for one step, page-aligned.
        layout: Applied to experts.
        seen: Told of every read.
        neutralised_blocks: All-zero blocks whose scale was rewritten so far.
    """

    checkpoint: Checkpoint
    sources: Mapping[str, Source]
    files: Files
    buffer: Bytes
    layout: ExpertStorage
    seen: Seen | None = None
    neutralised_blocks: int = 0

    def make(self, group: Group, sinks: Sequence[Sink]) -> None:
        """Make one group for all ranks that the sinks stand for.

        Raises:
            UserError: A file cannot be read, or a scale must not be served.
        """
        if group.is_expert_stack:
            for step in expert_steps(group):
                self._expert(group, step, sinks)
            return
        max_chunk_bytes = len(self.buffer) - 2 * BLOCK_BYTES
        for chunk in chunks(group, self.sources, max_chunk_bytes):
            (rows,) = self._load([chunk.rows])
            self._dense(group, chunk, rows, sinks)

    def _dense(self, group: Group, chunk: Chunk, rows: Bytes, sinks: Sequence[Sink]) -> None:
        for copy in chunk.copies:
            (parameter,) = group.by_rank[copy.rank_index]
            item = DTYPE_BYTES[parameter.dtype]
            block = rows[
                copy.row_start : copy.row_stop, copy.column_start * item : copy.column_stop * item
            ]
            sinks[copy.rank_index].write(
                parameter.name,
                copy.destination_row * parameter.row_bytes,
                np.ascontiguousarray(block).reshape(-1),
            )

    def _expert(self, group: Group, step: ExpertStep, sinks: Sequence[Sink]) -> None:
        reads = self._load([chunk.rows for chunk in step.reads])
        for weight, scale in step.scaled:
            at = step.reads[weight].rows
            reads[scale] = self._checked_scales(at, reads[weight], reads[scale])
        plain = [
            [np.empty((p.shape[1], p.row_bytes), dtype=np.uint8) for p in parameters]
            for parameters in group.by_rank
        ]
        for chunk, rows in zip(step.reads, reads, strict=True):
            item = DTYPE_BYTES[self.sources[chunk.rows.source].dtype]
            for copy in chunk.copies:
                target = plain[copy.rank_index][copy.parameter]
                end = copy.destination_row + copy.row_stop - copy.row_start
                target[copy.destination_row : end] = rows[
                    copy.row_start : copy.row_stop,
                    copy.column_start * item : copy.column_stop * item,
                ]
        for parameters, arrays, sink in zip(group.by_rank, plain, sinks, strict=True):
            prefix = parameters[0].name.rpartition(".")[0]
            names = [parameter.expert_tensor.name for parameter in parameters]
            named = dict(zip(names, arrays, strict=True))
            for name, stored in self.layout.apply(named).items():
                sink.write(f"{prefix}.{name}", step.slot * stored.nbytes, stored.reshape(-1))

    def _checked_scales(self, at: Rows, packed: Bytes, scales: Bytes) -> Bytes:
        checked, scan = mxfp4.scan_scales(packed, scales)
        self.neutralised_blocks += scan.neutralised_blocks
        if scan.refused:
            block = at.start * scales.shape[1] + scan.first_bad
            raise UserError(
                f"{self.checkpoint.directory}: {at.source}",
                found=f"{scan.nan_blocks} blocks whose scale is NaN and {scan.inexact_blocks} "
                f"non-zero blocks whose scale cannot be decoded exactly, first block {block} "
                f"with scale byte {int(scales.reshape(-1)[scan.first_bad])}",
                allowed=f"scale bytes {mxfp4.EXACT_SCALE_MIN} to {mxfp4.EXACT_SCALE_MAX}",
                do="fetch the checkpoint again; if it is intact, quantise the model again",
            )
        return checked

    def _load(self, wanted: Sequence[Rows]) -> list[Bytes]:
        """Return the rows, uint8 ``[rows, row bytes]`` each; valid until the next call."""
        ranges = [self._range(rows) for rows in wanted]
        order = sorted(range(len(ranges)), key=lambda i: (str(ranges[i][0]), ranges[i][1]))
        result: list[Bytes] = [self.buffer[:0]] * len(ranges)
        used = 0
        while order:
            path, begin, size = ranges[order[0]]
            members, end = [], begin + size
            while order:
                next_path, offset, length = ranges[order[0]]
                if next_path != path or offset > end:  # ranges that touch are one read
                    break
                end = max(end, offset + length)
                members.append(order.pop(0))
            room = self.buffer[used:]
            self._check_room(wanted[members[0]], end - begin, len(room))
            data = self.files.read(path, begin, end - begin, room)
            used += (end - begin) // BLOCK_BYTES * BLOCK_BYTES + 2 * BLOCK_BYTES
            for i in members:
                _, offset, length = ranges[i]
                rows = wanted[i]
                shape = (rows.stop - rows.start, length // (rows.stop - rows.start))
                result[i] = data[offset - begin : offset - begin + length].reshape(shape)
                if self.seen is not None:
                    self.seen(rows, result[i])
        return result

    def _range(self, rows: Rows) -> tuple[Path, int, int]:
        tensor = self.checkpoint.tensors[rows.source]
        width = num_columns(tensor.shape) * DTYPE_BYTES[tensor.dtype]
        return (
            tensor.file,
            tensor.offset + rows.start * width,
            (rows.stop - rows.start) * width,
        )

    def _check_room(self, rows: Rows, size: int, room: int) -> None:
        if size + 2 * BLOCK_BYTES > room:
            raise UserError(
                "ring_bytes",
                found=f"{len(self.buffer)} bytes for one read",
                allowed=f"{size + 2 * BLOCK_BYTES} more than are left, for {rows.source}",
                do="raise ring_bytes or lower threads",
            )
