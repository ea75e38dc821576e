"""Whether the host may write a device's memory in place, found out before anything relies on it.

On an APU the processor and the accelerator share one memory, and a file can be read straight into a
parameter. That it works on a given driver is not taken from a product name but tried, in a way that
cannot crash: the kernel copies the bytes, and answers ``EFAULT`` where a store would have been a
segmentation fault.
"""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

PROBE_BYTES = 1 << 20


class Runtime(Protocol):
    """What the probe asks of a device."""

    def allocate(self, size: int) -> tuple[Any, int]:
        """Return what keeps fresh device memory alive, and its address."""

    def fill(self, memory: Any, value: int) -> None:
        """Set every byte by the device, and wait for it."""

    def content(self, memory: Any) -> bytes:
        """Return the bytes as the device sees them."""


@dataclass(frozen=True)
class Verdict:
    """What a probe found.

    Attributes:
        passed: Whether host and device see each other's writes.
        why: In words, for the report of a load.
    """

    passed: bool
    why: str


def probe(runtime: Runtime) -> Verdict:
    """Return whether the host may read files straight into a device's memory.

    Writes through the kernel in both directions and compares with what the device sees: memory
    that takes the host's bytes but shows the device others does not pass.
    """
    memory, address = runtime.allocate(PROBE_BYTES)
    written = np.random.default_rng(0).integers(0, 256, PROBE_BYTES, dtype=np.uint8).tobytes()
    try:
        runtime.fill(memory, 0xA5)
        if _kernel_reads(address) != bytes([0xA5]) * PROBE_BYTES:
            return Verdict(False, "the host does not see what the device wrote")
        _kernel_writes(address, written)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        return Verdict(False, "the device's memory is not mapped for the host")
    if runtime.content(memory) != written:
        return Verdict(False, "the device does not see what the host wrote")
    return Verdict(True, "host and device see each other's writes")


def view(address: int, size: int) -> NDArray[np.uint8]:
    """Return memory as uint8 ``[size]``, without copying; it must be mapped and stay alive."""
    if size == 0:
        return np.empty(0, dtype=np.uint8)
    return np.frombuffer(memoryview((ctypes.c_ubyte * size).from_address(address)), dtype=np.uint8)


def _kernel_writes(address: int, content: bytes) -> None:
    descriptor = os.memfd_create("host-writable-probe", os.MFD_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)
        target = (ctypes.c_ubyte * len(content)).from_address(address)
        if os.preadv(descriptor, [target], 0) != len(content):
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    finally:
        os.close(descriptor)


def _kernel_reads(address: int) -> bytes:
    descriptor = os.memfd_create("host-writable-probe", os.MFD_CLOEXEC)
    try:
        source = (ctypes.c_ubyte * PROBE_BYTES).from_address(address)
        if os.pwrite(descriptor, source, 0) != PROBE_BYTES:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        return os.pread(descriptor, PROBE_BYTES, 0)
    finally:
        os.close(descriptor)
