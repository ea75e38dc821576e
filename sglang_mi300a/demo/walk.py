"""The steps of the walk, in order, and how one is taken after the other."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sglang_mi300a.cli.server_process import ServerDied
from sglang_mi300a.demo import (
    control,
    counts,
    dense_tables,
    doctor_verdict,
    expert_block,
    memory_plan,
    serving,
    sharding,
)
from sglang_mi300a.demo.account import FAILED, PASSED, Account, Piece
from sglang_mi300a.demo.journey import Journey
from sglang_mi300a.errors import JudgedAgainst, UserError


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: Short name.
        title: What it shows.
        evidence: Its level.
        take: Does it.
        needs: Steps that must have passed before.
    """

    name: str
    title: str
    evidence: str
    take: Callable[[Journey, Account], None]
    needs: tuple[str, ...] = ()


def reference(journey: Journey, account: Account) -> None:
    """Ask transformers' own implementation everything that servers will be asked."""
    from sglang_mi300a.demo.conversation import NUM_AT_ONCE, NUM_TOKENS, QUESTIONS, Writer

    script = Writer(journey.model).write()
    journey.script = script
    account.say(
        f"{len(script.sessions)} sessions of {len(QUESTIONS)} turns, one chat of messages, and "
        f"{NUM_AT_ONCE} prompts more, {NUM_TOKENS} greedy tokens each: {script.num_tokens} tokens "
        "at float32, MXFP4 weights dequantised exactly"
    )


def compare(journey: Journey, account: Account) -> None:
    """Hold the counts of both servers against each other."""
    baseline, tuned = journey.counts["baseline"], journey.counts["tuned"]
    for fault in counts.faults_between(baseline, tuned):
        account.fault(fault)
    account.table(("count", "baseline", "tuned"), counts.rows([baseline, tuned]))
    account.say(counts.verdict(baseline, tuned))


STEPS = (
    Step("doctor", "what would go wrong on this machine", "E0", doctor_verdict.run),
    Step("tiny-model", "a tiny checkpoint of the same architecture", "E0", sharding.make_model),
    Step(
        "shard-weights", "cut for two ranks, without GPU or engine", "E0",
        sharding.shard, ("tiny-model",),
    ),
    Step("expert-block", "the shipped gfx942 code at true sizes", "E1", expert_block.run),
    Step("gemm-tables", "a table for dense products applied, two refused", "E0", dense_tables.run),
    Step("memory-plan", "what the 397B model takes of each APU", "E0", memory_plan.run),
    Step(
        "reference", "what transformers' own implementation says", "E0", reference, ("tiny-model",)
    ),
    Step(
        "baseline", "stock SGLang serving it, preset baseline", "E0",
        serving.baseline, ("shard-weights", "reference"),
    ),
    Step(
        "tuned", "the same server with preset tuned: MTP", "E0",
        serving.tuned, ("shard-weights", "reference"),
    ),
    Step("verdict", "what the two servers' counts say", "E0", compare, ("baseline", "tuned")),
    Step(
        "control", "with the package off, stock fails for the known reason", "E0",
        control.run, ("tiny-model",),
    ),
)  # fmt: skip

_FAILURES = (
    *(UserError, JudgedAgainst, ServerDied, subprocess.SubprocessError),
    *(AssertionError, ImportError, LookupError, OSError, RuntimeError, ValueError),
)
"""What a step may end with and has then failed, be it by an error of this program."""


def take(
    journey: Journey,
    steps: Sequence[Step] = STEPS,
    on_start: Callable[[Account], None] = lambda account: None,
    on_piece: Callable[[Piece], None] = lambda piece: None,
) -> Iterator[Account]:
    """Take the steps; yield the account of each when it is over.

    A step that fails stops those that need it, and no other.
    """
    done: dict[str, str] = {}
    for step in steps:
        account = Account(step.name, step.title, step.evidence, on_piece)
        on_start(account)
        began = time.monotonic()
        missing = [name for name in step.needs if done.get(name) != PASSED]
        if missing:
            account.not_run(f"it needs {', '.join(missing)}")
        else:
            try:
                step.take(journey, account)
            except _FAILURES as error:
                account.fault(f"{type(error).__name__}: {error}")
            except BaseException:
                print(f"sglang-mi300a demo: stopped in step {step.name}", file=sys.stderr)
                raise
        account.seconds = time.monotonic() - began
        done[step.name] = account.status
        yield account


def failed(accounts: Sequence[Account]) -> list[str]:
    """Return the names of the steps that failed."""
    return [account.name for account in accounts if account.status == FAILED]
