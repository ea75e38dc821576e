"""The stand-in HIP runtime from Python: tensors on its memory, captures, and who executes a launch.

    with standin.fresh() as hip:
        x = hip.empty((4, 64))
        with hip.capture() as graph: ...
        graph.replay()

The tensor's memory is freed, and poisoned, with its last reference. Launches run the code object's
instructions, interpreted (``tests/gfx942``), on the very tensors that the kernel was given.
"""

import atexit
import ctypes
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from sglang_mi300a.launcher import kernels, owners, streams
from tests.gfx942 import toolchain as products
from tests.gfx942.counters import Counters
from tests.gfx942.kernel_arguments import Pointer
from tests.gfx942.machine import Machine

FOLDER = Path(__file__).parent / "standin_hip"
FILE = "libamdhip64.so.7"

NO_BINARY_FOR_GPU = 209
LAUNCH_FAILURE = 719
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_ISOLATION = 905

_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-shared", "-Wall", "-Wextra")


class _Launch(ctypes.Structure):
    _fields_ = (
        ("image", ctypes.c_void_p),
        ("image_bytes", ctypes.c_uint64),
        ("kernel", ctypes.c_char_p),
        ("arguments", ctypes.c_void_p),
        ("num_argument_bytes", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_lds_bytes", ctypes.c_uint32),
        ("device", ctypes.c_int32),
    )


_Execute = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch))


@dataclass(frozen=True)
class Launch:
    """One launch as the runtime executes it; ``arguments`` is the packed block."""

    image: bytes
    kernel: str
    arguments: bytes
    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic_lds_bytes: int
    device: int


class Graph:
    """A captured graph."""

    def __init__(self, hip: "StandIn", handle: int | None = None) -> None:
        """Made empty; :meth:`StandIn.capture` fills it in."""
        self._hip = hip
        self.handle = handle

    def replay(self) -> None:
        """Run all its launches again."""
        self._hip.check("hipGraphLaunch", ctypes.c_void_p(self.handle), None)


def library(folder: Path, flags: Sequence[str] = (), soname: str = FILE) -> Path:
    """Return the stand-in compiled into a folder, under a name that HIP's would have."""
    sources = sorted(FOLDER.glob("*.cpp"))
    key = [products.version("g++"), soname, *flags, *_FLAGS]
    key += [path.read_bytes() for path in sorted(FOLDER.iterdir())]

    def make(out: Path) -> None:
        command = [products.tool("g++"), *_FLAGS, *flags, *sources, "-o", out]
        products.run([*command, f"-Wl,-soname,{soname}"])

    built = products.kept(".so", ["standin", *key], make)
    path = folder / soname
    path.write_bytes(built.read_bytes())
    return path


@cache
def mapped() -> "StandIn":
    """Return the stand-in that is mapped into this process: there is one, as of any HIP runtime."""
    folder = tempfile.TemporaryDirectory(prefix="standin-hip-")
    atexit.register(folder.cleanup)
    return StandIn(library(Path(folder.name)))


@contextmanager
def fresh() -> Iterator["StandIn"]:
    """Give the stand-in as new, executing machine code; forget afterwards what was loaded on it.

    Raises:
        AssertionError: A launch failed while executing, and nobody looked at ``faults``.
    """
    hip = mapped()
    hip.reset()
    hip.execute_machine_code()
    kernels.observers.append(hip.note_buffers)
    try:
        yield hip
    finally:
        kernels.observers.remove(hip.note_buffers)
        kernels._modules.clear()
        owners.release()
    assert hip.faults == []


@cache
def _machine(image: bytes) -> Machine:
    return Machine(products.kept(".co", ["image", image], lambda path: path.write_bytes(image)))


