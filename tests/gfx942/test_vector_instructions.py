"""Each instruction of the vector unit against its oracle, on corners and random values.

ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapter 12, sections VOP1, VOP2,
VOP3A, VOP3B, VOP3P and VOPC; the oracles cite the words they follow."""

import random

import numpy as np
import pytest

from tests.gfx942.oracles import bench, floating, integer, packed, values

CASES = [*integer.CASES, *floating.CASES, *packed.CASES]
WAVES = 4

_SOURCES = {1: ("v10", "v12", "v14"), 2: ("v[10:11]", "v[12:13]", "v[14:15]")}
_RESULTS = {1: "v20", 2: "v[20:21]"}


def written(case):
    """The instruction: the result in v20 (or s[40:41]), the sources in v10, v12 and v14."""
    if case.written:
        return case.written
    given = case.sources[:-1] if case.old else case.sources
    sources = [_SOURCES[values.NUM_WORDS.get(kind, 1)][k] for k, kind in enumerate(given)]
    if case.result == "mask":
        return f"{case.mnemonic}_e64 s[40:41], {', '.join(sources)}"
    results = [_RESULTS[values.NUM_WORDS.get(case.result, 1)]]
    if case.carry in ("out", "inout"):
        results.append("s[40:41]")
    if case.carry in ("in", "inout"):
        sources.append("vcc")
    mnemonic = case.mnemonic.removesuffix(" clamp")
    return f"{mnemonic} {', '.join([*results, *sources])}{case.suffix}"


@pytest.fixture(scope="module")
def machine():
    return bench.assembled([written(case) for case in CASES])


def first_word(case, number):
    """Where a source's words stand among the inputs: v10, v12, v14, and v20 for the old result."""
    return 8 if case.old and number == len(case.sources) - 1 else 2 * number


def inputs_of(case, rng):
    vectors = np.zeros((WAVES, bench.NUM_VECTOR_INPUTS, bench.LANES), np.uint32)
    for number, kind in enumerate(case.sources):
        first = first_word(case, number)
        for wave in range(WAVES):
            for lane in range(bench.LANES):
                words = values.sample(kind, rng)
                if number in case.limits:
                    words = [words[0] % case.limits[number]]
                vectors[wave, first : first + len(words), lane] = words
    return vectors


def sources_of(case, vectors, wave, lane):
    found = []
    for number, kind in enumerate(case.sources):
        first = first_word(case, number)
        count = values.NUM_WORDS.get(kind, 1)
        found.append(values.number(kind, vectors[wave, first : first + count, lane].tolist()))
    return found


def carries_and_scalars(rng):
    """A random bit a lane, in VCC; EXEC is all ones."""
    bits = [[rng.getrandbits(1) for _ in range(bench.LANES)] for _ in range(WAVES)]
    scalars = np.zeros((WAVES, bench.NUM_SCALAR_INPUTS), np.uint32)
    scalars[:, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = 0xFFFFFFFF
    for wave in range(WAVES):
        mask = bench.lane_mask(bits[wave])
        scalars[wave, bench.VCC_INPUT : bench.VCC_INPUT + 2] = mask & 0xFFFFFFFF, mask >> 32
    return bits, scalars


def assert_lane(case, given, expected, found):
    expected_words = values.words(case.result, expected)
    assert values.same(case.result, expected_words, found, case.ulp), (
        f"{written(case)}: sources {given}, expected {expected}, "
        f"found {values.number(case.result, found)} ({found[0]:#x})"
    )


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_it_gives_what_the_guide_says(machine, number):
    case = CASES[number]
    rng = random.Random(number)
    vectors = inputs_of(case, rng)
    carries, scalars = carries_and_scalars(rng)
    outputs = bench.execute(machine, f"k{number}", vectors, scalars)
    count = values.NUM_WORDS.get(case.result, 1)
    for wave in range(WAVES):
        bits = []
        for lane in range(bench.LANES):
            given = sources_of(case, vectors, wave, lane)
            carry = [carries[wave][lane]] if case.carry in ("in", "inout") else []
            expected = case.oracle(*given, *carry)
            if case.result == "mask":
                bits.append(expected)
                continue
            if case.carry in ("out", "inout"):
                expected, bit = expected
                bits.append(bit)
            assert_lane(case, given, expected, outputs[wave, :count, lane].tolist())
        if bits:
            assert bench.scalar_result(outputs[wave]) == bench.lane_mask(bits), written(case)
        if case.mnemonic.startswith("v_cmpx"):
            assert bench.exec_after(outputs[wave]) == bench.lane_mask(bits), written(case)


def test_lanes_that_exec_switches_off_keep_their_register_and_give_no_bit():
    """ISA guide, chapter 3.3 ("EXECute mask") and 3.9 ("vector compares")."""
    machine = bench.assembled(["v_add_u32 v20, v10, v12", "v_cmp_eq_u32_e64 s[40:41], v10, v10"])
    rng = random.Random(1)
    vectors = np.array(
        [[[rng.getrandbits(32) for _ in range(64)] for _ in range(bench.NUM_VECTOR_INPUTS)]],
        np.uint32,
    )
    active = rng.getrandbits(64)
    scalars = np.zeros((1, bench.NUM_SCALAR_INPUTS), np.uint32)
    scalars[0, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = active & 0xFFFFFFFF, active >> 32
    found = bench.execute(machine, "k0", vectors, scalars)[0, 0]
    for lane in range(64):
        old, total = int(vectors[0, 8, lane]), int(vectors[0, 0, lane]) + int(vectors[0, 2, lane])
        assert found[lane] == (total & 0xFFFFFFFF if active >> lane & 1 else old)
    assert bench.scalar_result(bench.execute(machine, "k1", vectors, scalars)[0]) == active
