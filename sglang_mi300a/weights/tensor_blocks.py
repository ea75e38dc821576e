"""Tensors of an artifact in blocks that can be read and checked each by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sglang_mi300a.artifact_manifest import CHECKSUM_BLOCK_BYTES, TensorFacts, of_blocks


class Block(NamedTuple):
    """A part of a tensor that has a checksum.

    Attributes:
        tensor: The tensor.
        number: Which of its blocks.
        at: First byte, from the tensor's first.
        size: Bytes; 0 for the one block of an empty tensor.
    """

    tensor: TensorFacts
    number: int
    at: int
    size: int


def blocks(tensors: Sequence[TensorFacts]) -> Iterator[Block]:
    """Yield the blocks of tensors, in order."""
    for tensor in tensors:
        for number, at in enumerate(range(0, max(tensor.size, 1), CHECKSUM_BLOCK_BYTES)):
            yield Block(tensor, number, at, min(CHECKSUM_BLOCK_BYTES, tensor.size - at))


class BlockChecksums:
    """Puts tensors' checksums together from those of their blocks, which come in any order."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str, str], dict[int, str]] = {}
        self._lock = threading.Lock()

    def add(self, block: Block, checksum: str) -> str | None:
        """Take a block's checksum; return the tensor's with its last block, else None."""
        tensor = block.tensor
        num_blocks = max(1, -(-tensor.size // CHECKSUM_BLOCK_BYTES))
        with self._lock:
            found = self._found.setdefault((tensor.rank, tensor.part, tensor.name), {})
            found[block.number] = checksum
            if len(found) < num_blocks:
                return None
        return of_blocks([found[number] for number in range(num_blocks)])
