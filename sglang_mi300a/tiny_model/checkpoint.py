"""Writing and reading a checkpoint folder: several safetensors files and their index."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_mi300a.errors import UserError

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` with sorted keys, two blanks of indent and a final newline."""
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def write_tensors(folder: Path, tensors: dict[str, torch.Tensor], *, shard_bytes: int) -> int:
    """Write tensors in order, a new file once one holds ``shard_bytes``; return the file count."""
    from safetensors.torch import save_file

    files: list[dict[str, torch.Tensor]] = [{}]
    filled_bytes = total_bytes = 0
    for name, tensor in tensors.items():
        if files[-1] and filled_bytes + tensor.nbytes > shard_bytes:
            files.append({})
            filled_bytes = 0
        files[-1][name] = tensor
        filled_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
    weight_map: dict[str, str] = {}
    for number, content in enumerate(files, start=1):
        file_name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        save_file(content, folder / file_name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(content, file_name))
    write_json(folder / INDEX, {"metadata": {"total_size": total_bytes}, "weight_map": weight_map})
    return len(files)


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return every tensor that the index names, in the order of files and names.

    Raises:
        UserError: No index, or a file does not hold what the index says.
    """
    from safetensors.torch import load_file

    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            str(folder),
            found=f"no {INDEX}",
            allowed="a checkpoint in several safetensors files",
            do="give the folder that holds the checkpoint",
        ) from None
    tensors: dict[str, torch.Tensor] = {}
    for file_name in sorted(set(index["weight_map"].values())):
        tensors.update(load_file(folder / file_name))
    missing = sorted(set(index["weight_map"]) ^ set(tensors))
    if missing:
        raise UserError(
            str(folder / INDEX),
            found=f"{len(missing)} tensors only in index or only in files, first {missing[0]}",
            allowed="the same tensors in both",
            do="make the checkpoint again",
        )
    return tensors


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Give a temporary sibling of ``out`` to fill, and put it in place when the body is done.

    A body that raises leaves nothing behind. If ``out`` holds files already, it is left as it is:
    silently when they are byte for byte what the body wrote, with an error otherwise.

    Raises:
        UserError: ``out`` is a file, or a folder with other content.
    """
    if out.exists() and not out.is_dir():
        raise _occupied(out, "a file")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        try:
            os.rename(temporary, out)  # replaces an empty folder, and no other
        except OSError:
            if not out.is_dir():
                raise
            difference = _first_difference(temporary, out)
            if difference:
                raise _occupied(out, difference) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _first_difference(wanted: Path, found: Path) -> str:
    names = sorted({path.name for folder in (wanted, found) for path in folder.iterdir()})
    for name in names:
        if not (wanted / name).is_file() or not (found / name).is_file():
            where = "which is missing" if (wanted / name).exists() else "which does not belong"
            return f"a folder with {name}, {where}" if where else name
        if not filecmp.cmp(wanted / name, found / name, shallow=False):
            return f"a folder with another {name}"
    return ""


def _occupied(out: Path, found: str) -> UserError:
    return UserError(
        str(out),
        found=found,
        allowed="a new or empty folder, or one with exactly this model",
        do="give another folder, or remove this one",
    )
