"""Kernels of one instruction each: inputs loaded, the instruction executed, results stored.

Vector inputs come in v10..v17 (a source each two registers) and as the old destination in v20..v23,
scalar inputs in s16..s31, of which s24:25 is EXEC for the instruction, s26:27 VCC and s28 SCC.
Results: v20..v23, s40:43, then SCC, EXEC and VCC as they are afterwards.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from tests.gfx942 import toolchain
from tests.gfx942.machine import Machine

LANES = 64
NUM_VECTOR_INPUTS = 12
"""Words a lane: v10..v17, then v20..v23."""

NUM_SCALAR_INPUTS = 16
EXEC_INPUT, VCC_INPUT, SCC_INPUT = 8, 10, 12

NUM_OUTPUTS = 13
SCALAR_OUTPUT, SCC_OUTPUT, EXEC_OUTPUT, VCC_OUTPUT = 4, 8, 9, 11
"""Places in a lane's results; the scalar ones are the same in every lane."""

_KERNEL = """
.globl {name}
.p2align 8
.type {name},@function
{name}:
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  s_mul_i32 s10, s2, {vector_bytes}
  s_mul_i32 s11, s2, {scalar_bytes}
  s_mul_i32 s12, s2, {output_bytes}
  s_waitcnt lgkmcnt(0)
  s_add_u32 s4, s4, s10
  s_addc_u32 s5, s5, 0
  s_add_u32 s8, s8, s11
  s_addc_u32 s9, s9, 0
  s_add_u32 s6, s6, s12
  s_addc_u32 s7, s7, 0
  v_lshlrev_b32_e32 v1, 2, v0
{loads}
  s_load_dwordx16 s[16:31], s[8:9], 0x0
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_mov_b32 s40, 0
  s_mov_b64 s[42:43], 0
  s_mov_b32 s41, 0
  s_cmp_lg_u32 s28, 0
  s_mov_b64 vcc, s[26:27]
  s_mov_b64 exec, s[24:25]
  {instruction}
  s_cselect_b32 s44, 1, 0
  s_mov_b64 s[46:47], exec
  s_mov_b64 s[48:49], vcc
  s_mov_b64 exec, -1
  s_waitcnt vmcnt(0) lgkmcnt(0)
{stores}
  s_endpgm
"""

_DESCRIPTOR = """
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_next_free_vgpr 64
  .amdhsa_accum_offset 32
  .amdhsa_next_free_sgpr 64
  .amdhsa_group_segment_fixed_size {lds_bytes}
  .amdhsa_private_segment_fixed_size {scratch_bytes}
  .amdhsa_enable_private_segment {uses_scratch}
.end_amdhsa_kernel
.text
"""

_METADATA = """
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 24
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds_bytes}
    .private_segment_fixed_size: {scratch_bytes}
    .wavefront_size: 64
    .sgpr_count: 64
    .vgpr_count: 64
    .max_flat_workgroup_size: 64
    .args:
      - {{.size: 8, .offset: 0, .value_kind: global_buffer, .address_space: global}}
      - {{.size: 8, .offset: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.size: 8, .offset: 16, .value_kind: global_buffer, .address_space: global}}
"""


def _loads() -> str:
    registers = [*range(10, 18), *range(20, 24)]
    rows = [
        f"  global_load_dword v{r}, v1, s[4:5] offset:{256 * k}" for k, r in enumerate(registers)
    ]
    return "\n".join(rows)


def _stores() -> str:
    sources = [f"v{r}" for r in range(20, 24)]
    sources += [f"s{r}" for r in (40, 41, 42, 43, 44, 46, 47, 48, 49)]
    rows = []
    for k, source in enumerate(sources):
        rows.append(f"  v_mov_b32_e32 v2, {source}")
        rows.append(f"  global_store_dword v1, v2, s[6:7] offset:{256 * k}")
    return "\n".join(rows)


