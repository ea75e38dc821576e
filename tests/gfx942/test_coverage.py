"""Every instruction that the interpreter executes has a test with an oracle, or stands in a list
here."""

import re

from tests.gfx942 import (
    binding,
    test_against_llvm,
    test_control,
    test_lane_instructions,
    test_matrix,
    test_memory_instructions,
    test_modifiers,
    test_scalar_instructions,
    test_vector_instructions,
)
from tests.gfx942.oracles import scalar

WITHOUT_ORACLE = {
    "v_cvt_pk_u8_f32": "the guide does not say how it rounds; here to nearest even",
    "v_div_scale_f32": "with the next two: test_programs.py divides over the whole range",
    "v_div_fmas_f32": "see v_div_scale_f32",
    "v_div_fixup_f32": "see v_div_scale_f32",
}
"""Instructions whose semantics no independent source was found for, and why."""

WITHOUT_ORACLE_IN_PART = {
    "NaN results": "which NaN comes out (payload, sign) is not compared; MFMA's is, with mmasim's",
    "v_exp, v_log, v_rcp, v_rsq, v_sqrt, v_sin, v_cos": "the hardware's own error is not modelled: "
    "up to 1 ulp for f16 and f32, about 2^-28 for f64",
    "v_cvt_sr_fp8_f32, v_cvt_sr_bf8_f32": "below the normal range the same formula is assumed",
    "v_med3_f32 with a NaN among three": "the smallest of the others, by the guide's formula",
    "atomics on floats": "denormals are kept; that some caches flush them is not modelled",
}
"""What the oracles leave open."""


def mnemonics_with_an_oracle():
    """Mnemonics that some test executes and compares."""
    yield "s_endpgm"  # the end of each of them
    yield from (case.mnemonic for case in test_vector_instructions.CASES)
    yield from (case.mnemonic for case in scalar.CASES)
    yield from (f"s_{name}_saveexec_b64" for name in scalar.SAVE_EXEC)
    yield from test_scalar_instructions.WRITE_EXEC
    for name, *_ in test_matrix.SHAPES:
        yield from (f"v_mfma_f32_{name}_{kind}" for kind in ("bf16", "f16"))
    texts = [*test_against_llvm.ROWS, *test_modifiers.TEXTS, *test_lane_instructions.TEXTS.values()]
    texts += test_memory_instructions.all_programs()
    texts += [test_control.branching(name) for name in test_control.BRANCHES]
    texts += [
        *test_control.CALLS.values(),
        *test_control.WITHOUT_EFFECT,
        *test_control.OTHERS.values(),
    ]
    for text in texts:
        for line in text.split("\n"):
            word = line.split()[0] if line.split() else ""
            yield re.sub(r"_(e32|e64|sdwa|dpp)$", "", word)


def test_every_instruction_is_compared_with_an_oracle_or_listed():
    known = set(binding.core().opcodes) - {"unknown"}
    missing = known - set(mnemonics_with_an_oracle()) - set(WITHOUT_ORACLE)
    assert not missing, f"give these an oracle, or a line in WITHOUT_ORACLE: {sorted(missing)}"


def test_the_list_names_only_instructions_that_need_it():
    known = set(binding.core().opcodes)
    assert set(WITHOUT_ORACLE) <= known
    assert not set(WITHOUT_ORACLE) & set(mnemonics_with_an_oracle())


def test_no_mnemonic_has_two_meanings():
    numbers = [row.number for row in binding.core().opcodes.values()]
    assert sorted(numbers) == list(range(len(numbers)))
