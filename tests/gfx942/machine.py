"""Launching a kernel of a code object on host arrays."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.gfx942 import binding, disassembly, faults, kernel_arguments
from tests.gfx942.code_object import LOAD_BASE, CodeObject, Kernel
from tests.gfx942.counters import Counters, UninitialisedRead
from tests.gfx942.decode import Decoder
from tests.gfx942.disassembly import Line
from tests.gfx942.kernel_arguments import Shape
from tests.gfx942.memory_map import MemoryMap

WaveOrder = Literal["forward", "reverse", "random"]
_ORDERS: dict[str, int] = {"forward": 0, "reverse": 1, "random": 2}

LDS_BYTES = 65536
"""Of a compute unit, and so the most a workgroup can have. ISA guide, chapter 11."""

_MOST_UNINITIALISED = 64
_KERNARG_BASE = 0x7E00_0000_0000
_PACKET_BASE = 0x7E10_0000_0000


class Machine:
    """A loaded code object.

    Attributes:
        code: Its metadata.
        lines: All its instructions.
    """

    def __init__(self, code_object: str | Path) -> None:
        """Load and decode a code object for gfx942."""
        self.code = CodeObject(Path(code_object))
        self.lines = disassembly.read(Path(code_object))
        self._core = binding.core()
        self._index = {line.pc: number for number, line in enumerate(self.lines)}
        self._records = np.zeros(len(self.lines), self._core.instruction)
        decoder = Decoder(self._core.opcodes)
        self._reasons = [
            decoder.decode(line, self._records[k], self._index.__getitem__)
            for k, line in enumerate(self.lines)
        ]
        first, last = self.lines[0], self.lines[-1]
        self._code_base = first.pc
        self._index_of_word = np.full((last.pc + last.num_bytes - first.pc) // 4, -1, np.int32)
        for pc, number in self._index.items():
            self._index_of_word[(pc - first.pc) // 4] = number
        names = self._core.classes
        classes = {row.name: names[row.issue_class] for row in self._core.opcodes.values()}
        self._classes = [classes.get(line.mnemonic, "valu") for line in self.lines]

    def kernel(self, name: str) -> Kernel:
        """Return a kernel's metadata: register counts, spills, LDS and scratch sizes, arguments."""
        try:
            return self.code.kernels[name]
        except KeyError:
            raise ValueError(f"no kernel {name!r}; there are {sorted(self.code.kernels)}") from None

    def instructions(self, name: str) -> list[Line]:
        """Return the instructions of one kernel (or function), without the padding after its
        end."""
        lines = [line for line in self.lines if line.symbol == name]
        while lines and lines[-1].mnemonic == "s_nop":
            lines.pop()
        return lines

    def unknown(self, name: str) -> list[tuple[Line, str]]:
        """Return the instructions of one kernel that would stop it when reached, and why."""
        return [
            (line, reason)
            for line, reason in zip(self.lines, self._reasons, strict=True)
            if reason and line.symbol == name
        ]

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        *,
        wave_order: WaveOrder = "forward",
        seed: int = 0,
        dynamic_lds_bytes: int = 0,
        check_races: bool = True,
        most_instructions: int = 2_000_000_000,
    ) -> Counters:
        """Run a kernel to its end and return what it executed.

        Args:
            kernel: Its name.
            grid: Workgroups in up to three dimensions (not threads).
            block: Threads of a workgroup in up to three dimensions.
            args: One value per argument of the kernel. A numpy array stands for a pointer to its
                bytes and is written in place; ``Pointer(array, offset_bytes)`` points into one;
                None is a null pointer. By-value arguments take a numpy scalar or bytes of the
                argument's size, an int that fits it, or a float.
            wave_order: Of the waves of a workgroup, and of the workgroups. ``forward`` and
                ``reverse`` run a wave up to a barrier before the next; ``random`` changes the
                wave after each instruction.
            seed: Of the random order.
            dynamic_lds_bytes: LDS beside what the kernel declares.
            check_races: Stop at two uses of an LDS word that no barrier separates.
            most_instructions: Stop after so many.

        Raises:
            Fault: One of ``faults``: the program did what it must not do.
            ValueError: The launch does not fit the kernel.
        """
        facts = self.kernel(kernel)
        shape = Shape(_three(grid), _three(block))
        _check(facts, shape, dynamic_lds_bytes)
        memory = MemoryMap()
        arguments = kernel_arguments.block(facts, args, shape, memory)
        for number, segment in enumerate(self.code.segments):
            name = f"segment {number} of the code object"
            memory.add_fixed(name, LOAD_BASE + segment.address, segment.data)
        memory.add_fixed("the kernel's arguments", _KERNARG_BASE, arguments.tobytes())
        packet = kernel_arguments.dispatch_packet(facts, shape, _KERNARG_BASE)
        memory.add_fixed("the dispatch packet", _PACKET_BASE, packet.tobytes())

        allocations = memory.records(self._core.allocation)
        user_scalars = _user_scalars(facts)
        executed, segments, lanes = (np.zeros(len(self.lines), np.uint64) for _ in range(3))
        uninitialised = np.zeros(_MOST_UNINITIALISED, self._core.uninitialised)
        fault_text = np.zeros(256, np.uint8)
        launch = np.zeros(1, self._core.launch)
        values = {
            "instructions": self._records,
            "num_instructions": len(self.lines),
            "index_of_word": self._index_of_word,
            "code_base": LOAD_BASE + self._code_base,
            "load_base": LOAD_BASE,
            "code_words": len(self._index_of_word),
            "allocations": allocations,
            "num_allocations": len(allocations),
            "user_scalars": user_scalars,
            "num_user_scalars": len(user_scalars),
            "workgroup_ids": facts.rsrc2 >> 7 & 7,
            "entry": self._index[facts.entry],
            "lds_bytes": facts.lds_bytes + dynamic_lds_bytes,
            "scratch_bytes": facts.scratch_bytes,
            "order": _ORDERS[wave_order],
            "seed": seed,
            "most_instructions": most_instructions,
            "executed": executed,
            "segments": segments,
            "lanes": lanes,
            "uninitialised": uninitialised,
            "most_uninitialised": len(uninitialised),
            "check_races": check_races,
            "fault_text": fault_text,
            "fault_text_bytes": fault_text.nbytes,
        }
        for axis, groups, threads in zip("xyz", shape.grid, shape.block, strict=True):
            values["grid_" + axis], values["block_" + axis] = groups, threads
        for name, value in values.items():
            launch[0][name] = value.ctypes.data if isinstance(value, np.ndarray) else value

        start = time.thread_time()
        finished = self._core.run(launch)
        seconds = time.thread_time() - start
        if not finished:
            raise self._fault(launch[0], bytes(fault_text).partition(b"\0")[0].decode(), memory)
        workgroups = int(np.prod(shape.grid))
        return Counters(
            kernel=kernel,
            lines=self.lines,
            classes=self._classes,
            executed=executed,
            lanes=lanes,
            segments=segments,
            waves=workgroups * ((int(np.prod(shape.block)) + 63) // 64),
            workgroups=workgroups,
            seconds=seconds,
            uninitialised_reads=tuple(
                self._uninitialised(one) for one in uninitialised[: launch[0]["num_uninitialised"]]
            ),
        )

    def _line_at(self, pc: int) -> Line:
        return self.lines[self._index[int(pc)]]

    def _uninitialised(self, record) -> UninitialisedRead:
        index = int(record["register_index"])
        if index < 0:
            name = "LDS"
        elif index >= 1000:
            name = f"s{index - 1000}"
        else:
            name = f"v{index}" if index < 256 else f"a{index - 256}"
        line = self._line_at(record["pc"])
        return UninitialisedRead(
            line.where, line.text, name, int(record["workgroup"]), int(record["wave"])
        )

    def _fault(self, launch, what: str, memory: MemoryMap) -> faults.Fault:
        kind = faults.BY_NAME[self._core.faults[int(launch["fault_kind"]) - 1]]
        number = int(launch["fault_index"])
        line = self.lines[number]
        address, other_pc = int(launch["fault_address"]), int(launch["fault_other_pc"])
        lane = int(launch["fault_lane"])
        parts = [f"{line.text!r} at {line.where}"]
        parts.append(f"workgroup {launch['fault_group']}, wave {launch['fault_wave']}")
        if lane >= 0:
            parts[-1] += f", lane {lane}"
        if reason := what or self._reasons[number]:
            parts.append(reason)
        if address:
            parts.append(f"address {address:#x}")
        in_memory = kind in (faults.OutOfBounds, faults.ReadOnly) and "LDS" not in what
        if in_memory and "scratch" not in what:
            parts.append(memory.nearest(address))
        if other_pc >= 0:
            other = self._line_at(other_pc)
            parts.append(f"the other one is {other.text!r} at {other.where}")
        return kind(
            "; ".join(parts),
            pc=line.pc,
            text=line.text,
            lane=lane,
            wave=int(launch["fault_wave"]),
            workgroup=int(launch["fault_group"]),
            address=address,
            other_pc=other_pc,
        )


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return int(x), int(y), int(z)


def _check(kernel: Kernel, shape: Shape, dynamic_lds_bytes: int) -> None:
    threads = int(np.prod(shape.block))
    if min(*shape.grid, *shape.block) < 1:
        raise ValueError(f"{kernel.name}: empty launch, {shape}")
    if threads > kernel.most_threads:
        raise ValueError(
            f"{kernel.name} is compiled for {kernel.most_threads} threads, not {threads}"
        )
    if kernel.lds_bytes + dynamic_lds_bytes > LDS_BYTES:
        raise ValueError(f"{kernel.name}: {kernel.lds_bytes} + {dynamic_lds_bytes} bytes of LDS")
    # FLOAT_ROUND_MODE, bits 12..15, all to nearest even; FLOAT_DENORM_MODE, bits 16..19, all kept.
    if kernel.rsrc1 >> 12 & 0xFF != 0xF0:
        raise ValueError(f"{kernel.name}: float mode {kernel.rsrc1 >> 12 & 0xFF:#x}, not 0xf0")
    # DX10_CLAMP (bit 21) and IEEE_MODE (bit 23) on, FP16_OVFL (bit 26) off.
    if kernel.rsrc1 >> 21 & 0b100101 != 0b000101:
        raise ValueError(f"{kernel.name}: rsrc1 {kernel.rsrc1:#x} asks for another float mode")
    if kernel.preloaded_arguments:
        raise ValueError(f"{kernel.name}: preloaded arguments are not supported")


def _user_scalars(kernel: Kernel) -> np.ndarray:
    """Return s0 and following as the hardware fills them in. LLVM's "Initial Kernel Execution
    State": in this order, as far as the kernel descriptor asks for them."""
    words: list[int] = []
    for bit, name, count in (
        (0, "private segment buffer", 4),
        (1, "dispatch packet", 2),
        (2, "queue", 2),
        (3, "arguments", 2),
        (4, "dispatch id", 2),
        (5, "flat scratch", 2),
        (6, "private segment size", 1),
    ):
        if not kernel.properties >> bit & 1:
            continue
        values = {"dispatch packet": _PACKET_BASE, "arguments": _KERNARG_BASE}
        values |= {"dispatch id": 0, "queue": 0}  # there is no queue: null
        if name not in values:
            raise ValueError(f"{kernel.name}: user scalar {name} is not supported")
        words += [values[name] & 0xFFFFFFFF, values[name] >> 32][:count]
    return np.array(words, np.uint32)
