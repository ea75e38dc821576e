"""What a program must not do stops it, and the message says where and why."""

from pathlib import Path

import numpy as np
import pytest

from tests.gfx942 import faults, toolchain
from tests.gfx942.machine import Machine
from tests.gfx942.memory_map import FIRST_ADDRESS
from tests.gfx942.oracles import bench

PROGRAMS = Path(__file__).parent / "programs"
POISON = 0x7FC0DEAD


def program(name):
    return Machine(toolchain.compile_hip(PROGRAMS / f"{name}.hip"))


def test_an_access_past_a_buffer_names_lane_address_and_nearest_buffer():
    machine = program("vector_add")
    a, b, total = np.zeros((3, 300), np.float32)
    with pytest.raises(faults.OutOfBounds) as caught:
        machine.launch("vector_add_unchecked", (2,), (256,), [a, b, total])
    fault = caught.value
    assert (fault.workgroup, fault.wave, fault.lane) == (1, 0, 44)  # thread 300
    assert fault.text.startswith("global_load_dword")
    assert fault.address == FIRST_ADDRESS + 1200
    assert "0 bytes after the end of args[0] (1200 bytes" in str(fault)
    assert f"{fault.pc:#x} vector_add_unchecked+" in str(fault)


def test_a_null_pointer_and_an_address_between_buffers_hit_nothing():
    machine = program("vector_add")
    a, total = np.zeros((2, 64), np.float32)
    with pytest.raises(faults.OutOfBounds, match="address 0x|bytes before"):
        machine.launch("vector_add_unchecked", (1,), (64,), [a, None, total])


def test_a_view_has_its_own_bounds():
    machine = program("vector_add")
    array = np.arange(1000, dtype=np.float32)
    a, b, total = array[:64], array[100:164].copy(), np.zeros(64, np.float32)
    machine.launch("vector_add", (1,), (64,), [a, b, total, 64])
    np.testing.assert_array_equal(total, a + b)
    with pytest.raises(faults.OutOfBounds):
        machine.launch("vector_add", (1,), (128,), [a, b, np.zeros(128, np.float32), 65])


def test_a_store_to_a_read_only_array_is_refused():
    machine = program("vector_add")
    a, b, total = np.zeros((3, 64), np.float32)
    total.flags.writeable = False
    with pytest.raises(faults.ReadOnly, match=r"args\[2\]"):
        machine.launch("vector_add", (1,), (64,), [a, b, total, 64])


def test_a_missing_barrier_is_found_in_every_order():
    machine = program("lds_reduce")
    values, totals = np.ones(1024, np.uint32), np.zeros(1, np.uint32)
    for order in ("forward", "reverse", "random"):
        with pytest.raises(faults.LdsRace, match="without a barrier") as caught:
            machine.launch(
                "lds_reduce_without_barriers", (1,), (256,), [values, totals], wave_order=order
            )
        assert caught.value.other_pc > 0
    machine.launch("lds_reduce_without_barriers", (1,), (256,), [values, totals], check_races=False)


def test_a_value_handed_over_by_a_barrier_must_have_been_waited_for():
    machine = program("barriers")
    out = np.zeros(64, np.uint32)
    machine.launch("handed_over", (1,), (128,), [out])
    np.testing.assert_array_equal(out, np.arange(1, 65))
    with pytest.raises(faults.LdsRace, match="read without a barrier since another wave wrote it"):
        machine.launch("handed_over_too_early", (1,), (128,), [out])
    with pytest.raises(faults.LdsRace):
        machine.launch("written_again", (1,), (128,), [out])


def test_lds_that_was_never_written_holds_poison_and_is_noted():
    machine = program("lds_reduce")
    out = np.zeros(256, np.uint32)
    counters = machine.launch("lds_unwritten", (2,), (256,), [out])
    np.testing.assert_array_equal(out[:128], np.arange(128, 256))
    assert (out[128:] == POISON).all()
    assert {read.register for read in counters.uninitialised_reads} == {"LDS"}


def run(text, lds_bytes=0, scratch_bytes=0, **scalars):
    machine = bench.assembled([text], lds_bytes=lds_bytes, scratch_bytes=scratch_bytes)
    return bench.execute(machine, "k0", np.zeros((1, bench.NUM_VECTOR_INPUTS, 64), np.uint32))[0]


