"""An artifact on disk: is it whole, and does each file hold what the manifest says?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import xxhash

from sglang_mi300a import artifact_manifest
from sglang_mi300a.artifact_manifest import FileFacts, Manifest, Part, TensorFacts, checksum
from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import page_cache, safetensors_header
from sglang_mi300a.weights.reading import DEFAULT_RING_BYTES, DEFAULT_THREADS, Files, Ring
from sglang_mi300a.weights.tensor_blocks import Block, BlockChecksums, blocks

_COPY_AGAIN = "copy the artifact again, or run shard-weights again"


@dataclass(frozen=True)
class Artifact:
    """A directory made by ``shard-weights``.

    Attributes:
        directory: Where it lies.
        manifest: What it holds.
    """

    directory: Path
    manifest: Manifest

    def path(self, tensor: TensorFacts) -> Path:
        """Return the file that a tensor lies in."""
        return self.directory / tensor.file


def read(directory: Path) -> Artifact:
    """Return an artifact; only its manifest is read.

    Raises:
        UserError: The manifest is missing or malformed.
    """
    return Artifact(directory, artifact_manifest.read(directory))


def check_files(artifact: Artifact, rank: int, part: Part) -> list[TensorFacts]:
    """Check one rank's files against the manifest; only headers are read.

    Returns:
        The rank's tensors, in file order.

    Raises:
        UserError: A file is missing, has another size, leads out of the artifact, is malformed,
            holds other tensors than the manifest says, or is none of the artifact's.
    """
    tensors = artifact.manifest.of_rank(rank, part)
    by_file = _by_file(tensors)
    for name, expected in by_file.items():
        _check_weight_file(artifact, name, expected)
    _check_no_links_out(artifact)
    _check_no_strays(artifact, {name.split("/")[0] for name in by_file})
    return tensors


@dataclass(frozen=True)
class Verification:
    """What a comparison of bytes and checksums found.

    Attributes:
        num_bytes: Bytes of tensors that were read.
        num_tensors: Tensors that were compared.
        problems: What does not fit, each with its file and tensor; empty for an intact artifact.
    """

    num_bytes: int
    num_tensors: int
    problems: tuple[UserError, ...]


def num_bytes(artifact: Artifact, ranks: Iterable[int]) -> int:
    """Return the bytes of some ranks' tensors."""
    chosen = set(ranks)
    return sum(tensor.size for tensor in artifact.manifest.tensors if tensor.rank in chosen)


def verify(
    artifact: Artifact,
    *,
    ranks: Iterable[int] | None = None,
    threads: int = DEFAULT_THREADS,
    advance: Callable[[int], None] = lambda num_bytes: None,
) -> Verification:
    """Compare every byte of an artifact with its checksums, also after a problem was found.

    Args:
        artifact: The artifact.
        ranks: Ranks to check; default all.
        threads: Reads in flight.
        advance: Told of the bytes of each read, from any thread.
    """
    chosen = range(artifact.manifest.tp) if ranks is None else sorted(set(ranks))
    problems: list[UserError] = []

    def check(step: Callable[[], None]) -> bool:
        try:
            step()
        except UserError as error:
            problems.append(error)
            return False
        return True

    for file in artifact.manifest.copied:
        check(partial(_check_copied, artifact, file))
    check(partial(_check_no_links_out, artifact))
    tensors: list[TensorFacts] = []
    for name, expected in _by_file(artifact.manifest.tensors).items():
        if expected[0].rank in chosen:
            if check(partial(_check_weight_file, artifact, name, expected)):
                tensors += expected
            else:
                advance(sum(tensor.size for tensor in expected))
    check(partial(_check_no_strays, artifact, {f"rank-{rank}" for rank in chosen}))
    ring, sums = Ring(DEFAULT_RING_BYTES, threads), BlockChecksums()

    def wrong(block: Block) -> UserError | None:
        try:
            found = sums.add(block, _checksum_of(artifact, block, files, ring, advance))
        except UserError as error:
            return error
        if found in (None, block.tensor.xxh3_128):
            return None
        return wrong_checksum(artifact.path(block.tensor), block.tensor, str(found))

    with Files() as files, ThreadPoolExecutor(threads) as pool:
        found = pool.map(wrong, blocks(tensors))
        problems += [error for error in found if error is not None]
    page_cache.drop(artifact.directory / file.name for file in artifact.manifest.files)
    return Verification(files.counts.num_bytes, len(tensors), tuple(problems))


