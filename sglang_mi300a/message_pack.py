"""Decode MessagePack, the form of a code object's metadata.

Only what such metadata holds: maps, lists, text, integers, booleans and nil. Source: the
MessagePack specification, "Formats".
"""

from __future__ import annotations

import struct
from typing import Any

_INTEGERS = {
    0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_TEXT_LENGTHS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LIST_LENGTHS = {0xDC: ">H", 0xDD: ">I"}
_MAP_LENGTHS = {0xDE: ">H", 0xDF: ">I"}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_MAX_DEPTH = 32


def decode(data: bytes) -> Any:
    """Return the one value that ``data`` holds.

    Raises:
        ValueError: The bytes end early, go on after the value, or hold a form not listed above.
    """
    value, end = _value(data, 0, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes after the value")
    return value


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested over {_MAX_DEPTH} levels deep")
    first, at = _number(data, at, ">B")
    if first <= 0x7F:
        return first, at
    if first >= 0xE0:
        return first - 0x100, at
    if first in _CONSTANTS:
        return _CONSTANTS[first], at
    if first in _INTEGERS:
        return _number(data, at, _INTEGERS[first])
    if first <= 0x8F:
        return _map(data, at, first & 0x0F, depth)
    if first <= 0x9F:
        return _list(data, at, first & 0x0F, depth)
    if first <= 0xBF:
        return _text(data, at, first & 0x1F)
    for lengths, of in ((_MAP_LENGTHS, _map), (_LIST_LENGTHS, _list)):
        if first in lengths:
            length, at = _number(data, at, lengths[first])
            return of(data, at, length, depth)
    if first in _TEXT_LENGTHS:
        length, at = _number(data, at, _TEXT_LENGTHS[first])
        return _text(data, at, length)
    raise ValueError(f"byte 0x{first:02x} at {at - 1}")


def _number(data: bytes, at: int, form: str) -> tuple[int, int]:
    end = at + struct.calcsize(form)
    if end > len(data):
        raise ValueError(f"ends at byte {len(data)}")
    number: int = struct.unpack_from(form, data, at)[0]
    return number, end


def _text(data: bytes, at: int, length: int) -> tuple[str, int]:
    if at + length > len(data):
        raise ValueError(f"ends at byte {len(data)}")
    return data[at : at + length].decode("utf-8"), at + length


def _list(data: bytes, at: int, length: int, depth: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(length):
        item, at = _value(data, at, depth + 1)
        items.append(item)
    return items, at


def _map(data: bytes, at: int, length: int, depth: int) -> tuple[dict[Any, Any], int]:
    entries = {}
    for _ in range(length):
        key, at = _value(data, at, depth + 1)
        if not isinstance(key, (str, int)):
            raise ValueError(f"a key of type {type(key).__name__}")
        entries[key], at = _value(data, at, depth + 1)
    return entries, at
