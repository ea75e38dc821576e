"""Branches, calls and the program counter.

ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapter 4 (program flow control) and
chapter 12, sections SOPP, SOP1 and SOPK."""

import numpy as np
import pytest

from tests.gfx942.oracles import bench

M32 = 0xFFFFFFFF


def branching(name):
    """s40 becomes 1 if the branch is taken, else 2; EXEC is all ones again afterwards."""
    return f"""s_mov_b32 s40, 1
  {name} {name}_taken
  s_mov_b32 s40, 2
{name}_taken:
  s_mov_b64 exec, -1"""


# Whether the branch is taken, of SCC, VCC and EXEC.
BRANCHES = {
    "s_branch": lambda scc, vcc, active: True,
    "s_cbranch_scc0": lambda scc, vcc, active: not scc,
    "s_cbranch_scc1": lambda scc, vcc, active: scc,
    "s_cbranch_vccz": lambda scc, vcc, active: vcc == 0,
    "s_cbranch_vccnz": lambda scc, vcc, active: vcc != 0,
    "s_cbranch_execz": lambda scc, vcc, active: active == 0,
    "s_cbranch_execnz": lambda scc, vcc, active: active != 0,
}
CALLS = {
    "a subroutine by s_call_b64": """s_branch over
called:
  s_add_u32 s40, s40, 5
  s_setpc_b64 s[50:51]
over:
  s_mov_b32 s40, 1
  s_call_b64 s[50:51], called
  s_call_b64 s[50:51], called""",
    "a subroutine by s_getpc_b64 and s_swappc_b64": """s_branch over2
called2:
  s_add_u32 s40, s40, 5
  s_setpc_b64 s[50:51]
over2:
  s_mov_b32 s40, 1
  s_getpc_b64 s[52:53]
here:
  s_sub_u32 s52, s52, here-called2
  s_subb_u32 s53, s53, 0
  s_swappc_b64 s[50:51], s[52:53]
  s_swappc_b64 s[50:51], s[52:53]""",
}
WITHOUT_EFFECT = (
    "s_nop 3",
    "s_sleep 1",
    "s_setprio 2",
    "s_icache_inv",
    "s_dcache_inv",
    "s_dcache_wb",
    "s_dcache_inv_vol",
    "s_dcache_wb_vol",
    "buffer_wbl2 sc1",
    "buffer_inv sc1",
    "ds_nop",
    "v_nop",
    "s_waitcnt vmcnt(0)",
    "s_barrier",
)
OTHERS = {
    "which die": "s_getreg_b32 s40, hwreg(HW_REG_XCC_ID)",
    "clocks": """s_memtime s[50:51]
  s_waitcnt lgkmcnt(0)
  s_memrealtime s[52:53]
  s_waitcnt lgkmcnt(0)
  s_sub_u32 s40, s52, s50
  s_subb_u32 s41, s53, s51""",
}


@pytest.fixture(scope="module")
def batch():
    texts = [branching(name) for name in BRANCHES]
    return bench.Batch([*texts, *CALLS.values(), *WITHOUT_EFFECT, *OTHERS.values()])


def run(batch, text, scc=0, vcc=0, active=(1 << 64) - 1):
    scalars = np.zeros((1, bench.NUM_SCALAR_INPUTS), np.uint32)
    scalars[0, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = active & M32, active >> 32
    scalars[0, bench.VCC_INPUT : bench.VCC_INPUT + 2] = vcc & M32, vcc >> 32
    scalars[0, bench.SCC_INPUT] = scc
    vectors = np.arange(bench.NUM_VECTOR_INPUTS * 64, dtype=np.uint32)
    return batch.run(text, vectors.reshape(1, -1, 64), scalars)


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.parametrize("scc", [0, 1])
@pytest.mark.parametrize("vcc", [0, 1 << 40])
@pytest.mark.parametrize("active", [0, 1 << 63, 7])
def test_a_branch_is_taken_when_its_condition_holds(batch, name, scc, vcc, active):
    found = run(batch, branching(name), scc, vcc, active)
    expected = 1 if BRANCHES[name](scc, vcc, active) else 2
    assert bench.scalar_result(found, 1) == expected


@pytest.mark.parametrize("what", CALLS)
def test_a_subroutine_is_called_and_comes_back(batch, what):
    assert bench.scalar_result(run(batch, CALLS[what]), 1) == 11


@pytest.mark.parametrize("text", WITHOUT_EFFECT)
def test_what_has_no_effect_here_changes_nothing(batch, text):
    found = run(batch, text, scc=1, vcc=5)
    np.testing.assert_array_equal(found[0], np.arange(8 * 64, 9 * 64))
    assert bench.scalar_result(found) == 0
    assert (bench.scc_after(found), bench.vcc_after(found)) == (1, 5)
    assert bench.exec_after(found) == (1 << 64) - 1


def test_the_die_is_the_first_and_clocks_run_forward(batch):
    assert bench.scalar_result(run(batch, OTHERS["which die"]), 1) == 0
    assert 0 < bench.scalar_result(run(batch, OTHERS["clocks"])) < 100
