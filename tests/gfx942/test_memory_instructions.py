"""Each load, store and atomic, in each kind of memory, against its words in Python integers.

ISA guide: "AMD Instinct MI300 Instruction Set Architecture", chapters 8 (scalar memory), 9
(buffers), 10 (flat, global, scratch), 11 (data share) and 12 (Instructions), sections SMEM, LDS,
MUBUF and FLAT."""

import random
import struct

import numpy as np
import pytest

from tests.gfx942.oracles import bench, spaces
from tests.gfx942.oracles.floating import added, larger, smaller
from tests.gfx942.oracles.integer import signed
from tests.gfx942.oracles.values import number, words

LDS_BYTES = spaces.LANE_BYTES * 64
SCRATCH_BYTES = 48


def unsigned_of(raw):
    return int.from_bytes(raw, "little")


# Name after global_load_, after ds_read_, bytes, and the result of the bytes and the old register.
LOADS = [
    ("ubyte", "u8", 1, lambda raw, old: unsigned_of(raw)),
    ("sbyte", "i8", 1, lambda raw, old: signed(unsigned_of(raw), 8)),
    ("ushort", "u16", 2, lambda raw, old: unsigned_of(raw)),
    ("sshort", "i16", 2, lambda raw, old: signed(unsigned_of(raw), 16)),
    ("ubyte_d16", "u8_d16", 1, lambda raw, old: old & 0xFFFF0000 | unsigned_of(raw)),
    ("ubyte_d16_hi", "u8_d16_hi", 1, lambda raw, old: old & 0xFFFF | unsigned_of(raw) << 16),
    (
        "sbyte_d16",
        "i8_d16",
        1,
        lambda raw, old: old & 0xFFFF0000 | signed(unsigned_of(raw), 8) & 0xFFFF,
    ),
    (
        "sbyte_d16_hi",
        "i8_d16_hi",
        1,
        lambda raw, old: old & 0xFFFF | (signed(unsigned_of(raw), 8) & 0xFFFF) << 16,
    ),
    ("short_d16", "u16_d16", 2, lambda raw, old: old & 0xFFFF0000 | unsigned_of(raw)),
    ("short_d16_hi", "u16_d16_hi", 2, lambda raw, old: old & 0xFFFF | unsigned_of(raw) << 16),
    ("dword", "b32", 4, lambda raw, old: unsigned_of(raw)),
    ("dwordx2", "b64", 8, lambda raw, old: unsigned_of(raw)),
    ("dwordx3", "b96", 12, lambda raw, old: unsigned_of(raw)),
    ("dwordx4", "b128", 16, lambda raw, old: unsigned_of(raw)),
]
# Name after global_store_, after ds_write_, bytes, and from which bit of the register on.
STORES = [
    ("byte", "b8", 1, 0),
    ("byte_d16_hi", "b8_d16_hi", 1, 16),
    ("short", "b16", 2, 0),
    ("short_d16_hi", "b16_d16_hi", 2, 16),
    ("dword", "b32", 4, 0),
    ("dwordx2", "b64", 8, 0),
    ("dwordx3", "b96", 12, 0),
    ("dwordx4", "b128", 16, 0),
]


def float_bits(function, kind, pairs=False):
    """An atomic on floats as a function of bits."""

    def on_bits(old, operand, compared):
        sources = [number(kind, [x & 0xFFFFFFFF, x >> 32]) for x in (old, operand)]
        if pairs:
            result = tuple(function(a, b) for a, b in zip(*sources, strict=True))
        else:
            result = function(*sources)
        found = words(kind, result)
        return found[0] | (found[1] << 32 if len(found) == 2 else 0)

    return on_bits


def to_bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def added_bf16_pairs(old, operand, compared):
    result = 0
    for shift in (0, 16):
        a, b = (number("f32", [(x >> shift & 0xFFFF) << 16]) for x in (old, operand))
        result |= to_bf16(added(a, b, "f32")) << shift
    return result


