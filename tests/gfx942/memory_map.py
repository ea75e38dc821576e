"""Device addresses for host arrays: one range a buffer, far from the next, the same in each run."""

from dataclasses import dataclass

import numpy as np

FIRST_ADDRESS = 0x7F00_0000_0000
"""Where buffers start: an address no code object has, with a nonzero high half."""

GUARD_BYTES = 1 << 20
"""Between buffers, at least: an index that is off finds nothing, not the neighbour."""

ALIGNMENT = 4096


@dataclass(frozen=True)
class Buffer:
    """A range of device addresses and the host bytes behind it."""

    name: str
    base: int
    data: np.ndarray  # uint8, one dimension, shares memory with what the caller gave
    writable: bool

    @property
    def end(self) -> int:
        """The first address after it."""
        return self.base + self.data.nbytes


class MemoryMap:
    """The buffers of one launch.

    Attributes:
        buffers: In order of addresses.
    """

    def __init__(self) -> None:
        """Start without buffers."""
        self.buffers: list[Buffer] = []
        self._next = FIRST_ADDRESS

    def add_array(self, name: str, array: np.ndarray) -> int:
        """Return the device address of an array, which becomes a buffer unless it lies in one.

        Raises:
            ValueError: It is not contiguous, or overlaps a buffer without lying in it.
        """
        if not array.flags.c_contiguous:
            raise ValueError(f"{name}: array of strides {array.strides} is not contiguous")
        start = array.ctypes.data
        for buffer in self.buffers:
            offset = start - buffer.data.ctypes.data
            if offset >= 0 and offset + array.nbytes <= buffer.data.nbytes:
                return buffer.base + offset
            if -array.nbytes < offset < buffer.data.nbytes and array.nbytes:
                raise ValueError(f"{name} overlaps {buffer.name}: pass the larger one first")
        data = array.reshape(-1).view(np.uint8)
        base = self._next
        self._next += (data.nbytes + GUARD_BYTES + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.buffers.append(Buffer(name, base, data, array.flags.writeable))
        return base

    def add_fixed(self, name: str, base: int, data: bytes) -> None:
        """Put read-only bytes at an address, below all arrays."""
        array = np.frombuffer(data, np.uint8)
        self.buffers.append(Buffer(name, base, array, writable=False))
        self.buffers.sort(key=lambda one: one.base)

    def nearest(self, address: int) -> str:
        """Return where an address lies against the buffer nearest to it, in words."""
        if not self.buffers:
            return "there are no buffers"

        def distance(one: Buffer) -> int:
            return max(one.base - address, address - one.end + 1, 0)

        near = min(self.buffers, key=distance)
        size = f"{near.name} ({near.data.nbytes} bytes at {near.base:#x})"
        if address < near.base:
            return f"{near.base - address} bytes before {size}"
        if address >= near.end:
            return f"{address - near.end} bytes after the end of {size}"
        return f"{near.end - address} bytes before the end of {size}"

    def records(self, kind: np.dtype) -> np.ndarray:
        """Return the buffers as the interpreter's records, in order of addresses."""
        records = np.zeros(len(self.buffers), kind)
        for record, one in zip(records, self.buffers, strict=True):
            record["base"], record["num_bytes"] = one.base, one.data.nbytes
            record["host"], record["writable"] = one.data.ctypes.data, one.writable
        return records
