"""Tensors of a checkpoint, read one by one; MXFP4 ones as the float32 that they stand for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_mi300a import mxfp4
from sglang_mi300a.errors import UserError

if TYPE_CHECKING:
    import torch

SCALE = "_scale"
"""What the name of a weight's scales adds to the weight's."""


def files_by_tensor(model_dir: Path) -> dict[str, Path]:
    """Return the safetensors file of each tensor of a checkpoint.

    Raises:
        UserError: There is no such file.
    """
    from safetensors import safe_open

    index = model_dir / "model.safetensors.index.json"
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: model_dir / file for name, file in weight_map.items()}
    found = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found.update(dict.fromkeys(file.keys(), path))
    if not found:
        raise no_checkpoint(model_dir, "no safetensors file")
    return found


def dequantised(name: str, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the float32 values of an MXFP4 weight.

    Args:
        name: Its name, for errors.
        packed: uint8 ``[..., K // 2]``.
        scales: uint8 ``[..., K // 32]``.

    Raises:
        UserError: A scale that the one scale rule refuses.
    """
    import torch

    codes = packed.numpy()
    kept, scan = mxfp4.scan_scales(codes, scales.numpy())
    if scan.refused:
        raise UserError(
            name,
            found=f"{scan.nan_blocks} NaN scales and {scan.inexact_blocks} blocks with a scale "
            f"outside the exact range, first block {scan.first_bad}",
            allowed=f"scale bytes {mxfp4.EXACT_SCALE_MIN} to {mxfp4.EXACT_SCALE_MAX}",
            do="quantise the checkpoint again",
        )
    return torch.from_numpy(mxfp4.dequantise(codes, kept))


def no_checkpoint(model_dir: Path, found: str) -> UserError:
    """Return the refusal of a folder that holds no checkpoint."""
    return UserError(
        str(model_dir),
        found=found,
        allowed="a checkpoint folder",
        do="give the folder that holds config.json and the weights",
    )


class StoredTensors:
    """A checkpoint's tensors, by name.

    Args:
        model_dir: The checkpoint.

    Raises:
        UserError: There is none.
    """

    def __init__(self, model_dir: Path) -> None:
        self._file_of = files_by_tensor(model_dir)
        self._open: dict[Path, Any] = {}
        self._read: dict[Path, None] = {}

    def names(self) -> Iterable[str]:
        """Return the names of all tensors, scales among them."""
        return self._file_of.keys()

    def rows(self, name: str, first: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``first`` to ``stop`` of a tensor as float32; any thread may ask.

        Raises:
            UserError: A scale that the one scale rule refuses.
        """
        stored = self._slice(name, first, stop)
        if name + SCALE in self._file_of:
            return dequantised(name, stored, self._slice(name + SCALE, first, stop))
        return stored.float()

    def forget(self) -> None:
        """Close all files and take what was read out of the page cache, as far as nobody uses it.

        On an APU the page cache and a server's memory are the same.
        """
        self._open.clear()
        # Of all files: one that another thread was reading the last time is dropped now.
        for path in list(self._read):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def _slice(self, name: str, first: int, stop: int | None) -> torch.Tensor:
        from safetensors import safe_open

        path = self._file_of[name]
        file = self._open.get(path)
        if file is None:
            file = self._open.setdefault(path, safe_open(path, framework="pt"))
            self._read[path] = None
        part = file.get_slice(name)
        if not part.get_shape():
            whole: torch.Tensor = file.get_tensor(name)
            return whole
        rows: torch.Tensor = part[first:stop]
        return rows
