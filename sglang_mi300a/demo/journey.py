"""What steps of the walk hand to later ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_mi300a.demo.conversation import Script
    from sglang_mi300a.demo.counts import Counts


@dataclass
class Journey:
    """The state of one walk.

    Attributes:
        scratch: Folder that everything is made in.
        script: What every server is asked, with the right answers, once made.
        counts: What each server answered, by preset.
    """

    scratch: Path
    script: Script | None = None
    counts: dict[str, Counts] = field(default_factory=dict)

    @property
    def model(self) -> Path:
        """The tiny checkpoint."""
        return self.scratch / "model"

    @property
    def artifact(self) -> Path:
        """What ``shard-weights`` makes of it."""
        return self.scratch / "artifact"
