"""The header reader takes what the safetensors library takes, and names what is wrong otherwise."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import safetensors_header as header
from tests.weights.checkpoints import file_bytes


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def file_of(text, data=b"\0\0\0\0"):
    if not isinstance(text, bytes):
        text = json.dumps(text).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.fixture
def read(tmp_path):
    def read_bytes(content):
        path = tmp_path / "a file [1].safetensors"
        path.write_bytes(content)
        return header.read(path)

    return read_bytes


def test_offsets_are_those_of_the_file(read):
    content = file_bytes({"b": ("U8", (3,), b"abc"), "a": ("BF16", (2, 1), b"wxyz")})
    found = read(content)
    assert [(t.name, t.dtype, t.shape) for t in found.tensors] == [
        ("b", "U8", (3,)),
        ("a", "BF16", (2, 1)),
    ]
    assert [content[t.offset : t.offset + t.size] for t in found.tensors] == [b"abc", b"wxyz"]


def test_it_reads_what_the_library_wrote(read):
    from safetensors import numpy as library

    arrays = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.array(1, dtype=np.int64),
        "nothing": np.zeros((0, 32), dtype=np.uint8),
    }
    content = library.save(arrays, metadata={"format": "np"})
    found = {t.name: t for t in read(content).tensors}
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        tensor = found[name]
        assert tensor.shape == array.shape
        assert content[tensor.offset : tensor.offset + tensor.size] == array.tobytes()


def test_the_library_reads_what_it_renders():
    from safetensors import numpy as library

    head = header.render([("w", "U8", (2, 3)), ("none", "F32", (0,)), ("v", "F32", (1,))])
    assert len(head) % header.DATA_ALIGNMENT == 0
    found = library.load(head + bytes(range(6)) + np.float32(7).tobytes())
    assert found["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["none"].shape == (0,)
    assert found["v"].tolist() == [7.0]


GOOD = {"a": entry(offsets=(0, 2), shape=(2,)), "b": entry(offsets=(2, 4), shape=(2,))}


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        (header.Truncated, b"", "0 bytes"),
        (header.Truncated, file_of(GOOD)[:5], "5 bytes"),
        (header.Truncated, file_of(GOOD)[:-1], "where b ends"),
        (header.Truncated, (1000).to_bytes(8, "little") + b"{}", "header before the data"),
        (header.TrailingBytes, file_of(GOOD) + b"xy", "2 bytes after"),
        (header.HeaderSizeOutOfRange, (2**63).to_bytes(8, "little"), "header of 92233"),
        (header.HeaderSizeOutOfRange, (0).to_bytes(8, "little"), "header of 0"),
        (header.HeaderSizeOutOfRange, (100_000_001).to_bytes(8, "little"), "100000001"),
        (header.BadHeaderText, file_of(b" {}", b""), "starts with"),
        (header.BadHeaderText, file_of(b'{"a": '), "no JSON"),
        (header.BadHeaderText, file_of(b'{"\xff": 1}'), "no JSON"),
        (header.BadHeaderText, file_of(b'{"a":' + b"[" * 100_000), "no JSON|deeply"),
        (header.BadHeaderText, file_of({"a": 1}), "a with int"),
        (header.BadHeaderText, file_of({"a": {**entry(), "x": 1}}), "'x'"),
        (header.BadHeaderText, file_of({"__metadata__": {"n": 1}}, b""), "map of strings"),
        (header.DuplicateTensor, file_of(b'{"a":{},"a":{}}'), "'a' twice"),
        (header.UnknownDtype, file_of({"a": entry("C64")}), "C64"),
        (header.UnknownDtype, file_of({"a": entry("F4")}), "smaller than a byte"),
        (header.UnknownDtype, file_of({"a": entry(["U8"])}), "U8"),
        (header.BadShape, file_of({"a": entry(shape=(-4,))}), "-4"),
        (header.BadShape, file_of({"a": entry(shape=(True, 4))}), "True"),
        (header.BadShape, file_of({"a": entry(shape=(4.0,))}), "4.0"),
        (header.BadOffsets, file_of({"a": entry(offsets=(0,))}), r"\[0\]"),
        (header.BadOffsets, file_of({"a": entry(offsets=(0, 5))}), "5 bytes"),
        (header.BadOffsets, file_of({"a": entry(offsets=(4, 0))}), "-4 bytes"),
        (header.BadOffsets, file_of({"a": entry("F32", (1000, 1000))}), "4000000 bytes for F32"),
        (header.NotDense, file_of({"a": entry(), "b": entry()}), "b .* inside a"),
        (header.NotDense, file_of({"a": entry(offsets=(1, 5))}, bytes(5)), "gap behind the header"),
    ],
)
def test_each_attack_is_named(kind, content, words, read):
    with pytest.raises(kind, match=words) as caught:
        read(content)
    assert caught.value.where.endswith("a file [1].safetensors")


def test_a_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        header.read(tmp_path / "absent.safetensors")


@given(st.data())
def test_no_damage_gets_past_both_readers(tmp_path_factory, data):
    """A flipped byte is refused with a name, or read as the safetensors library reads it."""
    from safetensors import numpy as library

    content = bytearray(file_of(GOOD))
    at = data.draw(st.integers(0, len(content) - 5))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(content)
    try:
        ours = {t.name: t.shape for t in header.read(path).tensors}
    except header.HeaderError:
        return
    theirs = {name: a.shape for name, a in library.load(bytes(content)).items()}
    assert ours == theirs
