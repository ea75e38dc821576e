"""What a kernel's arguments must be, declared once and held against the code object and each call.

    SCALE_ROWS = Signature(
        kernel="scale_rows",
        arguments=(
            Buffer("x", "bfloat16", ("rows", "columns")),
            Buffer("out", "float32", ("rows", "columns"), written=True),
            Buffer("partial", "uint8", (None,), written=True, workspace=True),
            Scalar("columns", "i32"),
            Scalar("factor", "f32"),
        ),
        threads=256,
    )

A size that is a text is the same number wherever it stands in one call, so also where it names a
scalar. This module needs no torch until tensors are given to it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError

if TYPE_CHECKING:
    import torch

Size = int | str | None

_INTEGERS = {"i32": (4, True), "u32": (4, False), "i64": (8, True), "u64": (8, False)}
_FLOATS = {"f32": ("<f", "<I"), "f64": ("<d", "<Q")}
_POINTER_BYTES = 8


@dataclass(frozen=True)
class Buffer:
    """A pointer argument: a contiguous tensor.

    Attributes:
        name: As in the kernel's source.
        dtype: torch's name of it, ``bfloat16``.
        shape: A number, a name, or None (any) for each dimension.
        written: Whether the kernel writes it.
        workspace: Whether it is scratch memory that the caller keeps outside torch's graph pools: a
            graph that saw it keeps it alive (see :mod:`owners`).
        align_bytes: What its address must be a multiple of; kernels load 16 bytes at once.
        optional: Whether None, a null pointer, may be given.
    """

    name: str
    dtype: str
    shape: tuple[Size, ...]
    written: bool = False
    workspace: bool = False
    align_bytes: int = 16
    optional: bool = False


@dataclass(frozen=True)
class Scalar:
    """An argument given by value.

    Attributes:
        name: As in the kernel's source; where a shape has this name, they must agree.
        type: ``i32``, ``u32``, ``i64``, ``u64``, ``f32`` or ``f64``.
    """

    name: str
    type: str

    @property
    def size_bytes(self) -> int:
        """Its size in the argument block."""
        if self.type in _INTEGERS:
            return _INTEGERS[self.type][0]
        return struct.calcsize(_FLOATS[self.type][0])


@dataclass(frozen=True)
class Signature:
    """A kernel as its callers know it.

    Attributes:
        kernel: Its name.
        arguments: In order.
        threads: Of a workgroup; one to three numbers.
    """

    kernel: str
    arguments: tuple[Buffer | Scalar, ...]
    threads: int | tuple[int, ...]

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a workgroup by dimension."""
        sizes = (self.threads,) if isinstance(self.threads, int) else self.threads
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z

    @cached_property
    def checks(self) -> tuple[Callable[[Any, torch.device, dict[str, int]], int], ...]:
        """One function an argument: checks the value given and returns its bits."""
        return tuple(
            _buffer_check(self.kernel, one)
            if isinstance(one, Buffer)
            else _scalar_check(self.kernel, one)
            for one in self.arguments
        )

    def bits(self, values: Sequence[Any], device: torch.device) -> tuple[int, ...]:
        """Return the bits of each argument of one call, zero-extended.

        Args:
            values: Tensors and numbers in the order of the arguments.
            device: Where the tensors must be.

        Raises:
            UserError: One does not fit its argument.
        """
        if len(values) != len(self.arguments):
            raise UserError(
                f"kernel {self.kernel}",
                found=f"{len(values)} arguments",
                allowed=", ".join(one.name for one in self.arguments),
                do="give each once, in this order",
            )
        sizes: dict[str, int] = {}
        return tuple(
            check(value, device, sizes) for check, value in zip(self.checks, values, strict=True)
        )

    def layout(self, code: code_objects.CodeObject) -> tuple[tuple[int, int], ...]:
        """Return (offset, size) of each argument in bytes, from the code object.

        Raises:
            UserError: The code object's kernel is not the declared one: another number of
                arguments, another name, kind or size, or another workgroup.
        """
        kernel = code.kernel(self.kernel)
        there = [_described(one) for one in kernel.arguments]
        declared = [_declared(one) for one in self.arguments]
        if there != declared:
            differ = [
                f"argument {i}: {a} (declared {b})"
                for i, (a, b) in enumerate(zip(there, declared, strict=False))
                if a != b
            ]
            count = f"{len(there)} arguments (declared {len(declared)})"
            raise self._misfit(code, "; ".join(differ) or count)
        x, y, z = self.block
        if kernel.required_block not in (None, self.block) or x * y * z > kernel.max_threads:
            block = kernel.required_block or f"at most {kernel.max_threads}"
            raise self._misfit(code, f"workgroups of {block} threads (declared {self.block})")
        if (x * y * z) % kernel.wave_size or kernel.wave_size != 64:
            raise self._misfit(code, f"{x * y * z} threads, waves of {kernel.wave_size}")
        return tuple((one.offset_bytes, one.size_bytes) for one in kernel.arguments)

    def _misfit(self, code: code_objects.CodeObject, found: str) -> UserError:
        return UserError(
            f"{code.where}, kernel {self.kernel}",
            found=found,
            allowed="the kernel that this package's Python declares",
            do="build the kernels and the package from one source: `make setup`",
        )


