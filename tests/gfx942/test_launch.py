"""Launching: grids, arguments, orders of waves, counters."""

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.gfx942 import code_object, kernel_arguments, toolchain
from tests.gfx942.kernel_arguments import Pointer, Shape
from tests.gfx942.machine import Machine
from tests.gfx942.memory_map import MemoryMap
from tests.gfx942.oracles import bench

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def grid_machine():
    return Machine(toolchain.compile_hip(PROGRAMS / "grid.hip"))


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_every_thread_of_a_grid_runs_once_with_its_own_ids(grid_machine, order):
    grid, block = (3, 2, 2), (10, 4, 3)
    seen = np.zeros((*(g * b for g, b in zip(grid[::-1], block[::-1], strict=True)), 3), np.uint32)
    grid_machine.launch("where_am_i", grid, block, [seen], wave_order=order)
    z, y, x = np.indices(seen.shape[:3])
    np.testing.assert_array_equal(seen, np.stack([x, y, z], -1))


def test_structs_numbers_and_pointers_arrive_as_given(grid_machine):
    values = np.arange(10, dtype=np.float64)
    out = np.zeros(8, np.float64)
    packed = struct.pack("<ifq", -3, 0.5, 1 << 40)
    arguments = [packed, np.float32(2.5), -7, 1.25, Pointer(values, 24), None, True, out]
    grid_machine.launch("arguments", (1,), (1,), arguments)
    assert out.tolist() == [-3, 0.5, float(1 << 40), 2.5, -7, 1.25, 3.0, 1.0]


