"""A register that a load writes must not be used before an s_waitcnt that covers the load.

ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapter 4.4 (data dependency
resolution): VM_CNT counts vector memory instructions, which return in order; LGKM_CNT counts LDS,
in order, and scalar memory, in any order; flat instructions count in both."""

import numpy as np
import pytest

from tests.gfx942 import faults
from tests.gfx942.oracles import bench

LOAD, LOAD_2 = "global_load_dword v20, v1, s[4:5]", "global_load_dword v21, v1, s[4:5] offset:256"
LDS_LOAD, LDS_LOAD_2 = "ds_read_b32 v20, v1", "ds_read_b32 v21, v1"
STORE = "global_store_dword v1, v10, s[6:7]"
SCALAR_LOAD = "s_load_dword s40, s[8:9], 0x0"
FILL = "ds_write_b32 v1, v10\n  s_waitcnt lgkmcnt(0)"
USE, USE_2, USE_SCALAR = "v_mov_b32 v22, v20", "v_mov_b32 v22, v21", "s_mov_b32 s41, s40"
FLAT = """v_mov_b32 v2, v1
  v_mov_b32 v3, 0
  v_lshl_add_u64 v[4:5], v[2:3], 0, s[4:5]
  flat_load_dword v20, v[4:5]"""
HALF_LOADED = "s_mov_b64 exec, 0xffff\n  " + LOAD


def lines(*parts):
    return "\n  ".join(parts)


FINE = {
    "a load waited for": lines(LOAD, "s_waitcnt vmcnt(0)", USE),
    "the older of two loads": lines(LOAD, LOAD_2, "s_waitcnt vmcnt(1)", USE),
    "a load before a store, which counts too": lines(LOAD, STORE, "s_waitcnt vmcnt(1)", USE),
    "an LDS load waited for": lines(FILL, LDS_LOAD, "s_waitcnt lgkmcnt(0)", USE),
    "the older of two LDS loads": lines(FILL, LDS_LOAD, LDS_LOAD_2, "s_waitcnt lgkmcnt(1)", USE),
    "a scalar load waited for": lines(SCALAR_LOAD, "s_waitcnt lgkmcnt(0)", USE_SCALAR),
    "a second load into the register": lines(LOAD, LOAD, "s_waitcnt vmcnt(0)", USE),
    "other lanes than the loaded ones": lines(HALF_LOADED, "s_mov_b64 exec, 0xf0000", USE),
    "the word that packed math leaves out": lines(
        LOAD_2, "v_pk_mul_f32 v[22:23], v[10:11], v[20:21] op_sel_hi:[1,0]", "s_waitcnt vmcnt(0)"
    ),
    "another register": lines(LOAD, "v_mov_b32 v22, v10"),
    "a flat load waited for twice": lines(FLAT, "s_waitcnt vmcnt(0) lgkmcnt(0)", USE),
    "another lane by readlane": lines(HALF_LOADED, "v_readlane_b32 s41, v20, 40"),
    "a load into an accumulator": lines(
        "global_load_dword a0, v1, s[4:5]", "s_waitcnt vmcnt(0)", "v_accvgpr_read_b32 v22, a0"
    ),
}
# What reads too early, the instruction that loads, and the counted wait that does not cover it.
TOO_EARLY = {
    "no wait": (LOAD, USE),
    "the younger of two loads": (LOAD, lines(LOAD_2, "s_waitcnt vmcnt(1)", USE_2)),
    "a load after a store": (STORE, lines(LOAD, "s_waitcnt vmcnt(1)", USE)),
    "the wrong counter": (LOAD, lines("s_waitcnt lgkmcnt(0)", USE)),
    "the export counter": (LOAD, lines("s_waitcnt expcnt(0)", USE)),
    "the younger LDS load": (
        lines(FILL, LDS_LOAD),
        lines(LDS_LOAD_2, "s_waitcnt lgkmcnt(1)", USE_2),
    ),
    "an LDS load beside a scalar one": (
        lines(FILL, LDS_LOAD),
        lines(SCALAR_LOAD, "s_waitcnt lgkmcnt(1)", USE),
    ),
    "the older of two scalar loads": (
        SCALAR_LOAD,
        lines("s_load_dword s42, s[8:9], 0x4", "s_waitcnt lgkmcnt(1)", USE_SCALAR),
    ),
    "a scalar register": (SCALAR_LOAD, USE_SCALAR),
    "a scalar register in the vector unit": (SCALAR_LOAD, "v_add_u32 v22, s40, v10"),
    "a flat load by one counter": (FLAT, lines("s_waitcnt vmcnt(0)", USE)),
    "store data": (LOAD, "global_store_dword v1, v20, s[6:7]"),
    "an address": (LOAD, "global_load_dword v22, v20, s[4:5]"),
    "LDS data": (LOAD, "ds_write_b32 v1, v20"),
    "a matrix, whatever EXEC says": (
        LOAD,
        lines("s_mov_b64 exec, 0", "v_mfma_f32_16x16x16_bf16 a[0:3], v[20:21], v[10:11], 0"),
    ),
    "the first lane": (LOAD, "v_readfirstlane_b32 s41, v20"),
    "by SDWA": (
        LOAD,
        "v_add_u32_sdwa v22, v20, v10 dst_sel:DWORD dst_unused:UNUSED_PAD "
        "src0_sel:BYTE_0 src1_sel:DWORD",
    ),
    "by DPP": (LOAD, "v_mov_b32_dpp v22, v20 row_shr:1 row_mask:0xf bank_mask:0xf"),
}
OVERWRITTEN = {
    "by the vector unit": (LOAD, "v_mov_b32 v20, 0"),
    "by an LDS load": (lines(FILL, LOAD), LDS_LOAD),
    "by the scalar unit": (SCALAR_LOAD, "s_mov_b32 s40, 0"),
    "by another scalar load": (SCALAR_LOAD, SCALAR_LOAD),
}


@pytest.fixture(scope="module")
def batch():
    texts = [*FINE.values(), *(lines(*x) for x in [*TOO_EARLY.values(), *OVERWRITTEN.values()])]
    return bench.Batch(texts, lds_bytes=256)


def run(batch, text):
    return batch.run(text, np.ones((1, bench.NUM_VECTOR_INPUTS, 64), np.uint32))


@pytest.mark.parametrize("what", FINE)
def test_what_was_waited_for_may_be_read(batch, what):
    assert run(batch, FINE[what]).shape == (bench.NUM_OUTPUTS, 64)


@pytest.mark.parametrize("what", TOO_EARLY)
def test_what_was_not_waited_for_is_refused_naming_both_instructions(batch, what):
    load, rest = TOO_EARLY[what]
    with pytest.raises(faults.ReadBeforeWait, match="is read before the load into it") as caught:
        run(batch, lines(load, rest))
    machine = batch.machine
    at_fault, loader = (
        next(line for line in machine.lines if line.pc == pc)
        for pc in (caught.value.pc, caught.value.other_pc)
    )
    last = rest.split("\n")[-1].strip()
    assert at_fault.text.replace("_e32", "") == last.replace("_e32", "")
    assert "load" in loader.mnemonic or "read" in loader.mnemonic
    assert loader.where in str(caught.value)
    assert at_fault.where in str(caught.value)


@pytest.mark.parametrize("what", OVERWRITTEN)
def test_a_register_that_a_load_is_about_to_write_may_not_be_written(batch, what):
    with pytest.raises(faults.WrittenBeforeWait, match="is written before the load into it"):
        run(batch, lines(*OVERWRITTEN[what]))
