"""How a finding is declared: a pure function over facts, with why it matters and what cures it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from sglang_mi300a.doctor.facts import Facts

Severity = Literal["breaks", "risks", "note"]
SEVERITIES: dict[Severity, str] = {
    "breaks": "the server will not start, or gives wrong output",
    "risks": "it may end, stall, or be much slower",
    "note": "worth knowing; nothing to do",
}
DOCS = "docs/findings.md"


@dataclass(frozen=True)
class Seen:
    """One thing that a judge saw.

    Attributes:
        what: With its values.
        fill: Values for the ``{names}`` in the judge's cure.
    """

    what: str
    fill: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """What is told of one thing seen.

    Attributes:
        id: Of the judge.
        severity: How bad.
        seen: What was seen.
        why: Why it matters.
        cure: The one command or setting.
        docs: Where more is said.
    """

    id: str
    severity: Severity
    seen: str
    why: str
    cure: str
    docs: str


@dataclass(frozen=True)
class Judge:
    """A kind of finding.

    Attributes:
        id: Its name, for ever.
        severity: How bad.
        why: Why it matters.
        cure: The one command or setting; ``{names}`` are filled with what was seen.
        anywhere: Whether it matters on machines without a gfx942 too.
        see: Yields what was seen.
    """

    id: str
    severity: Severity
    why: str
    cure: str
    anywhere: bool
    see: Callable[[Facts], Iterator[Seen]]

    @property
    def cure_in_words(self) -> str:
        """The cure with ``<names>`` where values will stand."""
        return re.sub(r"\{(\w+)\}", r"<\1>", self.cure)

    def findings(self, facts: Facts) -> list[Finding]:
        """Return what it finds."""
        return [
            Finding(
                self.id,
                self.severity,
                seen.what,
                self.why,
                self.cure.format(**seen.fill),
                f"{DOCS}#{self.id}",
            )
            for seen in self.see(facts)
        ]


def judge(
    severity: Severity, *, why: str, cure: str, anywhere: bool = False
) -> Callable[[Callable[[Facts], Iterator[Seen]]], Judge]:
    """Make a function that looks at facts a judge; its name is the finding's."""

    def declare(see: Callable[[Facts], Iterator[Seen]]) -> Judge:
        return Judge(see.__name__.replace("_", "-"), severity, why, cure, anywhere, see)

    return declare
