"""What a start came to, judged and told by the launcher once the warm-up has been answered."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_mi300a import boot_report, boot_timeline, golden, settings
from sglang_mi300a.boot_report import RankReport
from sglang_mi300a.errors import JudgedAgainst
from sglang_mi300a.serving import fused_paths, golden_check, start_check, steps, warm_up

FILE = "launch.json"
"""In the run directory: what the launcher says of a start, beside its ranks' reports."""


@dataclass(frozen=True)
class Start:
    """A start that came to its end.

    Attributes:
        timeline: Where its time went.
        done: The warm-up.
        paths: SGLang's fast paths.
        warnings: What is wrong and yet served.
        eager_decode_steps: Decode steps of the warm-up outside a graph, the most of all ranks.
        distance: To the golden logits beside the weights; None where there are none.
    """

    timeline: Sequence[boot_timeline.Row]
    done: warm_up.Done
    paths: Sequence[fused_paths.Seen]
    warnings: Sequence[str]
    eager_decode_steps: int
    distance: golden.Verdict | None = None

    def as_data(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "timeline": [vars(row) for row in self.timeline],
            "warm_up": self.done.as_data(),
            "paths": {
                one.path.id: {"status": one.status, "detail": one.detail} for one in self.paths
            },
            "warnings": list(self.warnings),
            "eager_decode_steps": self.eager_decode_steps,
            "golden": golden.as_data(self.distance) if self.distance else None,
        }

    def in_words(self) -> str:
        """Return it as the lines that the launcher prints."""
        accepted = (
            f", {self.done.tokens_a_step:.2f} tokens a step" if self.done.tokens_a_step else ""
        )
        return "\n".join(
            [
                "sglang-mi300a: where the time of this start went",
                boot_timeline.table(self.timeline),
                f"  warm-up: {self.done.requests} requests, {self.done.tokens} tokens in "
                f"{self.done.seconds:.1f} s{accepted}; sums over ranks right on every rank",
                f"  {self.distance or 'no golden logits beside the weights to compare with'}",
                "sglang-mi300a: SGLang's fast paths, by calls that went through them",
                *(f"  {one}" for one in self.paths),
                *(f"sglang-mi300a: {line}" for line in self.warnings),
            ]
        )


async def once_checked(
    read: Callable[[], Mapping[int, RankReport]], num_ranks: int, *, polls: int, poll_s: float
) -> Mapping[int, RankReport]:
    """Return the ranks' reports as soon as each rank has checked itself, or the last ones read.

    SGLang answers for its first rank alone; the others report within the same step, a little
    earlier or later.

    Args:
        read: Returns what ranks have reported so far.
        num_ranks: How many there are.
        polls: Reads, at most.
        poll_s: Pause between them.
    """
    reports = read()
    for _ in range(polls - 1):
        if not _silent(reports, num_ranks):
            break
        await asyncio.sleep(poll_s)
        reports = read()
    return reports


def _silent(reports: Mapping[int, RankReport], num_ranks: int) -> list[int]:
    return [
        rank
        for rank in range(num_ranks)
        if rank not in reports or start_check.FACT not in reports[rank].facts
    ]


def judge(
    reports: Mapping[int, RankReport],
    record: settings.Resolved,
    sizes: warm_up.Sizes,
    done: warm_up.Done,
    launcher: Sequence[boot_timeline.Mark],
    *,
    switches: Collection[str],
    refuse_drafts: bool,
    distance: golden.Verdict | None = None,
    refuse_distance: bool = True,
) -> Start:
    """Return what a start came to.

    Args:
        reports: Of the ranks, after their own checks.
        record: The launcher's decision.
        sizes: What the server is laid out for.
        done: The warm-up.
        launcher: The launcher's marks.
        switches: Fields of SGLang's ``ServerArgs`` that are on and ask for a fast path.
        refuse_drafts: Whether drafts that are hardly ever accepted stop the server.
        distance: To the golden logits beside the weights, where there are any.
        refuse_distance: Whether one that no rounding explains stops the server.

    Raises:
        JudgedAgainst: A rank did not check itself, or drafts or the distance are refused.
    """
    if silent := _silent(reports, record.num_local_ranks):
        raise JudgedAgainst(
            f"warm-up: rank {', '.join(map(str, silent))} did not report after it, so nothing is "
            "known of its sums, steps and paths"
        )
    problem = warm_up.acceptance_problem(done, with_draft=record.with_draft)
    if problem and refuse_drafts:
        raise JudgedAgainst(problem)
    off = golden_check.warning(distance) if distance else ""
    wrong = golden_check.refusal(distance) if distance else ""
    if wrong and refuse_distance:
        raise JudgedAgainst(wrong)
    facts = [report.facts for _, report in sorted(reports.items())]
    counted = [steps.of_data(one["warm_up_steps"]) for one in facts]
    calls = {
        name: min(one["fused_paths"][name] for one in facts) for name in facts[0]["fused_paths"]
    }
    worst = max(counted, key=lambda one: steps.total(one, steps.DECODING)[1])
    paths = fused_paths.judge(
        calls,
        worst,
        fused_paths.Asked(
            on_accelerator=record.device != "cpu",
            with_draft=record.with_draft,
            num_ranks=record.num_local_ranks,
            decode_captured=bool(sizes.decode_batches),
            prefill_captured=bool(sizes.prefill_tokens),
            switches=frozenset(switches),
        ),
    )
    missed = warm_up.untouched(sizes.decode_batches, steps.decode_batches(worst))
    warnings = [
        *(f"WARNING: {line}" for line in (problem, wrong or off) if line),
        *(
            [f"WARNING: no step of the warm-up used the captured batches {missed}"]
            if missed
            else []
        ),
        *fused_paths.warnings(paths),
    ]
    ranks = [boot_timeline.of_data(one["timeline"]) for one in facts]
    return Start(
        timeline=boot_timeline.rows(launcher, ranks),
        done=done,
        paths=paths,
        warnings=warnings,
        eager_decode_steps=steps.total(worst, steps.DECODING)[1],
        distance=distance,
    )


def write(run_dir: Path, data: Mapping[str, Any]) -> None:
    """Write the launcher's file, whole or not at all; a directory that is gone is no error."""
    if not run_dir.is_dir():
        return
    temporary = run_dir / f".{FILE}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(data), encoding="utf-8")
    os.replace(temporary, run_dir / FILE)


def read(run_dir: Path) -> dict[str, Any] | None:
    """Return what the launcher wrote, or None where it has not."""
    path = run_dir / FILE
    if not path.is_file():
        return None
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def refusal(run_dir: Path) -> tuple[str, int] | None:
    """Return why the launcher itself gave up, and with which exit code; None if it did not."""
    data = read(run_dir)
    return (data["refusal"], data["exit_code"]) if data and "refusal" in data else None


def reports_of(record: settings.Resolved) -> dict[int, RankReport]:
    """Return what the ranks of a launch have reported."""
    return boot_report.read_all(Path(record.run_dir))