def source(instructions: Sequence[str], lds_bytes: int = 0, scratch_bytes: int = 0) -> str:
    """Return the assembler text of a kernel ``k0``, ``k1``, ... per instruction (or several lines).

    Registers that no input or output uses are free: v2 to v9, v18, v19, v24 to v31, a0 to a31, s11
    to s15, s32 to s39 and from s50 on."""
    sizes = {
        "lds_bytes": lds_bytes,
        "scratch_bytes": scratch_bytes,
        "uses_scratch": int(scratch_bytes > 0),
    }
    kernels, metadata = [], []
    for number, instruction in enumerate(instructions):
        name = f"k{number}"
        kernel = _KERNEL.format(
            name=name,
            instruction=instruction,
            loads=_loads(),
            stores=_stores(),
            vector_bytes=4 * LANES * NUM_VECTOR_INPUTS,
            scalar_bytes=4 * NUM_SCALAR_INPUTS,
            output_bytes=4 * LANES * NUM_OUTPUTS,
        )
        kernels.append(kernel + _DESCRIPTOR.format(name=name, **sizes))
        metadata.append(_METADATA.format(name=name, **sizes))
    head = '.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n.amdhsa_code_object_version 5\n.text\n'
    notes = ".amdgpu_metadata\n---\namdhsa.version: [1, 2]\namdhsa.kernels:\n"
    return "".join([head, *kernels, notes, *metadata, "...\n.end_amdgpu_metadata\n"])


def assembled(instructions: Sequence[str], lds_bytes: int = 0, scratch_bytes: int = 0) -> Machine:
    """Return a machine with those kernels."""
    return Machine(toolchain.assemble(source(instructions, lds_bytes, scratch_bytes)))


def execute(
    machine: Machine, kernel: str, vectors: np.ndarray, scalars: np.ndarray | None = None
) -> np.ndarray:
    """Return what an instruction gave.

    Args:
        machine: From ``assembled``. kernel: ``k0`` and so on. vectors: Inputs, uint32 [waves, up to
        NUM_VECTOR_INPUTS, LANES]. scalars: Inputs, uint32 [waves, NUM_SCALAR_INPUTS]; by default 0
        with EXEC all ones. With one
            wave it may be longer: the program finds the array at s[8:9].

    Returns:
        uint32 [waves, NUM_OUTPUTS, LANES].
    """
    waves = len(vectors)
    inputs = np.zeros((waves, NUM_VECTOR_INPUTS, LANES), np.uint32)
    inputs[:, : vectors.shape[1]] = vectors
    if scalars is None:
        scalars = np.zeros((waves, NUM_SCALAR_INPUTS), np.uint32)
        scalars[:, EXEC_INPUT : EXEC_INPUT + 2] = 0xFFFFFFFF
    outputs = np.zeros((waves, NUM_OUTPUTS, LANES), np.uint32)
    machine.launch(kernel, (waves,), (LANES,), [inputs, outputs, scalars])
    return outputs


def scalar_result(outputs: np.ndarray, words: int = 2) -> int:
    """Return s40, or s[40:41], of one wave's results."""
    return _joined(outputs, SCALAR_OUTPUT, words)


def exec_after(outputs: np.ndarray) -> int:
    """Return EXEC as one wave's instruction left it."""
    return _joined(outputs, EXEC_OUTPUT, 2)


def vcc_after(outputs: np.ndarray) -> int:
    """Return VCC as one wave's instruction left it."""
    return _joined(outputs, VCC_OUTPUT, 2)


def scc_after(outputs: np.ndarray) -> int:
    """Return SCC as one wave's instruction left it."""
    return int(outputs[SCC_OUTPUT, 0])


def _joined(outputs: np.ndarray, first: int, words: int) -> int:
    return sum(int(outputs[first + k, 0]) << 32 * k for k in range(words))


class Batch:
    """Instructions assembled together: one clang and one objdump for all tests of a file."""

    def __init__(self, texts: Iterable[str], lds_bytes: int = 0, scratch_bytes: int = 0) -> None:
        """Assemble each different text once."""
        self._number = {text: k for k, text in enumerate(dict.fromkeys(texts))}
        self.machine = assembled(list(self._number), lds_bytes, scratch_bytes)

    def run(self, text: str, vectors: np.ndarray, scalars: np.ndarray | None = None) -> np.ndarray:
        """Return what a text of the batch gave for one wave: uint32 [NUM_OUTPUTS, LANES]."""
        return execute(self.machine, f"k{self._number[text]}", vectors, scalars)[0]


def lane_mask(values: Sequence[int]) -> int:
    """Return a mask from one truth value a lane."""
    return sum(1 << lane for lane, value in enumerate(values) if value)
