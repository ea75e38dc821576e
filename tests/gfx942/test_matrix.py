"""MFMA, bit for bit against mmasim, which models the matrix units of CDNA3 as probed on hardware.

Where a lane's registers lie in the matrices is from the ISA guide: "AMD Instinct MI300 Instruction
Set Architecture", chapter 7 (matrix arithmetic instructions), the layouts of A, B, C and D."""

from pathlib import Path

import numpy as np
import pytest

from tests.gfx942 import toolchain
from tests.gfx942.machine import Machine
from tests.gfx942.oracles import matrix_model

PROGRAM = Path(__file__).parent / "programs" / "mfma.hip"

# Name, rows (and columns), depth, independent blocks.
SHAPES = [
    ("16x16x16", 16, 16, 1),
    ("32x32x8", 32, 8, 1),
    ("4x4x4_16b", 4, 4, 16),
    ("16x16x4_4b", 16, 4, 4),
    ("32x32x4_2b", 32, 4, 2),
]
PROBLEMS = 6
# Whether a bit far below the result is kept shows only where it decides a tie: rarely.
MORE_PROBLEMS = 40


@pytest.fixture(scope="module")
def machine():
    return Machine(toolchain.compile_hip(PROGRAM))


def operand_place(size, depth, blocks, lane, element):
    """Return block, row (or column) and K of one of a lane's four values of A (or B)."""
    group = lane // size
    if blocks == 1:
        return 0, lane % size, 4 * group + element
    return group, lane % size, element


def result_place(size, lane, register):
    """Return block, row and column of one of a lane's values of C and D."""
    if size == 4:
        return lane // 4, register, lane % 4
    if size == 16:
        return register // 4, 4 * (lane // 16) + register % 4, lane % 16
    block, i = divmod(register, 16)
    return block, 8 * (i // 4) + 4 * (lane // 32) + i % 4, lane % 32


def numbers(kind, recipe, rng, shape):
    """Bit patterns (uint16) for A or B."""
    if recipe == "any bits":  # NaNs, infinities and subnormals among them
        return rng.integers(0, 1 << 16, shape, dtype=np.uint16)
    if recipe == "wide":  # exponents far apart, nothing that overflows
        span = (-60, 60) if kind == "bf16" else (-13, 8)
        values = rng.uniform(1, 2, shape) * np.exp2(rng.integers(*span, shape))
        values *= rng.choice([-1, 1], shape)
    elif recipe == "large":
        values = rng.standard_normal(shape) * np.exp2(64.0 if kind == "bf16" else 8.0)
    elif recipe == "tiny":  # subnormals, the smallest normal numbers, zeros of both signs
        lowest = -126 if kind == "bf16" else -14
        values = rng.uniform(-4, 4, shape) * np.exp2(lowest - 3.0) * rng.integers(0, 2, shape)
    elif recipe == "overflowing":
        values = rng.choice([-1, 1], shape) * np.exp2(60.0 if kind == "bf16" else 15.0)
        values *= np.exp2(rng.integers(0, 8, shape)) if kind == "bf16" else 1
    elif recipe == "one product":
        values = rng.uniform(1, 2, shape) * rng.choice([-1, 1], shape)
    else:
        values = rng.standard_normal(shape)
    return matrix_model.rounded_to(kind, values)


def accumulator(recipe, rng, shape):
    """f32 for C."""
    if recipe == "any bits":
        return rng.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.float32)
    if recipe == "wide":
        return (rng.uniform(-2, 2, shape) * np.exp2(rng.integers(-126, 100, shape))).astype("f4")
    if recipe == "tiny":
        return rng.choice(np.array([0.0, -0.0, 1e-45, -1e-40], np.float32), shape)
    if recipe == "one product":  # far above it, a power of two, so that a difference cancels a bit
        powers = np.exp2(rng.integers(12, 22, shape))
        return (rng.choice([-1, 1], shape) * powers).astype(np.float32)
    return rng.standard_normal(shape).astype(np.float32)


def by_lanes(matrices, places, count):
    """Return [problems, 64, count]: what each lane holds."""
    held = np.zeros((len(matrices), 64, count), matrices.dtype)
    for lane in range(64):
        for k in range(count):
            held[:, lane, k] = matrices[(slice(None), *places(lane, k))]
    return held


# Of A, of B, of C.
RECIPES = {
    "like data": ("like data", "like data", "like data"),
    "wide": ("wide", "wide", "wide"),
    "subnormal by subnormal": ("tiny", "tiny", "tiny"),
    "subnormal by large": ("tiny", "large", "tiny"),
    "overflowing": ("overflowing", "overflowing", "wide"),
    "any bits": ("any bits", "any bits", "any bits"),
    "one product": ("one product", "one product", "one product"),
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize(("name", "size", "depth", "blocks"), SHAPES, ids=lambda x: str(x))
def test_mfma_gives_the_bits_that_cdna3_gives(machine, name, size, depth, blocks, kind, recipe):
    rng = np.random.default_rng([size, depth, len(recipe), len(kind)])
    one = recipe == "one product"
    problems = MORE_PROBLEMS if one and blocks == 1 else PROBLEMS
    of_a, of_b, of_c = RECIPES[recipe]
    a = numbers(kind, of_a, rng, (problems, blocks, size, depth))
    b = numbers(kind, of_b, rng, (problems, blocks, depth, size))
    c = accumulator(of_c, rng, (problems, blocks, size, size))
    if one:
        a[:, :, :, 1:] = 0
    registers = blocks * size * size // 64

    def in_a(lane, element):
        block, row, k = operand_place(size, depth, blocks, lane, element)
        return block, row, k

    def in_b(lane, element):
        block, column, k = operand_place(size, depth, blocks, lane, element)
        return block, k, column

    def in_c(lane, register):
        return result_place(size, lane, register)

    found = np.zeros((problems, 64, registers), np.uint32)
    arguments = [by_lanes(a, in_a, 4), by_lanes(b, in_b, 4), by_lanes(c, in_c, registers), found]
    machine.launch(f"mfma_{name}_{kind}", (problems,), (64,), arguments)
    expected = np.stack(
        [
            [
                matrix_model.multiply_add(name, kind, a[p, n], b[p, n], c[p, n])
                for n in range(blocks)
            ]
            for p in range(problems)
        ]
    )
    np.testing.assert_array_equal(found, by_lanes(expected, in_c, registers))


def test_a_bf16_subnormal_times_a_large_number_keeps_its_value(machine):
    """CDNA3 keeps what CDNA2 flushes: 2^-127 * 2^64 is 2^-63, not 0."""
    a = np.full((64, 4), 0x0040, np.uint16)  # 2^-127
    b = np.full((64, 4), 0x5F80, np.uint16)  # 2^64
    found = np.zeros((64, 4), np.float32)
    machine.launch("mfma_16x16x16_bf16", (1,), (64,), [a, b, np.zeros((64, 4), "f4"), found])
    assert (found == 16 * 2.0**-63).all()


def test_every_place_of_a_matrix_is_held_by_exactly_one_lane():
    for _, size, depth, blocks in SHAPES:
        held = {operand_place(size, depth, blocks, lane, e) for lane in range(64) for e in range(4)}
        assert len(held) == 256
        registers = blocks * size * size // 64
        results = {result_place(size, lane, r) for lane in range(64) for r in range(registers)}
        assert len(results) == blocks * size * size
