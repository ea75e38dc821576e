"""The argument block of a launch: the caller's values, and the hidden ones the runtime adds.

Which hidden arguments exist and where they lie stands in the code object's metadata (LLVM's "User
Guide for AMDGPU Backend", "Code Object V5 Metadata").
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.gfx942.code_object import Argument, Kernel
from tests.gfx942.memory_map import MemoryMap
from tests.gfx942.operands import PRIVATE_APERTURE, SHARED_APERTURE

ALIGNMENT = 64
"""The runtime rounds the block up to this; compilers load past its end, and use nothing of it."""

POISON = bytes.fromhex("addec07f")
"""What bytes without a value hold: 0x7fc0dead, as in registers never written."""


@dataclass(frozen=True)
class Pointer:
    """A pointer to the middle of an array, or past its end.

    Attributes:
        array: The buffer.
        offset_bytes: Added to its address.
    """

    array: np.ndarray
    offset_bytes: int = 0


_NOT_THERE = {
    f"hidden_{name}"
    for name in (
        "none dynamic_lds_size hostcall_buffer multigrid_sync_arg heap_v1 default_queue "
        "completion_action printf_buffer queue_ptr"
    ).split()
}
"""What no runtime here provides: null, so that a kernel that uses it is stopped."""

_APERTURES = {"hidden_private_base": PRIVATE_APERTURE, "hidden_shared_base": SHARED_APERTURE}


@dataclass(frozen=True)
class Shape:
    """How many workgroups, and how many threads in each, per dimension."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]


def block(kernel: Kernel, values: Sequence[Any], shape: Shape, memory: MemoryMap) -> np.ndarray:
    """Return the argument block (uint8); arrays among ``values`` become buffers of ``memory``.

    Raises:
        ValueError: A value is missing, too many, or does not fit its argument.
    """
    explicit = [a for a in kernel.arguments if not a.kind.startswith("hidden_")]
    if len(values) != len(explicit):
        raise ValueError(f"{kernel.name} takes {len(explicit)} arguments, not {len(values)}")
    data = bytearray(POISON * (-(-max(kernel.kernarg_bytes, 1) // ALIGNMENT) * ALIGNMENT // 4))
    for number, (argument, value) in enumerate(zip(explicit, values, strict=True)):
        packed = _explicit(f"args[{number}]", argument, value, memory)
        data[argument.offset : argument.offset + argument.size] = packed
    for argument in kernel.arguments:
        if argument.kind.startswith("hidden_"):
            value = _hidden(argument.kind, shape)
            packed = value.to_bytes(argument.size, "little")
            data[argument.offset : argument.offset + argument.size] = packed
    return np.frombuffer(bytes(data), np.uint8)


def _explicit(name: str, argument: Argument, value: Any, memory: MemoryMap) -> bytes:
    if isinstance(value, np.ndarray):
        value = Pointer(value)
    if isinstance(value, Pointer):
        if argument.size != 8:
            raise ValueError(f"{name}: an array for an argument of {argument.size} bytes")
        address = memory.add_array(name, value.array) + value.offset_bytes
        return address.to_bytes(8, "little")
    if argument.kind == "global_buffer" and value is None:
        return bytes(8)
    if argument.kind == "global_buffer":
        raise ValueError(f"{name}: {value!r} for a pointer; pass an array, a Pointer or None")
    packed = _by_value(name, argument.size, value)
    if len(packed) != argument.size:
        raise ValueError(f"{name}: {value!r} has {len(packed)} bytes, not {argument.size}")
    return packed


def _by_value(name: str, size: int, value: Any) -> bytes:
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, bytes):
        return value
    if isinstance(value, int):
        bits = 8 * size
        if not -(1 << (bits - 1)) <= value < 1 << bits:
            raise ValueError(f"{name}: {value} does not fit {bits} bits")
        return (value & ((1 << bits) - 1)).to_bytes(size, "little")
    if isinstance(value, float):
        return struct.pack({4: "<f", 8: "<d"}[size], value)
    raise ValueError(
        f"{name}: {type(value).__name__}; pass an int, a float, bytes or a numpy value"
    )


def _hidden(kind: str, shape: Shape) -> int:
    """Return a hidden argument. All threads of a grid are there, so remainders are 0."""
    name, _, axis = kind.removeprefix("hidden_").rpartition("_")
    place = "xyz".find(axis)
    if name == "block_count":
        return shape.grid[place]
    if name == "group_size":
        return shape.block[place]
    if name in ("remainder", "global_offset"):
        return 0
    if kind == "hidden_grid_dims":
        used = [k for k in range(3) if shape.grid[k] * shape.block[k] > 1]
        return max(used, default=0) + 1
    if kind in _NOT_THERE:
        return 0
    if kind in _APERTURES:
        return _APERTURES[kind] >> 32
    raise ValueError(f"hidden argument {kind} is not supported")


def dispatch_packet(kernel: Kernel, shape: Shape, kernarg: int) -> np.ndarray:
    """Return the 64-byte packet that ``__builtin_amdgcn_dispatch_ptr()`` points to."""
    threads = [g * b for g, b in zip(shape.grid, shape.block, strict=True)]
    packed = struct.pack(
        "<HH3HH3IIIQQQQ",
        2,  # a kernel dispatch
        3,  # dimensions
        *shape.block,
        0,
        *threads,
        kernel.scratch_bytes,
        kernel.lds_bytes,
        0,
        kernarg,
        0,
        0,
    )
    return np.frombuffer(packed, np.uint8)
