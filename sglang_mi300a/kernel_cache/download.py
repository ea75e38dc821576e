"""Bring an archive here from a path or an address, bounded in size and time."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_mi300a.errors import UserError

_TIMEOUT_S = 60.0
_CHUNK_BYTES = 1 << 20


def fetch(
    source: str,
    target: Path,
    max_bytes: int,
    sha256: str | None,
    advance: Callable[[int], None],
) -> None:
    """Copy a file or download it.

    Args:
        source: A path, or an ``https``, ``http`` or ``file`` address.
        target: Where to; overwritten.
        max_bytes: Most bytes to take.
        sha256: What they must hash to, if known.
        advance: Told of bytes copied.

    Raises:
        UserError: It cannot be read, is too large, or has another checksum.
    """
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with _opened(source) as stream, target.open("wb") as out:
            while block := stream.read(_CHUNK_BYTES):
                num_bytes += len(block)
                if num_bytes > max_bytes:
                    raise _bad(source, f"more than {max_bytes} bytes", "raise --max-bytes")
                digest.update(block)
                out.write(block)
                advance(len(block))
    except (urllib.error.URLError, http.client.HTTPException, ValueError, TimeoutError) as error:
        raise _bad(source, f"not readable ({error})", "check the address") from error
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise _bad(source, f"not readable ({error.strerror})", "check the path") from error
    if sha256 is not None and digest.hexdigest() != sha256.lower():
        raise UserError(
            source,
            found=f"SHA-256 {digest.hexdigest()} of {num_bytes} bytes",
            allowed=f"SHA-256 {sha256.lower()}",
            do="get it again, or correct --sha256 if the archive was replaced on purpose",
        )


def _opened(source: str) -> Any:
    scheme = urllib.parse.urlsplit(source).scheme
    if scheme in ("https", "http", "file"):
        return urllib.request.urlopen(source, timeout=_TIMEOUT_S)
    if scheme and "://" in source:
        raise _bad(source, f"scheme {scheme!r}", "give a path, or an https, http or file address")
    return Path(source).open("rb")


def _bad(source: str, found: str, do: str) -> UserError:
    return UserError(
        source, found=found, allowed="an archive that `kernel-cache pack` wrote", do=do
    )