def of_width(function):
    """An atomic on signed numbers of one width."""
    return {
        bits: (lambda o, d, c, b=bits: function(signed(o, b), signed(d, b))) for bits in (32, 64)
    }


def same_of_all(function):
    return {32: function, 64: function}


# Name after global_atomic_, after ds_ (with %s for the type), and the new value by width in bits.
ATOMICS = [
    ("add", "add_%su", same_of_all(lambda o, d, c: o + d)),
    ("sub", "sub_%su", same_of_all(lambda o, d, c: o - d)),
    ("", "rsub_%su", same_of_all(lambda o, d, c: d - o)),
    ("smin", "min_%si", of_width(min)),
    ("smax", "max_%si", of_width(max)),
    ("umin", "min_%su", same_of_all(lambda o, d, c: min(o, d))),
    ("umax", "max_%su", same_of_all(lambda o, d, c: max(o, d))),
    ("and", "and_%sb", same_of_all(lambda o, d, c: o & d)),
    ("or", "or_%sb", same_of_all(lambda o, d, c: o | d)),
    ("xor", "xor_%sb", same_of_all(lambda o, d, c: o ^ d)),
    ("inc", "inc_%su", same_of_all(lambda o, d, c: 0 if o >= d else o + 1)),
    ("dec", "dec_%su", same_of_all(lambda o, d, c: d if o == 0 or o > d else o - 1)),
    ("swap", "wrxchg_%sb", same_of_all(lambda o, d, c: d)),
    ("cmpswap", "cmpst_%sb", same_of_all(lambda o, d, c: d if o == c else o)),
]
FLOAT_ATOMICS = [
    ("add_f32", "add_%sf32", 32, float_bits(lambda a, b: added(a, b, "f32"), "f32")),
    ("add_f64", "add_%sf64", 64, float_bits(lambda a, b: added(a, b, "f64"), "f64")),
    ("", "min_%sf32", 32, float_bits(smaller, "f32")),
    ("", "max_%sf32", 32, float_bits(larger, "f32")),
    ("min_f64", "", 64, float_bits(smaller, "f64")),
    ("max_f64", "", 64, float_bits(larger, "f64")),
    ("pk_add_f16", "pk_add_%sf16", 32, float_bits(lambda a, b: added(a, b, "f16"), "f16x2", True)),
    ("pk_add_bf16", "pk_add_%sbf16", 32, added_bf16_pairs),
]
# The assembler has no buffer_atomic_pk_add_bf16, and LDS swaps always return.
NO_SUCH = {"buffer_atomic_pk_add_bf16", "ds_wrxchg_b32", "ds_wrxchg_b64"}


def registers(first, num_bytes):
    count = (num_bytes + 3) // 4
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def mnemonic(space, kind, name, lds_name):
    return f"ds_{lds_name}" if space.name == "lds" else f"{space.name}_{kind}_{name}"


def random_lanes(rng):
    vectors = np.zeros((1, bench.NUM_VECTOR_INPUTS, 64), np.uint32)
    for k in range(bench.NUM_VECTOR_INPUTS):
        for lane in range(64):
            vectors[0, k, lane] = rng.getrandbits(32)
    return vectors


def all_programs():
    yield from (load_program(space, *load[:3]) for space in spaces.ALL for load in LOADS)
    yield from (store_program(space, *store[:3]) for space in spaces.ALL for store in STORES)
    for parameters in existing_atomics():
        case, space, returns = parameters.values
        yield atomic_program(space, *case[:3], returns)
    yield from (two_words_program(bits, st64) for bits in (32, 64) for st64 in (False, True))
    for num_words in (1, 2, 4, 8, 16):
        yield from scalar_load_programs(num_words)
    yield SWITCHED_OFF


@pytest.fixture(scope="module")
def batch():
    return bench.Batch(all_programs(), LDS_BYTES, SCRATCH_BYTES)


