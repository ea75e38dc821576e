"""How fast this node reads a model's files: a short look, with the loader's own reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import artifact as artifacts
from sglang_mi300a.weights import page_cache
from sglang_mi300a.weights.loader_options import LoaderOptions
from sglang_mi300a.weights.reading import Files, Ring

MAX_SECONDS = 1.5
"""No read is begun later; one that was begun is finished."""
MAX_BYTES = 4 << 30
READ_BYTES = 4 << 20
"""Smaller than the loader's reads, so that the probe of a slow disk ends in time."""


@dataclass(frozen=True)
class StorageProbe:
    """What a probe read.

    Attributes:
        num_bytes: Bytes read.
        seconds: Wall time.
        is_direct: Whether all of it was read past the page cache.
    """

    num_bytes: int
    seconds: float
    is_direct: bool

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second."""
        return self.num_bytes / 1e9 / self.seconds

    def seconds_for(self, num_bytes: int) -> float:
        """Return how long that many bytes take at this rate."""
        return num_bytes / 1e9 / self.gb_per_s


@dataclass(frozen=True)
class LoadForecast:
    """What a probe says of an artifact's load.

    Attributes:
        probe: What was read.
        rank_bytes: Weights of the largest rank, target and draft.
        node_bytes: Weights of all ranks.
        rank_seconds: One rank alone.
        node_seconds: All ranks at once, if the storage gives them together what it gave the probe:
            more where it serves several readers better than one.
    """

    probe: StorageProbe
    rank_bytes: int
    node_bytes: int
    rank_seconds: float
    node_seconds: float


def of_artifact(directory: Path, options: LoaderOptions | None = None) -> LoadForecast:
    """Read some of an artifact, for at most about two seconds, and return what to expect.

    Args:
        directory: The artifact.
        options: How the loader will read.

    Raises:
        UserError: No artifact, or a file cannot be read.
    """
    artifact = artifacts.read(directory)
    by_rank = [0] * artifact.manifest.tp
    for tensor in artifact.manifest.tensors:
        by_rank[tensor.rank] += tensor.size
    files = [directory / file.name for file in artifact.manifest.files]
    found = of_files(files, options or LoaderOptions())
    return LoadForecast(
        probe=found,
        rank_bytes=max(by_rank),
        node_bytes=sum(by_rank),
        rank_seconds=found.seconds_for(max(by_rank)),
        node_seconds=found.seconds_for(sum(by_rank)),
    )


def of_files(
    paths: Sequence[Path],
    options: LoaderOptions,
    *,
    max_seconds: float = MAX_SECONDS,
    max_bytes: int = MAX_BYTES,
) -> StorageProbe:
    """Read pieces spread over files as the loader does: same threads, same flags.

    Args:
        paths: The files; what the page cache holds of them is dropped first.
        options: How the loader will read.
        max_seconds: When to begin no further read.
        max_bytes: How much to read at most.

    Raises:
        UserError: A file cannot be read, or all are empty.
    """
    size = min(READ_BYTES, options.ring_bytes // options.threads // 2)
    ring = Ring(options.ring_bytes, options.threads)
    pieces = _spread(paths, size, max_bytes)
    lock = threading.Lock()
    page_cache.drop(paths)  # where direct reads are not possible, memory would be measured instead
    begin = time.perf_counter()

    def read() -> None:
        while time.perf_counter() - begin < max_seconds:
            with lock:
                piece = next(pieces, None)
            if piece is None:
                return
            with ring.buffer() as buffer:
                files.read(*piece, buffer)

    with Files() as files, ThreadPoolExecutor(options.threads) as pool:
        for done in [pool.submit(read) for _ in range(options.threads)]:
            done.result()
        seconds = time.perf_counter() - begin
        counts = files.counts
    if not counts.num_bytes:
        raise UserError(
            str(paths[0].parent) if paths else "probe",
            found=f"{len(paths)} files without content",
            allowed="files to read from",
            do="give a complete artifact",
        )
    return StorageProbe(counts.num_bytes, seconds, counts.num_buffered_files == 0)


def _spread(paths: Sequence[Path], size: int, max_bytes: int) -> Iterator[tuple[Path, int, int]]:
    """Yield path, offset and bytes: a piece of each file in turn, each file from front to back."""
    sizes = [(path, _size(path)) for path in paths]
    left = max_bytes
    for at in range(0, max((total for _, total in sizes), default=0), size):
        for path, total in sizes:
            length = min(size, total - at, left)
            if length > 0:
                left -= length
                yield path, at, length


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise UserError(
            str(path),
            found=f"not readable ({error.strerror})",
            allowed="a readable file",
            do="copy the artifact again",
        ) from error
