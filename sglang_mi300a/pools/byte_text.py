"""Sizes as people read and write them: GB is 10^9 bytes, GiB is 2^30, and both are written out."""

from __future__ import annotations

import re

from sglang_mi300a.errors import UserError

GB = 10**9
MIB = 1 << 20
GIB = 1 << 30

_UNITS = {"B": 1, "MB": 10**6, "MiB": MIB, "GB": GB, "GiB": GIB, "TB": 10**12, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?i?B)")


def both(num_bytes: int) -> str:
    """Return ``12.93 GB (12.04 GiB)``."""
    return f"{num_bytes / GB:.2f} GB ({num_bytes / GIB:.2f} GiB)"


def size(text: str, *, where: str) -> int:
    """Return the bytes that ``15GiB`` or ``8 GB`` means; a bare number has no unit and is refused.

    Args:
        text: A number and a unit.
        where: The flag it came from, for the error.

    Raises:
        UserError: No such size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS:
        raise UserError(
            where,
            found=repr(text),
            allowed=f"a number and one of {', '.join(_UNITS)} (GB = 10^9, GiB = 2^30 bytes)",
            do="write for instance 15GiB",
        )
    return round(float(match[1]) * _UNITS[match[2]])