def run(batch, program, vectors):
    scalars = np.zeros((1, spaces.FIRST_BYTE // 4 + 64 * spaces.LANE_BYTES // 4), np.uint32)
    scalars[0, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = 0xFFFFFFFF
    return batch.run(program, vectors, scalars)


def memory_of(vectors, lane):
    """The 32 bytes that the lane's memory was filled with."""
    return vectors[0, :8, lane].tobytes()


def load_program(space, name, lds_name, num_bytes):
    loaded = mnemonic(space, "load", name, f"read_{lds_name}")
    offset = 6 if num_bytes <= 2 else 4
    return space.program(space.access(loaded, registers(20, num_bytes), offset), read_back=False)


STORE_OFFSETS = {1: 3, 2: 2, 16: 0}


def store_program(space, name, lds_name, num_bytes):
    stored = mnemonic(space, "store", name, f"write_{lds_name}")
    offset = STORE_OFFSETS.get(num_bytes, 4)
    return space.program(space.access(stored, registers(20, num_bytes), offset), read_back=True)


by_space = pytest.mark.parametrize("space", spaces.ALL, ids=lambda s: s.name)


@by_space
@pytest.mark.parametrize(
    ("name", "lds_name", "num_bytes", "oracle"), LOADS, ids=lambda x: str(x)[:12]
)
def test_a_load_extends_its_bytes_and_keeps_what_it_does_not_write(
    batch, space, name, lds_name, num_bytes, oracle
):
    offset = 6 if num_bytes <= 2 else 4
    vectors = random_lanes(random.Random(name))
    found = run(batch, load_program(space, name, lds_name, num_bytes), vectors)
    for lane in range(64):
        raw = memory_of(vectors, lane)[offset : offset + num_bytes]
        expected = vectors[0, 8:12, lane].tolist()
        value = oracle(raw, expected[0])
        for k in range((num_bytes + 3) // 4):
            expected[k] = value >> 32 * k & 0xFFFFFFFF
        assert found[:4, lane].tolist() == expected, f"lane {lane}"


@by_space
@pytest.mark.parametrize(
    ("name", "lds_name", "num_bytes", "shift"), STORES, ids=lambda x: str(x)[:12]
)
def test_a_store_writes_its_bytes_and_no_others(batch, space, name, lds_name, num_bytes, shift):
    offset = STORE_OFFSETS.get(num_bytes, 4)
    vectors = random_lanes(random.Random(name))
    found = run(batch, store_program(space, name, lds_name, num_bytes), vectors)
    for lane in range(64):
        data = vectors[0, 8:12, lane].tobytes()[shift // 8 : shift // 8 + num_bytes]
        raw = memory_of(vectors, lane)[:16]
        raw = raw[:offset] + data + raw[offset + num_bytes :]
        assert found[:4, lane].tobytes() == raw, f"lane {lane}"


def atomic_cases():
    cases = []
    for name, lds_name, by_width in ATOMICS:
        for bits, function in by_width.items():
            wide = f"{name}_x2" if bits == 64 else name
            cases.append((name and wide, f"{lds_name}{bits}", bits, function))
    return cases + FLOAT_ATOMICS


def atomic_program(space, name, lds_name, bits, returns):
    """The program, or None if there is no such instruction."""
    lds = space.name == "lds"
    if not (lds_name if lds else name):
        return None
    operation = mnemonic(
        space, "atomic", name, lds_name % ("rtn_" if returns else "") if lds_name else ""
    )
    if operation in NO_SUCH:
        return None
    num_bytes = bits // 8
    data = registers(20, num_bytes)
    if "cmp" in operation:
        # Memory: the new value, then the one compared with. LDS: the other way round, in two
        # operands.
        data = f"{registers(22, num_bytes)}, {data}" if lds else registers(20, 2 * num_bytes)
        if bits == 32:
            data = "v21, v20" if lds else "v[20:21]"
    if not returns:
        return space.program(space.access(operation, data, 8), read_back=True)
    if space.name == "buffer":  # the old value takes the operand's place
        lines = [space.access(operation, data, 8, result="in place")]
    else:
        lines = [space.access(operation, data, 8, result=registers(24, num_bytes))]
        lines += ["s_waitcnt vmcnt(0) lgkmcnt(0)"]
        lines += [f"v_mov_b32_e32 v{20 + k}, v{24 + k}" for k in range(num_bytes // 4)]
    return space.program(*lines, read_back=False)


ATOMIC_SPACES = [s for s in spaces.ALL if s.name != "scratch"]


def existing_atomics():
    return [
        pytest.param(case, space, returns, id=f"{space.name}-{case[0] or case[1] % ''}-{returns}")
        for case in atomic_cases()
        for space in ATOMIC_SPACES
        for returns in (False, True)
        if atomic_program(space, *case[:3], returns)
    ]


@pytest.mark.parametrize(("case", "space", "returns"), existing_atomics())
def test_an_atomic_combines_memory_and_operand_and_may_return_the_old_value(
    batch, case, space, returns
):
    name, lds_name, bits, function = case
    program = atomic_program(space, name, lds_name, bits, returns)
    rng = random.Random(f"{name}{lds_name}{returns}")
    vectors = random_lanes(rng)
    if function in [f for *_, f in FLOAT_ATOMICS]:
        vectors &= 0xBFFFBFFF  # no NaNs, whose bits are not defined, in any format
    vectors[0, 2, :8] = vectors[0, 8, :8]  # some equal, for compare and swap and the bounds of inc
    vectors[0, 3, :8] = vectors[0, 9, :8]
    compared_at = 8 + bits // 32
    vectors[0, compared_at, :32] = vectors[0, 2, :32]
    if bits == 64:
        vectors[0, compared_at + 1, :32] = vectors[0, 3, :32]
    found = run(batch, program, vectors)
    mask = (1 << bits) - 1
    for lane in range(64):
        lanes = [int(x) for x in vectors[0, :, lane]]

        def joined(first, lanes=lanes):
            return (lanes[first] | lanes[first + 1] << 32) & mask

        old, operand, compared = (
            joined(2),
            joined(8),
            joined(compared_at) if bits == 64 else lanes[9],
        )
        new = function(old, operand, compared) & mask
        result = int(found[0, lane]) | int(found[1, lane]) << 32
        if returns:
            assert result & mask == old, f"lane {lane}"
        else:
            held = int(found[2, lane]) | int(found[3, lane]) << 32
            assert held & mask == new, f"lane {lane}: {old:#x}, {operand:#x}"


def two_words_program(bits, st64):
    stride = bits // 8
    suffix = ("st64" if st64 else "") + f"_b{bits}"
    first, second = ("v[10:11]", "v[12:13]") if bits == 64 else ("v10", "v12")
    read = f"ds_read2{suffix} {registers(20, 2 * stride)}, v20 offset0:3 offset1:1"
    lines = [
        f"v_mul_u32_u24_e32 v3, {stride}, v0",
        f"ds_write2{suffix} v3, {first}, {second} offset0:1 offset1:3",
        "s_waitcnt lgkmcnt(0)",
        "v_mov_b32_e32 v20, v3",  # the address register may be part of the result
        read,
    ]
    return "\n  ".join(lines)


@pytest.mark.parametrize("st64", [False, True], ids=["", "st64"])
@pytest.mark.parametrize("bits", [32, 64])
def test_two_words_of_lds_are_read_and_written_at_two_offsets(batch, bits, st64):
    """DS_READ2, DS_WRITE2: offsets count elements, or 64 of them."""
    stride = bits // 8
    unit = stride * (64 if st64 else 1)
    vectors = random_lanes(random.Random(bits))
    found = run(batch, two_words_program(bits, st64), vectors)
    # All lanes write the first place, then all the second; in each the last lane wins.
    memory = {}
    for slot, k in ((1, 0), (3, 2)):
        for lane in range(64):
            memory[lane * stride + slot * unit] = vectors[0, k : k + bits // 32, lane].tolist()
    count = bits // 32
    for lane in range(64):
        expected = memory[lane * stride + 3 * unit] + memory[lane * stride + unit]
        assert found[: 2 * count, lane].tolist() == expected


DESCRIPTOR_BYTES = 72


def scalar_load_programs(num_words):
    """By constant offset, by register, by both; then through a buffer descriptor of 72 bytes."""
    width = "dword" if num_words == 1 else f"dwordx{num_words}"
    last = 64 + num_words - 1
    out = f"s[64:{last}]" if num_words > 1 else "s64"
    size = f"s_movk_i32 s38, {DESCRIPTOR_BYTES}"
    descriptor = f"s_mov_b32 s36, s8\n  s_mov_b32 s37, s9\n  {size}\n  s_mov_b32 s39, 0"
    loads = [
        f"s_load_{width} {out}, s[8:9], 0x40",
        f"s_movk_i32 s11, 0x40\n  s_load_{width} {out}, s[8:9], s11",
        f"s_movk_i32 s11, 0x20\n  s_load_{width} {out}, s[8:9], s11 offset:0x20",
        f"{descriptor}\n  s_buffer_load_{width} {out}, s[36:39], 0x40",
        f"{descriptor}\n  s_movk_i32 s11, 0x40\n  s_buffer_load_{width} {out}, s[36:39], s11",
    ]
    moved = ["s_waitcnt lgkmcnt(0)", "s_mov_b32 s40, s64", f"s_mov_b32 s41, s{last}"]
    moved.append(f"s_mov_b32 s42, s{64 + num_words // 2}")
    return ["\n  ".join([load, *moved]) for load in loads]


@pytest.mark.parametrize("num_words", [1, 2, 4, 8, 16])
def test_scalar_loads_by_constant_and_by_register_offset(batch, num_words):
    """S_LOAD_DWORD and its like; S_BUFFER_LOAD gives 0 past the descriptor's size."""
    data = np.random.default_rng(num_words).integers(1, 1 << 32, (1, 64), dtype=np.uint32)
    data[0, bench.EXEC_INPUT : bench.EXEC_INPUT + 2] = 0xFFFFFFFF
    for k, program in enumerate(scalar_load_programs(num_words)):
        loaded = data[0, 16 : 16 + num_words].tolist()
        if k >= 3:
            within = (DESCRIPTOR_BYTES - 64) // 4
            loaded = [word if n < within else 0 for n, word in enumerate(loaded)]
        found = batch.run(program, np.zeros((1, 1, 64), np.uint32), data)
        expected = [loaded[0], loaded[-1], loaded[num_words // 2]]
        at = bench.SCALAR_OUTPUT
        assert found[at : at + 3, 0].tolist() == expected, program


SWITCHED_OFF = spaces.GLOBAL.program(
    "v_cmp_gt_u32_e32 vcc, 5, v0",
    "v_cndmask_b32_e32 v3, -1, v3, vcc",  # lanes from 5 on point nowhere
    "s_mov_b64 exec, vcc",
    "global_store_dword v3, v20, s[8:9] offset:64",
    "s_mov_b64 exec, -1",
    "v_lshlrev_b32_e32 v3, 5, v0",
    read_back=True,
)


def test_lanes_that_exec_switches_off_touch_no_memory(batch):
    """ISA guide, chapter 3.3: an access of a lane that is off does not happen, wherever it
    points."""
    vectors = random_lanes(random.Random(1))
    found = run(batch, SWITCHED_OFF, vectors)
    expected = np.where(np.arange(64) < 5, vectors[0, 8], vectors[0, 0])
    np.testing.assert_array_equal(found[0], expected)
