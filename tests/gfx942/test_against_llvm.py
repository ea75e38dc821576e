"""Instructions against LLVM's constant folder, which knows their intrinsics: a second oracle by
others.

For each row, clang folds the intrinsic on constants, at compile time; the interpreter executes the
instruction on the same values.
"""

import random
import re

import numpy as np
import pytest

from tests.gfx942 import toolchain
from tests.gfx942.oracles import bench, values

# Instruction (sources v10, v12, v14), intrinsic, and the types of sources and result.
ROWS = {
    "v_bfe_u32 v20, v10, v12, v14": ("llvm.amdgcn.ubfe.i32", "u32 u32 u32", "u32"),
    "v_bfe_i32 v20, v10, v12, v14": ("llvm.amdgcn.sbfe.i32", "u32 u32 u32", "u32"),
    "v_perm_b32 v20, v10, v12, v14": ("llvm.amdgcn.perm", "u32 u32 u32", "u32"),
    "v_alignbit_b32 v20, v10, v12, v14": ("llvm.fshr.i32", "u32 u32 u32", "u32"),
    "v_bfrev_b32 v20, v10": ("llvm.bitreverse.i32", "u32", "u32"),
    "v_add_u32 v20, v10, v12 clamp": ("llvm.uadd.sat.i32", "u32 u32", "u32"),
    "v_sub_u32 v20, v10, v12 clamp": ("llvm.usub.sat.i32", "u32 u32", "u32"),
    "v_add_i32 v20, v10, v12 clamp": ("llvm.sadd.sat.i32", "u32 u32", "u32"),
    "v_sub_i32 v20, v10, v12 clamp": ("llvm.ssub.sat.i32", "u32 u32", "u32"),
    "v_cvt_i32_f32 v20, v10": ("llvm.fptosi.sat.i32.f32", "f32", "u32"),
    "v_cvt_u32_f32 v20, v10": ("llvm.fptoui.sat.i32.f32", "f32", "u32"),
    "v_cvt_pkrtz_f16_f32 v20, v10, v12": ("llvm.amdgcn.cvt.pkrtz", "f32 f32", "f16x2"),
    "v_med3_f32 v20, v10, v12, v14": ("llvm.amdgcn.fmed3.f32", "f32 f32 f32", "f32"),
    "v_mul_legacy_f32 v20, v10, v12": ("llvm.amdgcn.fmul.legacy", "f32 f32", "f32"),
    "v_fma_f32 v20, v10, v12, v14": ("llvm.fma.f32", "f32 f32 f32", "f32"),
    "v_fract_f32 v20, v10": ("llvm.amdgcn.fract.f32", "f32", "f32"),
    "v_frexp_mant_f32 v20, v10": ("llvm.amdgcn.frexp.mant.f32", "f32", "f32"),
    "v_frexp_exp_i32_f32 v20, v10": ("llvm.amdgcn.frexp.exp.i32.f32", "f32", "u32"),
    "v_ldexp_f32 v20, v10, v12": ("llvm.ldexp.f32.i32", "f32 u32", "f32"),
    "v_rndne_f32 v20, v10": ("llvm.roundeven.f32", "f32", "f32"),
    "v_trunc_f32 v20, v10": ("llvm.trunc.f32", "f32", "f32"),
    "v_floor_f32 v20, v10": ("llvm.floor.f32", "f32", "f32"),
    "v_ceil_f32 v20, v10": ("llvm.ceil.f32", "f32", "f32"),
    "v_sin_f32 v20, v10": ("llvm.amdgcn.sin.f32", "f32", "f32"),
    "v_cos_f32 v20, v10": ("llvm.amdgcn.cos.f32", "f32", "f32"),
    "v_rcp_f32 v20, v10": ("llvm.amdgcn.rcp.f32", "f32", "f32"),
}
LLVM_TYPES = {"u32": "i32", "f32": "float", "f16x2": "<2 x half>"}