def test_registers_that_were_never_written_hold_poison_and_are_noted_once_a_wave():
    machine = bench.assembled(["v_mov_b32 v20, v30\n  v_mov_b32 v21, v30\n  s_mov_b32 s40, s50"])
    inputs = np.zeros((1, bench.NUM_VECTOR_INPUTS, 64), np.uint32)
    outputs = np.zeros((1, bench.NUM_OUTPUTS, 64), np.uint32)
    scalars = np.zeros((1, bench.NUM_SCALAR_INPUTS), np.uint32)
    scalars[0, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = 0xFFFFFFFF
    counters = machine.launch("k0", (1,), (64,), [inputs, outputs, scalars])
    assert (outputs[0, :2] == POISON).all()
    assert bench.scalar_result(outputs[0], 1) == POISON
    assert [read.register for read in counters.uninitialised_reads] == ["v30", "s50"]
    assert "v_mov_b32_e32 v20, v30" in str(counters.uninitialised_reads[0])
    assert np.isnan(np.uint32(POISON).view(np.float32))


def test_lds_and_scratch_have_bounds():
    with pytest.raises(faults.OutOfBounds, match="4 bytes of LDS, of 256"):
        run("ds_read_b32 v20, v1 offset:4", lds_bytes=256)
    with pytest.raises(faults.OutOfBounds, match="8 bytes of scratch, of 16"):
        run("scratch_load_dwordx2 v[20:21], off, off offset:12", scratch_bytes=16)


def test_atomics_and_scalar_loads_are_aligned():
    with pytest.raises(faults.Misaligned, match="atomic"):
        run("global_atomic_add v1, v10, s[6:7] offset:2")
    with pytest.raises(faults.Misaligned, match="LDS atomic"):
        run("ds_add_u64 v1, v[10:11] offset:4", lds_bytes=512)
    with pytest.raises(faults.Misaligned, match="scalar load"):
        run("s_load_dword s40, s[8:9], 0x2")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v_cvt_pknorm_i16_f32 v20, v10, v12", "no semantics"),
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 1", "no semantics"),
        ("s_getreg_b32 s40, hwreg(HW_REG_MODE)", "hardware register"),
        ("v_add_f32 v20, v10, v12 mul:2", "modifier mul"),
        ("v_mfma_f32_32x32x8_bf16 a[0:15], v[10:11], v[12:13], 0 cbsz:1", "modifier cbsz"),
        ("buffer_load_dword v20, v10, s[36:39], 0 idxen", "buffer index"),
        ("v_pk_mul_f32 v[20:21], v[10:11], 2.0", "high half of a constant"),
        ("v_mov_b32 v20, src_shared_base", "32-bit operand"),
    ],
)
def test_an_instruction_without_semantics_stops_with_its_text_and_the_reason(text, reason):
    machine = bench.assembled([text])
    ((_, known_reason),) = machine.unknown("k0")
    assert reason in known_reason
    with pytest.raises(faults.UnknownInstruction, match=reason) as caught:
        run(text)
    assert caught.value.text.split()[0].removesuffix("_e32").removesuffix("_e64") in text


def test_an_unknown_instruction_that_is_not_reached_does_no_harm():
    text = "s_branch after\n  v_cvt_pknorm_i16_f32 v20, v10, v12\nafter:\n  v_mov_b32 v20, 5"
    assert (run(text)[0] == 5).all()


def test_control_must_go_where_an_instruction_starts():
    with pytest.raises(faults.BadBranch, match="no instruction starts there"):
        run("s_mov_b64 s[40:41], 0x1234\n  s_setpc_b64 s[40:41]")


def test_an_endless_loop_ends_at_the_limit():
    machine = bench.assembled(["again:\n  s_branch again"])
    arrays = [np.zeros(4096, np.uint32) for _ in range(3)]
    arrays[2][bench.EXEC_INPUT] = 1
    with pytest.raises(faults.InstructionLimit, match="1000"):
        machine.launch("k0", (1,), (64,), arrays, most_instructions=1000)


def test_a_buffer_descriptor_with_a_stride_is_refused():
    setup = (
        "s_mov_b32 s36, s8\n  s_or_b32 s37, s9, 0x100000\n  s_mov_b32 s38, 64\n  s_mov_b32 s39, 0"
    )
    with pytest.raises(faults.UnknownInstruction, match="stride"):
        run(f"{setup}\n  buffer_load_dword v20, v10, s[36:39], 0 offen")