def _checksum_of(
    artifact: Artifact, block: Block, files: Files, ring: Ring, advance: Callable[[int], None]
) -> str:
    hasher = xxhash.xxh3_128()
    path, end = artifact.path(block.tensor), block.at + block.size
    with ring.buffer() as buffer:
        for at in range(block.at, end, ring.max_read_bytes):
            size = min(ring.max_read_bytes, end - at)
            hasher.update(files.read(path, block.tensor.offset + at, size, buffer).data)
            advance(size)
    return hasher.hexdigest()


def wrong_checksum(path: Path, tensor: TensorFacts, found: str) -> UserError:
    """Return the error of a tensor whose bytes are not those that were written."""
    return UserError(
        f"{path}: {tensor.name}",
        found=f"checksum {found} over {tensor.size} bytes at {tensor.offset}",
        allowed=f"checksum {tensor.xxh3_128} by the manifest",
        do=_COPY_AGAIN,
    )


def _by_file(tensors: Iterable[TensorFacts]) -> dict[str, list[TensorFacts]]:
    by_file: dict[str, list[TensorFacts]] = {}
    for tensor in tensors:
        by_file.setdefault(tensor.file, []).append(tensor)
    return by_file


def _check_weight_file(artifact: Artifact, name: str, expected: list[TensorFacts]) -> None:
    facts = next(file for file in artifact.manifest.files if file.name == name)
    path = artifact.directory / name
    _check_file(artifact, path, facts)
    _check_header(path, expected)


def _check_copied(artifact: Artifact, facts: FileFacts) -> None:
    path = artifact.directory / facts.name
    _check_file(artifact, path, facts)
    try:
        found = checksum(path.read_bytes())
    except OSError as error:
        _refuse(path, f"not readable ({error.strerror})", f"a file of {facts.size} bytes")
    if found != facts.xxh3_128:
        _refuse(path, "other content than was copied", f"checksum {facts.xxh3_128}")


def _check_no_links_out(artifact: Artifact) -> None:
    """Check the files that SGLang reads by itself, which may also be missing."""
    for name in (artifact_manifest.NAME, *(file.name for file in artifact.manifest.copied)):
        _check_inside(artifact, artifact.directory / name)


def _check_inside(artifact: Artifact, path: Path) -> None:
    try:
        target = path.resolve()
    except (OSError, RuntimeError):  # a link to itself: RuntimeError before Python 3.13
        _refuse(path, "a link that leads nowhere", "a file inside the artifact")
    if not target.is_relative_to(artifact.directory.resolve()):
        _refuse(path, f"a link to {target}", "a file inside the artifact")


def _check_file(artifact: Artifact, path: Path, facts: FileFacts) -> None:
    _check_inside(artifact, path)
    try:
        size = path.stat().st_size
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        os.close(descriptor)
    except OSError as error:
        _refuse(path, f"not readable ({error.strerror})", f"a file of {facts.size} bytes")
    if not path.is_file():
        _refuse(path, "no regular file", f"a file of {facts.size} bytes")
    if size != facts.size:
        _refuse(path, f"{size} bytes", f"{facts.size} bytes by the manifest")


def _check_header(path: Path, expected: list[TensorFacts]) -> None:
    found = {t.name: t for t in safetensors_header.read(path).tensors}
    for tensor in expected:
        held = found.pop(tensor.name, None)
        if held is None:
            _refuse(path, f"no tensor {tensor.name}", "what the manifest lists")
        if (held.offset, held.dtype, held.shape) != (tensor.offset, tensor.dtype, tensor.shape):
            _refuse(
                path,
                f"{held.name} as {held.dtype} {list(held.shape)} at {held.offset}",
                f"{tensor.dtype} {list(tensor.shape)} at {tensor.offset} by the manifest",
            )
    if found:
        _refuse(path, f"tensor {next(iter(found))}", "what the manifest lists, and no more")


def _check_no_strays(artifact: Artifact, directories: set[str]) -> None:
    known = {file.name for file in artifact.manifest.files}
    for name in ("", *sorted(directories)):
        directory = artifact.directory / name
        for path in sorted(directory.glob("*.safetensors")):
            if str(path.relative_to(artifact.directory)) not in known:
                _refuse(
                    path,
                    "a weight file that the manifest does not list",
                    "the artifact's files alone",
                    "remove it",
                )


def _refuse(where: Path, found: str, allowed: str, do: str = _COPY_AGAIN) -> NoReturn:
    raise UserError(str(where), found=found, allowed=allowed, do=do)
