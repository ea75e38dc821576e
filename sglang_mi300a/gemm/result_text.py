"""The lines of a result file that a tuner wrote, refused where a reader would see another file."""

from __future__ import annotations

from sglang_mi300a.errors import UserError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def lines_of(data: bytes, where: str, begins_with: str) -> list[str]:
    """Return a file's lines.

    Args:
        data: Its bytes.
        where: Its path, for errors.
        begins_with: The word a whole file begins with.

    Raises:
        UserError: A byte-order mark, a carriage return, a byte that is not ASCII, or a last line
            without its end.
    """
    if data.startswith(BYTE_ORDER_MARK):
        raise refused(where, "a byte-order mark (EF BB BF)", f"a file that begins {begins_with}")
    if b"\r" in data:
        number = data[: data.index(b"\r")].count(b"\n") + 1
        raise refused(
            f"{where}: line {number}", "a carriage return (CRLF line ends)", "LF line ends"
        )
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at {error.start}"
        raise refused(where, found, "ASCII") from error
    if not text.endswith("\n"):
        raise refused(where, "a last line without its end (is the file cut?)", "whole lines")
    return text.splitlines()


def refused(where: str, found: str, allowed: str) -> UserError:
    """Return the refusal of a result file."""
    return UserError(
        where, found=found, allowed=allowed, do="tune again, or repair the file; none of it is used"
    )
