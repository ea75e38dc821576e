"""Fill one rank's parameters from an artifact, or from a checkpoint by a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from sglang_mi300a.artifact_manifest import TensorFacts
from sglang_mi300a.weights.artifact import Artifact, wrong_checksum
from sglang_mi300a.weights.checkpoint import Checkpoint
from sglang_mi300a.weights.executing import Executor, Sink
from sglang_mi300a.weights.loader_options import LoaderOptions
from sglang_mi300a.weights.peak_memory import PeakMemory
from sglang_mi300a.weights.plan import RankPlan
from sglang_mi300a.weights.reading import Files, ReadCounts, Ring
from sglang_mi300a.weights.steps import ExpertStorage, Group, groups, step_bytes
from sglang_mi300a.weights.tensor_blocks import Block, BlockChecksums, blocks

_T = TypeVar("_T")
Bytes = NDArray[np.uint8]

_PIECE_BYTES = 2 << 20
"""What is copied and then summed at once: small enough to be still in a core's cache."""


class LoadSink(Sink, Protocol):
    """Where a rank's tensors are loaded to.

    Parts of one tensor may be written in any order, by several threads at once.
    """

    @property
    def is_straight(self) -> bool:
        """Whether :meth:`destination` may name memory to read into."""

    def destination(self, name: str) -> Bytes | None:
        """Return a tensor's own memory, uint8, or None if its bytes have to be written."""

    def pinned(self, buffers: Sequence[Bytes]) -> AbstractContextManager[None]:
        """Be shown the buffers that :meth:`write` will be given parts of."""


@dataclass(frozen=True)
class LoadReport:
    """What a load read.

    Attributes:
        origin: Where the bytes came from.
        seconds: Wall time of reading and copying.
        num_bytes: Bytes read.
        num_verified_bytes: Bytes that were checked against a checksum.
        num_direct_files: Files read past the page cache.
        num_buffered_files: Files read through it.
        peak_extra_bytes: Resident memory beyond what was there before and what stays.
        is_straight: Whether files were read straight into the parameters.
        neutralised_blocks: All-zero MXFP4 blocks whose scale was rewritten (checkpoint only).
    """

    origin: Literal["artifact", "checkpoint"]
    seconds: float
    num_bytes: int
    num_verified_bytes: int
    num_direct_files: int
    num_buffered_files: int
    peak_extra_bytes: int
    is_straight: bool = False
    neutralised_blocks: int = 0

    def in_words(self) -> str:
        """Return what was read, how fast, and at what cost: one line."""
        return (
            f"{self.num_bytes / 1e9:.3f} GB in {self.seconds:.1f} s "
            f"({self.num_bytes / 1e9 / max(self.seconds, 1e-9):.2f} GB/s), "
            f"{self.peak_extra_bytes / 2**20:.0f} MiB of buffers at most, "
            f"{self.num_verified_bytes / 1e9:.3f} GB verified, "
            f"{self.num_direct_files} files read directly, {self.num_buffered_files} through the "
            f"page cache{', straight into the parameters' if self.is_straight else ''}"
        )


def _nothing(num_bytes: int) -> None:
    """Take no notice."""


