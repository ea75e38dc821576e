"""Each instruction of the scalar unit against its oracle.

ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapter 5 and chapter 12, sections
SOP1, SOP2, SOPC and SOPK."""

import random

import numpy as np
import pytest

from tests.gfx942.oracles import bench, scalar, values

WAVES = 40
_SOURCES = {1: ("s16", "s18", "s20"), 2: ("s[16:17]", "s[18:19]", "s[20:21]")}
_RESULTS = {1: "s40", 2: "s[40:41]"}
_OLD = 14


def written(case):
    """The instruction: the result in s40, the sources in s16, s18; the old result from s[30:31]."""
    old = [f"s_mov_b64 s[40:41], s[{16 + _OLD}:{17 + _OLD}]", "s_cmp_lg_u32 s28, 0"]
    if case.written:
        return "\n  ".join([*old, case.written])
    given = case.sources[:-1] if case.old else case.sources
    texts = [_SOURCES[values.NUM_WORDS.get(kind, 1)][k] for k, kind in enumerate(given)]
    if case.result:
        texts.insert(0, _RESULTS[values.NUM_WORDS.get(case.result, 1)])
    return "\n  ".join([*old, f"{case.mnemonic} {', '.join(texts)}"])


@pytest.fixture(scope="module")
def machine():
    return bench.assembled([written(case) for case in scalar.CASES])


def first_word(case, number):
    return _OLD if case.old and number == len(case.sources) - 1 else 2 * number


@pytest.mark.parametrize(
    "number", range(len(scalar.CASES)), ids=[case.name for case in scalar.CASES]
)
def test_it_gives_what_the_guide_says(machine, number):
    case = scalar.CASES[number]
    rng = random.Random(number)
    scalars = np.zeros((WAVES, bench.NUM_SCALAR_INPUTS), np.uint32)
    scalars[:, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = 0xFFFFFFFF
    for wave in range(WAVES):
        scalars[wave, bench.SCC_INPUT] = rng.getrandbits(1)
        for k, kind in enumerate(case.sources):
            words = values.sample(kind, rng)
            scalars[wave, first_word(case, k) : first_word(case, k) + len(words)] = words
    outputs = bench.execute(machine, f"k{number}", np.zeros((WAVES, 1, 64), np.uint32), scalars)
    for wave in range(WAVES):
        given = []
        for k, kind in enumerate(case.sources):
            first = first_word(case, k)
            words = scalars[wave, first : first + values.NUM_WORDS.get(kind, 1)].tolist()
            given.append(values.number(kind, words))
        scc = int(scalars[wave, bench.SCC_INPUT])
        expected = case.oracle(*given, *([scc] if case.scc in ("in", "inout") else []))
        if case.scc in ("out", "inout"):
            expected, scc = expected
        where = f"{written(case)}: sources {given}"
        assert bench.scc_after(outputs[wave]) == int(bool(scc)), where
        if case.result:
            count = values.NUM_WORDS.get(case.result, 1)
            found = bench.scalar_result(outputs[wave], count)
            assert found == expected & ((1 << 32 * count) - 1), where


@pytest.mark.parametrize("name", scalar.SAVE_EXEC)
def test_saveexec_saves_exec_combines_it_and_sets_scc(name):
    """ISA guide, chapter 12, SOP1: S_AND_SAVEEXEC_B64 and its like."""
    machine = bench.assembled([f"s_{name}_saveexec_b64 s[40:41], s[16:17]"])
    rng = random.Random(name)
    for source, active in ((rng.getrandbits(64), rng.getrandbits(64)), (0, 5), (2**64 - 1, 3)):
        found = run_with_exec(machine, source, active)
        after = scalar.SAVE_EXEC[name](source, active) & (2**64 - 1)
        assert bench.scalar_result(found) == active
        assert bench.exec_after(found) == after
        assert bench.scc_after(found) == (after != 0)


WRITE_EXEC = {"s_andn1_wrexec_b64": "andn1", "s_andn2_wrexec_b64": "andn2"}


@pytest.mark.parametrize("name", WRITE_EXEC)
def test_wrexec_gives_the_new_exec(name):
    """ISA guide, chapter 12, SOP1: S_ANDN1_WREXEC_B64, S_ANDN2_WREXEC_B64."""
    machine = bench.assembled([f"{name} s[40:41], s[16:17]"])
    rng = random.Random(name)
    for _ in range(3):
        source, active = rng.getrandbits(64), rng.getrandbits(64)
        found = run_with_exec(machine, source, active)
        after = scalar.SAVE_EXEC[WRITE_EXEC[name]](source, active) & (2**64 - 1)
        assert bench.scalar_result(found) == bench.exec_after(found) == after


def run_with_exec(machine, source, active):
    scalars = np.zeros((1, bench.NUM_SCALAR_INPUTS), np.uint32)
    scalars[0, :2] = source & 0xFFFFFFFF, source >> 32
    scalars[0, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = active & 0xFFFFFFFF, active >> 32
    return bench.execute(machine, "k0", np.zeros((1, 1, 64), np.uint32), scalars)[0]