# Not folded, or folded otherwise than the hardware does it: denormals (which v_rcp, v_sin and v_cos
# flush), turns beyond 256, and shift counts LLVM calls undefined.
NORMAL_ONLY = {"v_sin_f32", "v_cos_f32", "v_rcp_f32"}


def inputs():
    """Words [row, source, lane]."""
    rng = random.Random(1)
    table = {}
    for text, (_, sources, _) in ROWS.items():
        words = [[values.sample(kind, rng)[0] for _ in range(64)] for kind in sources.split()]
        if text.split()[0] in NORMAL_ONLY:
            words = [[np.float32(rng.uniform(-200, 200)).view(np.uint32).item() for _ in range(64)]]
        table[text] = words
    return table


def folded(table):
    """What clang makes of the intrinsics: a number per row and lane, or None where it folded
    nothing."""
    declared, defined = set(), []
    for number, (text, (intrinsic, sources, result)) in enumerate(ROWS.items()):
        kinds = [LLVM_TYPES[kind] for kind in sources.split()]
        declared.add(f"declare {LLVM_TYPES[result]} @{intrinsic}({', '.join(kinds)})")
        for lane in range(64):
            body = [
                f"%a{k} = bitcast i32 {table[text][k][lane]} to {kind}"
                for k, kind in enumerate(kinds)
            ]
            given = ", ".join(f"{kind} %a{k}" for k, kind in enumerate(kinds))
            body.append(f"%r = call {LLVM_TYPES[result]} @{intrinsic}({given})")
            body.append(f"%b = bitcast {LLVM_TYPES[result]} %r to i32\n  ret i32 %b")
            defined.append(f"define i32 @f_{number}_{lane}() {{\n  " + "\n  ".join(body) + "\n}")
    text = "\n".join(['target triple = "amdgcn-amd-amdhsa"', *sorted(declared), *defined])

    def compile_to(out):
        source = out.with_suffix(".in.ll")
        source.write_text(text)
        flags = "--target=amdgcn-amd-amdhsa -mcpu=gfx942 -nogpulib -O1 -S -emit-llvm -x ir".split()
        toolchain.run([toolchain.tool("clang"), *flags, source, "-o", out])
        source.unlink()

    made = toolchain.kept(".ll", [toolchain.version("clang"), text], compile_to).read_text()
    found = {}
    for name, body in re.findall(
        r"^define [^@]*@f_(\d+_\d+)\(\)[^{]*{\n(.*?)^}", made, re.S | re.M
    ):
        constant = re.fullmatch(r"\s*ret i32 (-?\d+)\s*", body)
        found[name] = int(constant[1]) & 0xFFFFFFFF if constant else None
    return found


@pytest.fixture(scope="module")
def table():
    return inputs()


@pytest.fixture(scope="module")
def constants(table):
    return folded(table)


@pytest.fixture(scope="module")
def batch():
    return bench.Batch(ROWS)


@pytest.mark.parametrize("text", ROWS, ids=lambda t: t.split()[0] + "_clamp" * ("clamp" in t))
def test_the_instruction_gives_what_llvm_folds(batch, table, constants, text):
    vectors = np.zeros((1, bench.NUM_VECTOR_INPUTS, 64), np.uint32)
    for k, words in enumerate(table[text]):
        vectors[0, 2 * k] = words
    found = batch.run(text, vectors)[0]
    number, result = list(ROWS).index(text), ROWS[text][2]
    compared = 0
    for lane in range(64):
        expected = constants[f"{number}_{lane}"]
        if expected is None:
            continue
        compared += 1
        ulp = 1 if text.split()[0] in NORMAL_ONLY else 0
        same = values.same(result, [expected], [int(found[lane])], ulp)
        assert same, (
            f"{text}: {[hex(w[lane]) for w in table[text]]}: {expected:#x}, {found[lane]:#x}"
        )
    assert compared > 20, f"LLVM folded only {compared} of 64"
