"""What a piece of work needs of this process's memory beyond what it leaves there."""

from __future__ import annotations

import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")


class PeakMemory:
    """The most that was resident at any sample, from its making on."""

    def __init__(self) -> None:
        self._before = self._most = _resident_bytes()

    def sample(self) -> None:
        """Look now; cheap enough for every chunk that is read."""
        self._most = max(self._most, _resident_bytes())

    def extra_bytes(self) -> int:
        """Return by how much the peak exceeded both what was there before and what is there now.

        Parameters in host memory become resident as they are filled and stay: they do not count.
        """
        self.sample()
        return self._most - max(self._before, _resident_bytes())


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()
