"""Fill one rank's parameters from an artifact, or from a checkpoint by a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Literal, TypeVar

import xxhash

from sglang_mi300a.artifact_manifest import TensorFacts
from sglang_mi300a.layout import Layout
from sglang_mi300a.weights.artifact import Artifact, wrong_checksum
from sglang_mi300a.weights.checkpoint import Checkpoint
from sglang_mi300a.weights.executing import Executor, Sink
from sglang_mi300a.weights.loader_options import LoaderOptions
from sglang_mi300a.weights.plan import RankPlan
from sglang_mi300a.weights.reading import Files, ReadCounts, Ring
from sglang_mi300a.weights.steps import Group, groups

_T = TypeVar("_T")


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
        neutralised_blocks: All-zero MXFP4 blocks whose scale was rewritten (checkpoint only).
    """

    origin: Literal["artifact", "checkpoint"]
    seconds: float
    num_bytes: int
    num_verified_bytes: int
    num_direct_files: int
    num_buffered_files: int
    neutralised_blocks: int = 0


def from_artifact(
    artifact: Artifact, tensors: Sequence[TensorFacts], sink: Sink, options: LoaderOptions
) -> LoadReport:
    """Read tensors of an artifact into a sink, several at a time.

    Raises:
        UserError: A file cannot be read, or a checksum does not match.
    """
    ring = Ring(options.ring_bytes, options.threads)
    checked = {t.name for i, t in enumerate(tensors) if options.verifies(i, t.size)}

    def load(tensor: TensorFacts) -> None:
        check = tensor.name in checked
        hasher = xxhash.xxh3_128()
        path = artifact.path(tensor)
        with ring.buffer() as buffer:
            for at in range(0, tensor.size, ring.max_read_bytes):
                size = min(ring.max_read_bytes, tensor.size - at)
                data = files.read(path, tensor.offset + at, size, buffer)
                if check:
                    hasher.update(data.data)
                sink.write(tensor.name, at, data)
        if check and hasher.hexdigest() != tensor.xxh3_128:
            raise wrong_checksum(path, tensor, hasher.hexdigest())

    begin = time.perf_counter()
    with Files() as files:
        _run_all(load, tensors, sink, options.threads)
    num_verified = sum(tensor.size for tensor in tensors if tensor.name in checked)
    return _report("artifact", begin, files.counts, num_verified)


def from_checkpoint(
    plan: RankPlan, checkpoint: Checkpoint, layout: Layout, sink: Sink, options: LoaderOptions
) -> LoadReport:
    """Execute a rank's plan on a checkpoint into a sink, several groups at a time.

    Raises:
        UserError: A file cannot be read, or a scale must not be served.
    """
    ring = Ring(options.ring_bytes, options.threads)
    sources = checkpoint.sources()
    rewritten: list[int] = []

    begin = time.perf_counter()
    with Files() as files:

        def make(group: Group) -> None:
            with ring.buffer() as buffer:
                executor = Executor(checkpoint, sources, files, buffer, layout)
                executor.make(group, [sink])
            rewritten.append(executor.neutralised_blocks)

        _run_all(make, groups([plan], layout), sink, options.threads)
    return _report("checkpoint", begin, files.counts, 0, sum(rewritten))


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
    neutralised_blocks: int = 0,
) -> LoadReport:
    return LoadReport(
        origin=origin,
        seconds=time.perf_counter() - begin,
        num_bytes=counts.num_bytes,
        num_verified_bytes=num_verified_bytes,
        num_direct_files=counts.num_direct_files,
        num_buffered_files=counts.num_buffered_files,
        neutralised_blocks=neutralised_blocks,
    )