def test_one_array_passed_twice_is_one_buffer_and_views_lie_in_it():
    memory = MemoryMap()
    array = np.zeros(100, np.uint32)
    base = memory.add_array("first", array)
    assert memory.add_array("again", array) == base
    assert memory.add_array("part", array[10:20]) == base + 40
    assert len(memory.buffers) == 1
    other = memory.add_array("other", np.zeros(5, np.uint8))
    assert other - base > 1 << 20
    with pytest.raises(ValueError, match="not contiguous"):
        memory.add_array("strided", array[::2])
    memory = MemoryMap()
    memory.add_array("part", array[10:20])
    with pytest.raises(ValueError, match="pass the larger one first"):
        memory.add_array("whole", array)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([np.zeros(4, np.float32)] * 3, "takes 4 arguments, not 3"),
        ([np.zeros(4, np.float32)] * 4, "an array for an argument of 4 bytes"),
        ([*[np.zeros(4, np.float32)] * 3, 1 << 32], "does not fit 32 bits"),
        ([*[np.zeros(4, np.float32)] * 3, np.float64(1)], "has 8 bytes, not 4"),
        ([*[np.zeros(4, np.float32)] * 3, "4"], "str; pass an int"),
        ([5, *[np.zeros(4, np.float32)] * 2, 4], "for a pointer"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(values, problem):
    machine = Machine(toolchain.compile_hip(PROGRAMS / "vector_add.hip"))
    with pytest.raises(ValueError, match=problem):
        machine.launch("vector_add", (1,), (64,), values)


def test_launches_that_do_not_fit_the_kernel_are_refused():
    machine = Machine(toolchain.compile_hip(PROGRAMS / "vector_add.hip"))
    arrays = [np.zeros(512, np.float32)] * 3
    with pytest.raises(ValueError, match="compiled for 256 threads, not 512"):
        machine.launch("vector_add", (1,), (512,), [*arrays, 512])
    with pytest.raises(ValueError, match="no kernel 'vector_sub'; there are"):
        machine.launch("vector_sub", (1,), (64,), [])
    with pytest.raises(ValueError, match="bytes of LDS"):
        machine.launch("vector_add", (1,), (64,), [*arrays, 64], dynamic_lds_bytes=65537)
    with pytest.raises(ValueError, match="empty launch"):
        machine.launch("vector_add", (0,), (64,), [*arrays, 64])


def test_a_kernel_that_flushes_denormals_is_refused():
    flushing = bench.source(["v_nop"]).replace("denorm_mode_32 3", "denorm_mode_32 0")
    machine = Machine(toolchain.assemble(flushing))
    with pytest.raises(ValueError, match="float mode 0xc0, not 0xf0"):
        bench.execute(machine, "k0", np.zeros((1, 1, 64), np.uint32))


def test_metadata_gives_registers_spills_lds_and_scratch():
    kernel = Machine(toolchain.compile_hip(PROGRAMS / "weight_ring.hip")).kernel("weight_ring")
    assert kernel.lds_bytes == 2 * 8 * 64 * 4
    assert (kernel.vgpr_spills, kernel.sgpr_spills, kernel.scratch_bytes) == (0, 0, 0)
    assert 16 < kernel.vgprs <= 64
    assert kernel.most_threads == 512


def test_a_file_that_is_no_code_object_is_refused(tmp_path):
    path = tmp_path / "not.co"
    path.write_bytes(b"\x7fELF" + bytes(100))
    with pytest.raises(ValueError, match="not an AMDGPU code object"):
        code_object.CodeObject(path)


def test_hidden_arguments_say_the_grid():
    machine = Machine(toolchain.compile_hip(PROGRAMS / "vector_add.hip"))
    kernel = machine.kernel("vector_add")
    arrays = [np.zeros(4, np.float32)] * 3
    shape = Shape((5, 6, 7), (64, 2, 1))
    data = kernel_arguments.block(kernel, [*arrays, 9], shape, MemoryMap()).tobytes()
    by_kind = {a.kind: a for a in kernel.arguments}
    for axis, groups, threads in zip("xyz", shape.grid, shape.block, strict=True):
        at = by_kind[f"hidden_block_count_{axis}"].offset
        assert struct.unpack_from("<I", data, at)[0] == groups
        at = by_kind[f"hidden_group_size_{axis}"].offset
        assert struct.unpack_from("<H", data, at)[0] == threads
    assert struct.unpack_from("<H", data, by_kind["hidden_grid_dims"].offset)[0] == 3


def test_instructions_are_counted_by_class_mnemonic_and_place():
    machine = Machine(toolchain.compile_hip(PROGRAMS / "vector_add.hip"))
    arrays = [np.zeros(1024, np.float32)] * 3
    counters = machine.launch("vector_add", (4,), (256,), [*arrays, 700])
    waves, working = 16, 11  # 700 threads are 10 waves and a part of the next
    assert counters.waves == waves
    assert counters.by_class["vmem_load"] == 2 * working
    assert counters.by_class["vmem_store"] == working
    assert counters.by_mnemonic["v_add_f32"] == working
    assert counters.by_class["branch"] == 2 * waves  # s_cbranch_execz and s_endpgm
    assert counters.instructions == sum(counters.by_class.values())
    (store,) = [use for use in counters.memory if use.line.mnemonic == "global_store_dword"]
    assert (store.executed, store.lanes) == (working, 700)
    assert store.segments == 44  # 700 floats of 4 bytes reach into 44 segments of 64
    assert counters.at(store.line.pc) == working
    assert counters.rate > 0
    assert "vector_add: 16 waves" in str(counters)


@pytest.mark.parametrize(
    ("step_bytes", "width", "segments"),
    [(0, "dword", 1), (4, "dword", 4), (64, "dword", 64), (16, "dwordx4", 16), (60, "dwordx4", 61)],
)
def test_segments_are_the_distinct_64_byte_pieces_an_instruction_touches(
    step_bytes, width, segments
):
    words = 4 if width == "dwordx4" else 1
    result = "v[20:23]" if words == 4 else "v20"
    text = f"v_mul_u32_u24 v3, {step_bytes}, v0\n  global_load_{width} {result}, v3, s[8:9]"
    machine = bench.assembled([text])
    scalars = np.zeros((1, 2048), np.uint32)
    scalars[0, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = 0xFFFFFFFF
    outputs = np.zeros((1, bench.NUM_OUTPUTS, 64), np.uint32)
    inputs = np.zeros((1, bench.NUM_VECTOR_INPUTS, 64), np.uint32)
    counters = machine.launch("k0", (1,), (64,), [inputs, outputs, scalars])
    (use,) = [u for u in counters.memory if "v3, s[8:9]" in u.line.text]
    expected = {(lane * step_bytes + k) // 64 for lane in range(64) for k in range(4 * words)}
    assert use.segments == len(expected)
    assert segments == use.segments or step_bytes == 60


def test_a_random_order_is_the_same_for_the_same_seed_and_differs_for_another():
    machine = Machine(toolchain.compile_hip(PROGRAMS / "atomics.hip"))

    def order(seed):
        taken = np.zeros(512, np.uint32)
        arguments = [np.zeros(1, np.uint32), taken]
        machine.launch("tickets", (2,), (256,), arguments, wave_order="random", seed=seed)
        return taken.tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_instructions_of_all_waves_are_counted():
    machine = Machine(toolchain.compile_hip(PROGRAMS / "tile_gemm.hip"))
    m = n = k = 128
    a, b = np.full((m, k), 0x3F80, np.uint16), np.full((n, k), 0x3F80, np.uint16)
    c = np.zeros((m, n), np.float32)
    counters = machine.launch("tile_gemm", (n // 64, m // 16), (256,), [a, b, c, n, k])
    assert (c == k).all()
    assert counters.waves == (n // 64) * (m // 16) * 4
    assert counters.by_class["mfma"] * 16 * 16 * 16 == m * n * k
