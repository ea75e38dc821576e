"""One instruction, how to write it, and what it must give."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """What a test executes and what it compares with.

    Attributes:
        mnemonic: The row of the interpreter's table that it tests.
        sources: Types of the source operands, in order (``oracles.values`` knows them).
        result: Type of the result; "mask" for a compare, which writes one bit a lane to s[40:41].
        oracle: Function of the sources' values. For ``carry`` it takes the carry as a last argument
            and returns (value, bit); for ``scc`` likewise.
        carry: "in", "out" or "inout": a bit a lane in vcc (in) and in s[40:41] (out).
        scc: The same for SCC of scalar instructions: "in", "out" or "inout".
        old: Whether the oracle's last source is the destination as it was.
        suffix: Modifiers, as written: `` clamp``.
        ulp: How many units in the last place the result may be off; the hardware is not exact.
        written: The whole instruction, if the operands above do not say it.
        limits: Range per source that its samples are taken modulo, where the rest is undefined.
    """

    mnemonic: str
    sources: tuple[str, ...]
    result: str
    oracle: Callable[..., Any]
    carry: str = ""
    scc: str = ""
    old: bool = False
    suffix: str = ""
    ulp: int = 0
    written: str = ""
    limits: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For the test's name."""
        return self.mnemonic.replace(" ", "_")


def cases(table: dict[str, tuple], **common: Any) -> list[Case]:
    """Return a case for each row ``mnemonic: (sources, result, oracle)``; sources by spaces."""
    return [
        Case(name, tuple(sources.split()), result, oracle, **common)
        for name, (sources, result, oracle) in table.items()
    ]
