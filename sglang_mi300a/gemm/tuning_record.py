"""What tuning found so far, one line a product, kept for one device and software: the resume file.

A line is written whole when a product is done, so a run that is killed loses at most the products
that were under way. Products are won, or lost (stock is as fast), wrong (every candidate's output
is), crashed or stuck (a candidate ended, or never ended, its process).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from sglang_mi300a.artifact_manifest import checksum
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import tuned_table
from sglang_mi300a.gemm.kernels.catalogue import MAX_TOKENS
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuned_table import KERNEL, Choice
from sglang_mi300a.tables import Table

Outcome = Literal["won", "lost", "wrong", "crashed", "stuck"]
OUTCOMES: tuple[Outcome, ...] = ("won", "lost", "wrong", "crashed", "stuck")
MOST_RELATIVE_ERROR = 4e-3
"""Of a right product against float32, relative L2: one rounding to bf16 is at most 2^-9."""

LEAST_GAIN = 0.02
"""A winner must take so much less than stock's time. One and the same kernel, timed as winner and
as stock on an NVIDIA GPU, differed by up to 0.6 % (E2, ``benchmarks/tuning_null.py``)."""


@dataclass(frozen=True)
class Machine:
    """A device and its software, as a child process sees them.

    Attributes:
        device: ``name``, ``arch`` and ``visible_cus``.
        validators: TunableOp's versions by name.
    """

    device: Mapping[str, Any]
    validators: Mapping[str, str]

    def digest(self) -> str:
        """Return a checksum that differs where tables must."""
        text = json.dumps([dict(self.device), dict(self.validators)], sort_keys=True)
        return checksum(text.encode())[:16]


@dataclass(frozen=True)
class Measured:
    """One product's result.

    Attributes:
        n: Output features.
        k: Input features.
        m: Rows.
        outcome: What became of it.
        solution: The fastest that is right: TunableOp's winner, or a kernel of ours; or "".
        us: Its median time, microseconds; 0 where there is none.
        stock_us: Stock's.
        relative_error: Of the winner's output, which was NaN before, against float32.
        samples: Timings of each.
        others: Times of the other right candidates by name.
        wrong: Candidates whose output was wrong.
        kernels: Build of our kernels that were timed too; "" if none were.
        parts: Output features of the two products of one input that it is; ``n`` is their sum.
    """

    n: int
    k: int
    m: int
    outcome: Outcome
    solution: str = ""
    us: float = 0.0
    stock_us: float = 0.0
    relative_error: float = 0.0
    samples: int = 0
    others: Mapping[str, float] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    kernels: str = ""
    parts: Sequence[int] = ()

    @property
    def by_kernel(self) -> bool:
        """Whether a kernel of ours is the fastest."""
        return self.solution.startswith(KERNEL)

    @property
    def cell(self) -> Cell:
        """The product."""
        return Cell(self.n, self.k, self.m)


def judged(measured: Measured) -> Outcome:
    """Return what became of a product that ran to its end."""
    if not measured.relative_error <= MOST_RELATIVE_ERROR:  # NaN is wrong too
        return "wrong"
    return "won" if measured.us < (1 - LEAST_GAIN) * measured.stock_us else "lost"


class TuningRecord:
    """The results of one machine.

    Args:
        path: Its file.

    Attributes:
        results: Of single products.
        pairs: Of two products of one input in one launch.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[Cell, Measured] = {}
        self.pairs: dict[Cell, Measured] = {}
        if path.is_file():
            self._read()

    def _read(self) -> None:
        for number, line in enumerate(self.path.read_text("utf-8").splitlines(), start=1):
            if not line.endswith("}"):
                continue  # the last line of a run that was killed while it wrote
            try:
                measured = Measured(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise UserError(
                    f"{self.path}: line {number}",
                    found=f"{line[:60]!r} ({error})",
                    allowed="a result of sglang-mi300a tune gemm",
                    do="delete the line, or the file to tune afresh",
                ) from error
            self._take(measured)

    def _take(self, measured: Measured) -> None:
        (self.pairs if measured.parts else self.results)[measured.cell] = measured

    def add(self, measured: Measured) -> None:
        """Keep a result, on disk too."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        ends_whole = not self.path.is_file() or self.path.read_bytes()[-1:] in (b"", b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("" if ends_whole else "\n") + json.dumps(asdict(measured)) + "\n")
        self._take(measured)

    def done(
        self, kernels: str, again: Collection[Outcome] = (), *, pairs: bool = False
    ) -> set[Cell]:
        """Return the products that need no more tuning.

        Args:
            kernels: Build of our kernels; where another build was timed beside, or none, the
                product is to be tuned again. "" if they are not wanted.
            again: Outcomes that are to be tuned again.
            pairs: Pairs of products of one input instead of single ones.
        """
        return {
            cell
            for cell, one in (self.pairs if pairs else self.results).items()
            if one.outcome not in again
            and (not kernels or cell.m > MAX_TOKENS or one.kernels == kernels)
        }

    def counts(self) -> dict[str, int]:
        """Return how many products had each outcome."""
        found = [one.outcome for one in self.results.values()]
        return {outcome: found.count(outcome) for outcome in OUTCOMES}

    def library_choices(self) -> dict[Cell, str]:
        """Return TunableOp's choice for each product that ran to its end and was right."""
        found = {}
        for cell, one in self.results.items():
            if one.outcome in ("won", "lost"):
                names = (one.solution, *one.others, *one.wrong)
                library = [name for name in names if name and not name.startswith(KERNEL)]
                found[cell] = library[0] if library else "Default"
        return found

    def best(self) -> dict[Cell, str]:
        """Return the fastest solution of each product that is tuned, "" for stock's."""
        return {
            cell: one.solution if one.outcome == "won" else "" for cell, one in self.results.items()
        }

    def table(self, machine: Machine, *, date: str, kernels: str = "") -> Table | None:
        """Return the table of all products that were won; None if none was.

        Args:
            machine: Whose they are.
            date: When it is made.
            kernels: Build of our kernels; a time of another build's is left out.
        """
        won = [
            one
            for one in {**self.pairs, **self.results}.values()
            if one.outcome == "won" and (not one.by_kernel or one.kernels == kernels)
        ]
        if not won:
            return None
        return tuned_table.make(
            {
                one.cell: Choice(
                    "kernel" if one.by_kernel else "library",
                    one.solution,
                    "measured",
                    one.us,
                    one.stock_us,
                )
                for one in won
            },
            device=machine.device,
            validators=machine.validators,
            made={
                "by": "sglang-mi300a tune gemm",
                "date": date,
                "samples": min(one.samples for one in won),
                "largest_relative_error": max(one.relative_error for one in won),
                "stock_is_as_fast": self._lost(),
                **({tuned_table.KERNELS_BUILD: kernels} if kernels else {}),
            },
        )

    def _lost(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for cell, one in sorted(self.results.items()):
            if one.outcome == "lost":
                found.setdefault(f"{cell.n}x{cell.k}", []).append(cell.m)
        return found
