"""How far a read or a write of many bytes is, on stderr."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any


class ProgressBar:
    """A bar of bytes, shown between ``with`` and its end; nothing where stderr is no terminal.

    Args:
        what: Words in front of it.
        total_bytes: Bytes of the whole work.
        done_bytes: Bytes that were done before.
        wanted: Show it, or not; default if stderr is a terminal.
        line: Line below the cursor that is its own, where several processes show one each.
        stays: Whether its last state stays on the screen.
        unit: What is counted where it is no bytes.
    """

    def __init__(
        self,
        what: str,
        total_bytes: int,
        *,
        done_bytes: int = 0,
        wanted: bool | None = None,
        line: int = 0,
        stays: bool = True,
        unit: str = "B",
    ) -> None:
        self._lock = threading.Lock()
        self._bar: Any = None
        if sys.stderr.isatty() if wanted is None else wanted:
            from tqdm import tqdm  # only runs that show it need it

            self._bar = tqdm(
                total=total_bytes,
                initial=done_bytes,
                unit=unit,
                unit_scale=unit == "B",
                desc=what,
                file=sys.stderr,
                position=line,
                leave=stays,
            )

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, num_bytes: int) -> None:
        """Count bytes; any thread may."""
        if self._bar is not None:
            with self._lock:
                self._bar.update(num_bytes)
