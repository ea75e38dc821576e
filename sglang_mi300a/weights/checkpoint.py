"""A Hugging Face checkpoint as names and byte ranges: which tensor lies where."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sglang_mi300a.artifact_manifest import FileFacts, checksum
from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import safetensors_header
from sglang_mi300a.weights.plan import Source

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_INDEX_BYTES = 256 << 20
_NUMBERED = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors$")


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies.

    Attributes:
        file: The file.
        offset: First byte in it.
        dtype: Element type.
        shape: Its shape.
    """

    file: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """All weight files of a checkpoint.

    Attributes:
        directory: Where it lies.
        tensors: Every tensor by name.
        files: Name, size and header checksum of each weight file, by name.
    """

    directory: Path
    tensors: dict[str, StoredTensor]
    files: tuple[FileFacts, ...]

    def sources(self) -> dict[str, Source]:
        """Return dtype and shape of every tensor, as :mod:`plan` wants them."""
        return {name: Source(t.dtype, t.shape) for name, t in self.tensors.items()}


def read(directory: Path) -> Checkpoint:
    """Return the tensors of a checkpoint; only headers are read.

    Raises:
        UserError: No weights, a file or a tensor is missing, an index does not fit the files, a
            tensor occurs twice, or a header is malformed.
    """
    index = _index(directory)
    names = sorted(set(index.values())) if index is not None else _files_without_index(directory)
    if index is not None:
        _check_files_exist(directory, index, names)
    tensors: dict[str, StoredTensor] = {}
    facts = []
    for name in names:
        path = directory / name
        header = safetensors_header.read(path)
        facts.append(FileFacts(name, path.stat().st_size, checksum(header.text)))
        for tensor in header.tensors:
            if tensor.name in tensors:
                _refuse(
                    path,
                    f"tensor {tensor.name}, which {tensors[tensor.name].file.name} holds too",
                    "each tensor in one file",
                    "remove the file that does not belong to this checkpoint",
                )
            tensors[tensor.name] = StoredTensor(path, tensor.offset, tensor.dtype, tensor.shape)
    if index is not None:
        _check_index_fits(directory, index, tensors)
    return Checkpoint(directory, tensors, tuple(facts))


def _index(directory: Path) -> dict[str, str] | None:
    path = directory / INDEX
    try:
        if path.stat().st_size > MAX_INDEX_BYTES:
            _refuse(path, f"{path.stat().st_size} bytes", f"at most {MAX_INDEX_BYTES} bytes")
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        _refuse(path, f"not readable ({error.strerror})", "a readable index")
    except (ValueError, RecursionError) as error:
        _refuse(path, f"no JSON ({error})", "an index with a weight_map")
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        _refuse(path, "no weight_map", "an index with a weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            _refuse(path, f"{name} in file {file!r}", "plain file names beside the index")
    return weight_map


def _files_without_index(directory: Path) -> list[str]:
    found = sorted(path.name for path in directory.glob("*.safetensors"))
    if not found:
        _refuse(
            directory,
            "no *.safetensors file",
            "a checkpoint in safetensors format",
            "give the directory of a downloaded checkpoint",
        )
    if SINGLE in found:
        return [SINGLE]
    if len(found) == 1:
        return found
    matches = [match for match in map(_NUMBERED.match, found) if match]
    series = {(match["stem"], match["total"]) for match in matches}
    if len(series) == 1:
        total = int(matches[0]["total"])
        missing = sorted(set(range(1, total + 1)) - {int(match["number"]) for match in matches})
        if not missing:
            return [match.group() for match in matches]
        _refuse(
            directory,
            f"{len(matches)} of {total} numbered files; number {missing[0]} is missing",
            "all of them",
            "finish the download",
        )
    _refuse(
        directory,
        f"{len(found)} *.safetensors files and no {INDEX}: {', '.join(found[:4])}",
        f"{INDEX}, one file, or one complete numbered series",
        "fetch the index, or remove the files that do not belong to the checkpoint",
    )


def _check_files_exist(directory: Path, index: dict[str, str], names: list[str]) -> None:
    missing = [name for name in names if not (directory / name).is_file()]
    if not missing:
        return
    present: set[str] = set()
    for path in sorted(directory.glob("*.safetensors")):
        present.update(tensor.name for tensor in safetensors_header.read(path).tensors)
    lost = sorted(set(index) - present)
    if not lost:
        _refuse(
            directory / INDEX,
            f"{len(missing)} files that are not there ({missing[0]}), although the files that are "
            f"hold all {len(index)} tensors",
            "an index of the files beside it: this one is stale",
            "fetch the index that belongs to these files",
        )
    _refuse(
        directory / missing[0],
        f"no such file, and {len(missing) - 1} others of {INDEX} are missing; "
        f"{len(lost)} tensors are nowhere, first {lost[0]}",
        "every file that the index names",
        "finish the download",
    )


def _check_index_fits(
    directory: Path, index: dict[str, str], tensors: dict[str, StoredTensor]
) -> None:
    for name, file in index.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.file.name != file:
            where = f"it is in {tensor.file.name}" if tensor else "no file holds it"
            _refuse(
                directory / INDEX,
                f"{name} said to be in {file}; {where}",
                "an index that agrees with the files: this one is stale",
                "fetch index and files of one revision",
            )


def _refuse(
    where: Path, found: str, allowed: str, do: str = "fetch the checkpoint again"
) -> NoReturn:
    raise UserError(str(where), found=found, allowed=allowed, do=do)
