"""The stream layout: a permutation of bits, and where the kernels expect what."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_mi300a import stream_layout
from sglang_mi300a.errors import UserError
from sglang_mi300a.layout import ExpertTensor
from sglang_mi300a.stream_layout import Stream

# Rows and K of one expert on one rank.
SHAPES = {
    "TP 2": ((1024, 4096), (4096, 512)),
    "TP 4": ((512, 4096), (4096, 256)),
    "TP 8": ((256, 4096), (4096, 128)),
    "EP 4": ((2048, 4096), (4096, 1024)),
}


def random_mxfp4(rows, k, seed=0):
    rng = np.random.default_rng([seed, rows, k])
    packed = rng.integers(0, 256, (rows, k // 2), dtype=np.uint8)
    return packed, rng.integers(0, 256, (rows, k // 32), dtype=np.uint8)


@st.composite
def matrices(draw):
    projection = draw(st.sampled_from(["w13", "w2"]))
    rows = 32 * draw(st.integers(1, 4))
    if projection == "w13" or draw(st.booleans()):
        k = 512 * draw(st.integers(1, 3))
    else:
        k = 128 * draw(st.integers(1, 4))
    return projection, rows, k, draw(st.integers(0, 2**32 - 1))


@given(matrices())
def test_every_code_and_scale_comes_back(matrix):
    projection, rows, k, seed = matrix
    packed, scales = random_mxfp4(rows, k, seed)
    stream = stream_layout.split_mxfp4(projection, packed, scales)
    assert stream.nbytes * 32 == rows * k * 17
    back = stream_layout.join_mxfp4(projection, stream, rows, k)
    assert np.array_equal(back[0], packed)
    assert np.array_equal(back[1], scales)


@given(matrices())
def test_every_bf16_weight_comes_back(matrix):
    projection, rows, k, seed = matrix
    weights = np.random.default_rng(seed).integers(0, 256, (rows, 2 * k), dtype=np.uint8)
    stream = stream_layout.split_bf16(projection, weights)
    assert np.array_equal(stream_layout.join_bf16(projection, stream, rows, k), weights)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_the_layout_is_undone_at_the_shapes_that_are_served(shapes):
    for projection, (rows, k) in zip(("w13", "w2"), shapes, strict=True):
        packed, scales = random_mxfp4(rows, k)
        plain = {f"{projection}_weight": packed, f"{projection}_weight_scale": scales}
        stored = Stream().apply(plain)
        assert list(stored) == [f"{projection}_stream"]
        tensors = [ExpertTensor(name, "U8", array.shape) for name, array in plain.items()]
        promised = Stream().stored(tensors)
        assert [(t.name, t.dtype, t.shape) for t in promised] == [
            (f"{projection}_stream", "U8", stored[f"{projection}_stream"].shape)
        ]
        back = Stream().undo(stored)
        assert {name: array.tobytes() for name, array in back.items()} == {
            name: array.tobytes() for name, array in plain.items()
        }
        assert {name: array.shape for name, array in back.items()} == {
            name: array.shape for name, array in plain.items()
        }


def test_bf16_experts_keep_their_own_order():
    plain = {"w13_weight": np.arange(64, dtype=np.uint8).reshape(4, 16)}
    tensors = [ExpertTensor("w13_weight", "BF16", (4, 8))]
    assert Stream().stored(tensors) == tuple(tensors)
    assert Stream().apply(plain)["w13_weight"] is plain["w13_weight"]
    assert Stream().undo(plain)["w13_weight"] is plain["w13_weight"]


@pytest.mark.parametrize(
    ("projection", "rows", "k"),
    [
        ("w13", 512, 2048),  # another hidden size
        ("w13", 2 * 1000, 4096),  # neurons no multiple of 16
        ("w13", 2 * 768, 4096),  # above 512 but no multiple of it: w2 could not follow
        ("w2", 4096, 64),  # less than a record along K
        ("w2", 4096, 640),
        ("w2", 2048, 256),
    ],
)
def test_sizes_without_a_kernel_are_refused_by_number(projection, rows, k):
    tensors = [
        ExpertTensor(f"{projection}_weight", "U8", (rows, k // 2)),
        ExpertTensor(f"{projection}_weight_scale", "U8", (rows, k // 32)),
    ]
    with pytest.raises(UserError, match=f"layout stream/1, {projection}") as refused:
        Stream().stored(tensors)
    assert str(rows if projection == "w2" else k) in str(refused.value)


def test_stored_bits_are_a_permutation():
    places = [
        stream_layout.stored_bit(block, value, bit)
        for block in (0, 1)
        for value in range(8)
        for bit in range(4)
    ]
    assert sorted(places) == list(range(64))


def code_in_stream(stream, first_record, record, row, k):
    """Read one code as a lane of the kernels does: by rotations of its words, not by the tables."""
    start = (first_record + record) * stream_layout.RECORD_BYTES + stream_layout.SCALE_BYTES
    block, inside = divmod(k, 32)
    group, value = divmod(inside, 8)
    lane = 16 * group + row
    words = stream[start + 16 * lane :][:16].view("<u4").astype(np.uint64)
    a, b = int(words[block & ~1]), int(words[block | 1])
    merged = (a & 0x06030603) | (b << 2 & 0xFFFFFFFF & ~0x06030603)
    word, rotation = ((a, b)[block % 2], (0, 4, -6)[value // 2]) if value < 6 else (merged, None)
    if rotation is None:
        rotation = (6, -4)[block % 2]
    turned = (word << rotation % 32 | word >> (-rotation) % 32) & 0xFFFFFFFF
    half = turned >> 16 * (value % 2)
    return (half >> 6 & 7) | (half >> 12 & 8)


@pytest.mark.parametrize("projection", ["w13", "w2"])
def test_a_lane_finds_the_codes_of_its_row(projection):
    rows, k = 64, 1024
    packed, scales = random_mxfp4(rows, k)
    codes = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(rows, k)
    stream = stream_layout.split_mxfp4(projection, packed, scales)
    items, slices, records = rows // 32, k // 512, 4
    rng = np.random.default_rng(5)
    for row, place in zip(rng.integers(0, rows, 200), rng.integers(0, k, 200), strict=True):
        slice_, in_slice = divmod(int(place), 512)
        record, in_record = divmod(in_slice, 128)
        if projection == "w13":  # gate rows first, up rows after; an item has 16 of each
            side, of_side = divmod(int(row), rows // 2)
            item, in_tile = divmod(of_side, 16)
            first = ((slice_ * items + item) * 2 + side) * records
        else:  # even rows on side 0, odd ones on side 1
            item, of_item = divmod(int(row), 32)
            in_tile, side = divmod(of_item, 2)
            first = ((item * slices + slice_) * 2 + side) * records
        assert code_in_stream(stream, first, record, in_tile, in_record) == codes[row, place]
        scale_at = (first + record) * stream_layout.RECORD_BYTES + 4 * in_tile + in_record // 32
        assert stream[scale_at] == scales[row, place // 32]