class StandIn:
    """The stand-in runtime, mapped into this process.

    Attributes:
        launches: What was executed since the last reset.
        faults: Exceptions that an executor raised; the launch failed with code 719.
    """

    def __init__(self, path: Path) -> None:
        """Map it, so that the launcher finds it as it would find torch's runtime."""
        self.library = ctypes.CDLL(str(path))
        self.library.hipGetErrorName.restype = ctypes.c_char_p
        self.launches: list[Launch] = []
        self.faults: list[Exception] = []
        # Bytes and writable, by kernel and first address: a graph replays what was noted once.
        self._sizes: dict[tuple[str, int], tuple[int, bool]] = {}
        self._callback = _Execute(self._run)
        self._execute: Callable[[Launch], object] | None = None

    def reset(self) -> None:
        """Forget all: modules, graphs, memory, failures."""
        self.library.mi300aStandinReset()
        self.library.mi300aStandinSetExecute(self._callback)
        self.launches.clear()
        self.faults.clear()
        self._sizes.clear()
        self._execute = None

    def execute_machine_code(self) -> None:
        """Execute each launch with the gfx942 interpreter.

        Each tensor that a kernel was given is a buffer of exactly its bytes, and read-only unless
        the signature says that the kernel writes it.
        """
        self._execute = self.interpret

    def execute(self, executor: Callable[[Launch], object]) -> None:
        """Have a function execute each launch."""
        self._execute = executor

    def check(self, function: str, *arguments: object) -> None:
        """Call a HIP function.

        Raises:
            AssertionError: It did not return hipSuccess.
        """
        code = self.call(function, *arguments)
        assert code == 0, f"{function}: {code} {self.library.hipGetErrorName(code).decode()}"

    def call(self, function: str, *arguments: object) -> int:
        """Call a HIP function; return its code."""
        return int(getattr(self.library, function)(*arguments))

    def fail_next(self, function: str, code: int) -> None:
        """Have the next call of a HIP function return a code."""
        self.library.mi300aStandinFailNext(function.encode(), code)

    def calls(self, function: str) -> int:
        """Return how often a HIP function was called since the last reset."""
        return int(self.library.mi300aStandinCalls(function.encode()))

    @property
    def num_modules(self) -> int:
        """Modules loaded since the last reset."""
        return int(self.library.mi300aStandinNumModules())

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor on the runtime's memory; it is freed when nothing refers to it."""
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        address = ctypes.c_void_p()
        self.check("hipMalloc", ctypes.byref(address), ctypes.c_size_t(num_bytes))
        memory = (ctypes.c_char * num_bytes).from_address(address.value)
        weakref.finalize(memory, self.library.hipFree, ctypes.c_void_p(address.value))
        return torch.frombuffer(memory, dtype=dtype).view(*shape)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor on the runtime's memory."""
        return self.empty(tensor.shape, tensor.dtype).copy_(tensor)

    def is_freed(self, address: int) -> bool:
        """Return whether an address lies in freed memory."""
        return bool(self.library.mi300aStandinIsFreed(ctypes.c_void_p(address)))

    def stream(self) -> int:
        """Return a new stream's handle."""
        handle = ctypes.c_void_p()
        self.check("hipStreamCreate", ctypes.byref(handle))
        assert handle.value is not None
        return handle.value

    def begin_capture(self, stream: int) -> None:
        """Begin to capture a stream."""
        self.check("hipStreamBeginCapture", ctypes.c_void_p(stream), 0)

    def end_capture(self, stream: int) -> tuple[int, int | None]:
        """End a capture; return HIP's code and the graph's handle."""
        handle = ctypes.c_void_p()
        code = self.call("hipStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(handle))
        return code, handle.value

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Capture what is launched inside, on a stream made current; the graph can be replayed."""
        stream, graph = self.stream(), Graph(self)
        self.begin_capture(stream)
        with streams.on_host_stream(stream):
            yield graph
        code, captured = self.end_capture(stream)
        assert code == 0, self.library.hipGetErrorName(code).decode()
        handle = ctypes.c_void_p()
        into = ctypes.byref(handle)
        self.check("hipGraphInstantiate", into, ctypes.c_void_p(captured), None, None, 0)
        graph.handle = handle.value

    def note_buffers(self, kernel: kernels.Kernel, arguments: Sequence[object]) -> None:
        """Note the size of each tensor of a launch: an address alone does not say it."""
        name = kernel.signature.kernel
        here: dict[tuple[str, int], tuple[int, bool]] = {}
        for declared, given in zip(kernel.signature.arguments, arguments, strict=True):
            if isinstance(given, torch.Tensor):
                key = name, given.data_ptr()
                size, writable = here.get(key, (0, False))
                here[key] = (max(size, given.nbytes), writable or declared.written)
        self._sizes.update(here)

    def _run(self, pointer) -> int:
        raw = pointer.contents
        launch = Launch(
            image=ctypes.string_at(raw.image, raw.image_bytes),
            kernel=raw.kernel.decode(),
            arguments=ctypes.string_at(raw.arguments, raw.num_argument_bytes),
            grid=tuple(raw.grid),
            block=tuple(raw.block),
            dynamic_lds_bytes=raw.dynamic_lds_bytes,
            device=raw.device,
        )
        self.launches.append(launch)
        if self._execute is None:
            return 0
        try:
            self._execute(launch)
        except Exception as error:
            self.faults.append(error)
            return LAUNCH_FAILURE
        return 0

    def interpret(self, launch: Launch) -> Counters:
        """Execute a launch's machine code; return what was executed."""
        machine = _machine(launch.image)
        declared = machine.kernel(launch.kernel).arguments
        explicit = [one for one in declared if not one.kind.startswith("hidden_")]
        values = [launch.arguments[one.offset : one.offset + one.size] for one in explicit]
        return machine.launch(
            launch.kernel,
            launch.grid,
            launch.block,
            [
                self._pointer(launch.kernel, int.from_bytes(value, "little"))
                if one.kind == "global_buffer"
                else value
                for one, value in zip(explicit, values, strict=True)
            ],
            dynamic_lds_bytes=launch.dynamic_lds_bytes,
        )

    def _pointer(self, kernel: str, address: int) -> Pointer | None:
        if address == 0:
            return None
        num_bytes, is_writable = self._sizes[kernel, address]
        memory = (ctypes.c_uint8 * num_bytes).from_address(address)
        array = np.frombuffer(memory, np.uint8)
        array.flags.writeable = is_writable
        return Pointer(array)