def from_artifact(
    artifact: Artifact,
    tensors: Sequence[TensorFacts],
    sink: LoadSink,
    options: LoaderOptions,
    advance: Callable[[int], None] = _nothing,
) -> LoadReport:
    """Read tensors of an artifact into a sink, several at a time.

    Args:
        artifact: The artifact.
        tensors: Which of its tensors.
        sink: Where to.
        options: How.
        advance: Told of the bytes of each read, from any thread.

    Raises:
        UserError: A file cannot be read, or a checksum does not match.
    """
    ring = Ring(options.ring_bytes, options.threads)
    checked = {t.name for i, t in enumerate(tensors) if options.verifies(i, t.size)}
    sums = BlockChecksums()
    peak = PeakMemory()

    def load(block: Block) -> None:
        tensor = block.tensor
        check = tensor.name in checked
        hasher = xxhash.xxh3_128()
        path = artifact.path(tensor)
        target = sink.destination(tensor.name)
        with ring.buffer() as buffer:
            for at in range(block.at, block.at + block.size, ring.max_read_bytes):
                size = min(ring.max_read_bytes, block.at + block.size - at)
                if target is not None:
                    data = files.read_into(path, tensor.offset + at, target[at : at + size])
                else:
                    data = files.read(path, tensor.offset + at, size, buffer)
                for begin in range(0, size, _PIECE_BYTES):
                    piece = data[begin : begin + _PIECE_BYTES]
                    if target is None:
                        sink.write(tensor.name, at + begin, piece)
                    if check:
                        hasher.update(piece.data)
                peak.sample()
                advance(size)
        found = sums.add(block, hasher.hexdigest()) if check else None
        if found is not None and found != tensor.xxh3_128:
            raise wrong_checksum(path, tensor, found)

    begin = time.perf_counter()
    with sink.pinned(ring.buffers), Files(direct=not sink.is_straight) as files:
        _run_all(load, list(blocks(tensors)), sink, options.threads)
    num_verified = sum(tensor.size for tensor in tensors if tensor.name in checked)
    ring.release()
    return _report("artifact", begin, files.counts, num_verified, peak, sink.is_straight)


def from_checkpoint(
    plan: RankPlan,
    checkpoint: Checkpoint,
    storage: ExpertStorage,
    sink: LoadSink,
    options: LoaderOptions,
    advance: Callable[[int], None] = _nothing,
) -> LoadReport:
    """Execute a rank's plan on a checkpoint into a sink, several groups at a time.

    Args:
        plan: The rank's.
        checkpoint: The checkpoint.
        storage: How experts are kept.
        sink: Where to.
        options: How.
        advance: Told of the bytes kept of each read, from any thread.

    Raises:
        UserError: A file cannot be read, or a scale must not be served.
    """
    sources = checkpoint.sources()
    all_groups = groups([plan], storage)
    # An expert is read in one step: where the buffers are too small for one, make fewer of them.
    step = max((step_bytes(g, sources) for g in all_groups if g.is_expert_stack), default=1)
    num_buffers = max(1, min(options.threads, options.ring_bytes // step))
    ring = Ring(options.ring_bytes, num_buffers)
    rewritten: list[int] = []
    peak = PeakMemory()
    noting = _Noting(sink, peak, advance)

    begin = time.perf_counter()
    with sink.pinned(ring.buffers), Files() as files:

        def make(group: Group) -> None:
            with ring.buffer() as buffer:
                executor = Executor(checkpoint, sources, files, buffer, storage)
                executor.make(group, [noting])
            rewritten.append(executor.neutralised_blocks)

        _run_all(make, all_groups, sink, options.threads)
    ring.release()
    return _report("checkpoint", begin, files.counts, 0, peak, False, sum(rewritten))


class _Noting:
    """A sink that notes what passes."""

    def __init__(self, sink: Sink, peak: PeakMemory, advance: Callable[[int], None]) -> None:
        self.start_thread = sink.start_thread
        self._sink = sink
        self._peak = peak
        self._advance = advance

    def write(self, name: str, offset: int, data: Bytes) -> None:
        self._sink.write(name, offset, data)
        self._peak.sample()
        self._advance(data.nbytes)


def _run_all(work: Callable[[_T], None], items: Sequence[_T], sink: Sink, threads: int) -> None:
    with ThreadPoolExecutor(threads, "weights", initializer=sink.start_thread) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            for future in futures:
                future.cancel()
    for future in finished:
        future.result()


def _report(
    origin: Literal["artifact", "checkpoint"],
    begin: float,
    counts: ReadCounts,
    num_verified_bytes: int,
    peak: PeakMemory,
    is_straight: bool,
    neutralised_blocks: int = 0,
) -> LoadReport:
    return LoadReport(
        origin=origin,
        seconds=time.perf_counter() - begin,
        num_bytes=counts.num_bytes,
        num_verified_bytes=num_verified_bytes,
        num_direct_files=counts.num_direct_files,
        num_buffered_files=counts.num_buffered_files,
        peak_extra_bytes=peak.extra_bytes(),
        is_straight=is_straight,
        neutralised_blocks=neutralised_blocks,
    )
