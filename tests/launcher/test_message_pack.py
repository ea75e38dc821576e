"""The decoder of code object metadata against the format's specification."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_mi300a import message_pack


def encoded(value):
    """Return a value in MessagePack, each time in the widest form that its kind has."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return struct.pack(">Bq", 0xD3, value) if value < 0 else struct.pack(">BQ", 0xCF, value)
    if isinstance(value, str):
        data = value.encode()
        return b"\xdb" + struct.pack(">I", len(data)) + data
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(encoded, value))
    items = b"".join(encoded(key) + encoded(item) for key, item in value.items())
    return b"\xdf" + struct.pack(">I", len(value)) + items


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_was_encoded_comes_back(value):
    assert message_pack.decode(encoded(value)) == value


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x00", 0),
        (b"\x7f", 127),
        (b"\xe0", -32),
        (b"\xff", -1),
        (b"\xcc\xff", 255),
        (b"\xcd\x01\x00", 256),
        (b"\xce\x00\x01\x00\x00", 65536),
        (b"\xd0\x80", -128),
        (b"\xd1\x80\x00", -32768),
        (b"\xd2\x80\x00\x00\x00", -(1 << 31)),
        (b"\xa3abc", "abc"),
        (b"\xd9\x01x", "x"),
        (b"\xda\x00\x01x", "x"),
        (b"\x92\x01\xc0", [1, None]),
        (b"\xdc\x00\x01\x05", [5]),
        (b"\x81\xa1k\xc3", {"k": True}),
        (b"\xde\x00\x01\xa1k\x09", {"k": 9}),
    ],
)
def test_the_short_forms_of_the_specification(data, value):
    assert message_pack.decode(data) == value


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "ends at byte 0"),
        (b"\xcd\x01", "ends at byte 2"),
        (b"\xa5abc", "ends at byte 4"),
        (b"\x92\x01", "ends at byte 2"),
        (b"\xdd\xff\xff\xff\xff", "ends at byte 5"),
        (b"\x01\x02", "1 bytes after the value"),
        (b"\xca\x00\x00\x00\x00", "byte 0xca at 0"),
        (b"\xa1\xff", "utf-8"),
        (b"\x81\x90\x01", "a key of type list"),
        (b"\x91" * 100, "nested over 32 levels deep"),
    ],
)
def test_what_is_not_such_a_value_is_refused(data, found):
    with pytest.raises(ValueError, match=found):
        message_pack.decode(data)
