"""An artifact on disk: is it whole, and does each file hold what the manifest says?"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import xxhash

from sglang_mi300a import artifact_manifest
from sglang_mi300a.artifact_manifest import FileFacts, Manifest, Part, TensorFacts, checksum
from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import safetensors_header
from sglang_mi300a.weights.reading import DEFAULT_RING_BYTES, DEFAULT_THREADS, Files, Ring

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
    by_file: dict[str, list[TensorFacts]] = {}
    for tensor in tensors:
        by_file.setdefault(tensor.file, []).append(tensor)
    facts = {file.name: file for file in artifact.manifest.files}
    for name, expected in by_file.items():
        path = artifact.directory / name
        _check_file(artifact, path, facts[name])
        _check_header(path, expected)
    _check_no_strays(artifact, {name.split("/")[0] for name in by_file}, set(facts))
    return tensors


def verify(
    directory: Path, *, ranks: Iterable[int] | None = None, threads: int = DEFAULT_THREADS
) -> int:
    """Check every byte of an artifact against its checksums.

    Args:
        directory: The artifact.
        ranks: Ranks to check; default all.
        threads: Reads in flight.

    Returns:
        Bytes that were checked.

    Raises:
        UserError: The first thing that does not fit.
    """
    artifact = read(directory)
    chosen = range(artifact.manifest.tp) if ranks is None else ranks
    for file in artifact.manifest.copied:
        path = artifact.directory / file.name
        _check_file(artifact, path, file)
        if checksum(path.read_bytes()) != file.xxh3_128:
            _refuse(path, "other content than was copied", f"checksum {file.xxh3_128}")
    tensors = [
        tensor
        for rank in chosen
        for part in artifact_manifest.PARTS
        for tensor in check_files(artifact, rank, part)
    ]
    ring = Ring(DEFAULT_RING_BYTES, threads)
    with Files() as files, ThreadPoolExecutor(threads) as pool:
        for error in pool.map(lambda t: _wrong(artifact, t, files, ring), tensors):
            if error is not None:
                raise error
        return files.counts.num_bytes


def _wrong(artifact: Artifact, tensor: TensorFacts, files: Files, ring: Ring) -> UserError | None:
    hasher = xxhash.xxh3_128()
    path = artifact.path(tensor)
    with ring.buffer() as buffer:
        for at in range(0, tensor.size, ring.max_read_bytes):
            size = min(ring.max_read_bytes, tensor.size - at)
            hasher.update(files.read(path, tensor.offset + at, size, buffer).data)
    found = hasher.hexdigest()
    return None if found == tensor.xxh3_128 else wrong_checksum(path, tensor, found)


def wrong_checksum(path: Path, tensor: TensorFacts, found: str) -> UserError:
    """Return the error of a tensor whose bytes are not those that were written."""
    return UserError(
        f"{path}: {tensor.name}",
        found=f"checksum {found} over {tensor.size} bytes at {tensor.offset}",
        allowed=f"checksum {tensor.xxh3_128} by the manifest",
        do=_COPY_AGAIN,
    )


def _check_file(artifact: Artifact, path: Path, facts: FileFacts) -> None:
    try:
        size = path.stat().st_size
        inside = path.resolve().is_relative_to(artifact.directory.resolve())
    except OSError as error:
        _refuse(path, f"not readable ({error.strerror})", f"a file of {facts.size} bytes")
    if not inside:
        _refuse(path, f"a link to {path.resolve()}", "a file inside the artifact")
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


def _check_no_strays(artifact: Artifact, directories: set[str], known: set[str]) -> None:
    for name in sorted(directories):
        for path in sorted((artifact.directory / name).iterdir()):
            if f"{name}/{path.name}" not in known and path.suffix == ".safetensors":
                _refuse(
                    path,
                    "a weight file that the manifest does not list",
                    "the artifact's files alone",
                    "remove it",
                )


def _refuse(where: Path, found: str, allowed: str, do: str = _COPY_AGAIN) -> NoReturn:
    raise UserError(str(where), found=found, allowed=allowed, do=do)