def _described(one: code_objects.Argument) -> str:
    return f"{one.name} {'pointer' if one.kind == 'global_buffer' else one.kind} {one.size_bytes} B"


def _declared(one: Buffer | Scalar) -> str:
    if isinstance(one, Buffer):
        return f"{one.name} pointer {_POINTER_BYTES} B"
    return f"{one.name} by_value {one.size_bytes} B"


def _buffer_check(kernel: str, one: Buffer) -> Callable[[Any, torch.device, dict[str, int]], int]:
    import torch

    dtype = getattr(torch, one.dtype)
    num_dims = len(one.shape)
    fixed = tuple((i, size) for i, size in enumerate(one.shape) if isinstance(size, int))
    named = tuple((i, size) for i, size in enumerate(one.shape) if isinstance(size, str))

    def check(value: Any, device: torch.device, sizes: dict[str, int]) -> int:
        if value is None and one.optional:
            return 0
        if not isinstance(value, torch.Tensor):
            raise refused(f"a {type(value).__name__}", "a tensor")
        if value.device != device:
            raise refused(f"a tensor on {value.device}", f"on {device}, like the kernel")
        if value.dtype != dtype:
            raise refused(str(value.dtype), str(dtype))
        shape = value.shape
        if len(shape) != num_dims:
            raise refused(f"shape {tuple(shape)}", _shape(one.shape))
        for i, size in fixed:
            if shape[i] != size:
                raise refused(f"shape {tuple(shape)}", _shape(one.shape))
        for i, name in named:
            if sizes.setdefault(name, shape[i]) != shape[i]:
                raise refused(f"shape {tuple(shape)}", f"{_shape(one.shape)}, {name}={sizes[name]}")
        if not value.is_contiguous():
            raise refused(f"strides {value.stride()} of shape {tuple(shape)}", "contiguous")
        address = value.data_ptr()
        if address % one.align_bytes:
            raise refused(f"address {address:#x}", f"a multiple of {one.align_bytes} bytes")
        return address

    def refused(found: str, allowed: str) -> UserError:
        return _refused(kernel, one.name, found, allowed)

    return check


def _scalar_check(kernel: str, one: Scalar) -> Callable[[Any, torch.device, dict[str, int]], int]:
    if one.type in _FLOATS:
        form, bits_form = _FLOATS[one.type]

        def check_float(value: Any, device: torch.device, sizes: dict[str, int]) -> int:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise _refused(kernel, one.name, f"a {type(value).__name__}", "a float")
            try:
                packed = struct.pack(form, value)
            except OverflowError as error:
                raise _refused(kernel, one.name, repr(value), f"an {one.type}") from error
            bits: int = struct.unpack(bits_form, packed)[0]
            return bits

        return check_float

    size_bytes, is_signed = _INTEGERS[one.type]
    low = -(1 << (8 * size_bytes - 1)) if is_signed else 0
    high = low + (1 << 8 * size_bytes) - 1
    mask = (1 << 8 * size_bytes) - 1

    def check_integer(value: Any, device: torch.device, sizes: dict[str, int]) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _refused(kernel, one.name, f"a {type(value).__name__}", "an int")
        if not low <= value <= high:
            raise _refused(kernel, one.name, str(value), f"{low} to {high} ({one.type})")
        if sizes.setdefault(one.name, value) != value:
            raise _refused(kernel, one.name, str(value), f"{sizes[one.name]}, as in the shapes")
        return value & mask

    return check_integer


def _shape(shape: tuple[Size, ...]) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"


def _refused(kernel: str, argument: str, found: str, allowed: str) -> UserError:
    return UserError(
        f"kernel {kernel}, argument {argument}",
        found=found,
        allowed=allowed,
        do="give what the kernel was written for; nothing was launched",
    )
