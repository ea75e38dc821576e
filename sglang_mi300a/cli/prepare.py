"""Do what a first start needs, in one command, and print the line that starts the server.

    sglang-mi300a prepare --model DIR --preset tuned              the first hour; goes on if stopped
    sglang-mi300a prepare --model DIR --preset tuned --dry-run    what is left, minutes, disk
    sglang-mi300a prepare --model DIR --skip gemm-table           without a step
    sglang-mi300a prepare --model DIR --with golden               with one that is optional

Steps: doctor, shard, golden (optional), kernel-cache, gemm-table, expert-table, plan. Each is
judged by what it makes (the artifact, the store, the tables), never by a note that it ran; what is
whole is kept. So after a kill, or a cure, the same command goes on where it stopped. A step that
cannot be done on this machine is said; the run goes on only where a server starts without it. The
first step that fails ends it, with its message and with what was done. DIR may also be an artifact
of shard-weights.

Minutes and disk beforehand are estimates. Exit code 1: doctor or the plan went against; 2: a step
refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_mi300a import served_model
from sglang_mi300a.cli.prepare_steps import OPTIONAL, STEPS, State, Step, Wanted
from sglang_mi300a.errors import EXIT_OK, JudgedAgainst, UserError
from sglang_mi300a.serving import preset as presets

DEFAULT_TP = 4


@dataclass
class Row:
    """One step of a run.

    Attributes:
        step: Which.
        state: Before it was run, then after.
        estimated_s: Seconds, before.
        estimated_bytes: To be written, before.
        became: ``kept``, ``done``, ``fine`` (a check), ``cannot``, ``skipped``, ``failed``,
            ``stopped`` (by the user), or ``not reached``.
        spent_s: Seconds it took.
        spent_bytes: By which its places grew.
    """

    step: Step
    state: State
    estimated_s: float
    estimated_bytes: int
    became: str = "not reached"
    spent_s: float = 0.0
    spent_bytes: int = 0

    def as_data(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "step": self.step.name,
            "state": self.state.kind,
            "said": self.state.said,
            "became": self.became,
            "estimated_s": round(self.estimated_s, 1),
            "estimated_bytes": self.estimated_bytes,
            "spent_s": round(self.spent_s, 1),
            "spent_bytes": self.spent_bytes,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add = parser.add_argument
    add(
        "--model", "--model-path", required=True, type=Path, metavar="DIR",
        help="Hugging Face checkpoint, or an artifact of one",
    )  # fmt: skip
    add(
        "--preset", "--mi300a", default="tuned", metavar="NAME",
        help=f"{', '.join(presets.names())} (default: tuned)",
    )  # fmt: skip
    add("--out", type=Path, metavar="DIR", help="artifact to make (default: DIR-tpN beside DIR)")
    add(
        "--tp-size", "--tp", type=int, metavar="N",
        help=f"ranks (default: the artifact's, else {DEFAULT_TP})",
    )  # fmt: skip
    add(
        "--node", metavar="FILE",
        help="plan memory for a described node (default: this one, or mi300a-x4 where no "
        "accelerator is)",
    )  # fmt: skip
    add(
        "--skip", action="append", default=[], metavar="STEP", choices=[s.name for s in STEPS],
        help=f"leave a step out ({', '.join(step.name for step in STEPS)}); may be repeated",
    )  # fmt: skip
    add(
        "--with", action="append", default=[], metavar="STEP", choices=OPTIONAL, dest="optional",
        help=f"do an optional step, too ({', '.join(OPTIONAL)})",
    )  # fmt: skip
    add("--verify", action="store_true", help="also read every byte of the artifact")
    add("--dry-run", action="store_true", help="say what is left to do, do nothing")
    add("--json", action="store_true", help="an account for machines; what steps say to stderr")


def run(args: argparse.Namespace) -> int:
    """Look, do what is missing, print the launch line."""
    wanted = _wanted(args)
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        rows = [_row(step, wanted, _left_out(step, args)) for step in STEPS]
        print(_table_before(rows))
        print(_disk(wanted, rows))
    if args.dry_run:
        if args.json:
            print(_account(wanted, rows, None))
        else:
            for row in rows:
                if row.state.kind in ("check", "to do") and row.became != "skipped":
                    print(f"would run: sglang-mi300a {shlex.join(row.step.words(wanted))}")
        for row in rows:
            if row.state.error is not None and row.became != "skipped":
                raise row.state.error  # as the run would
        return EXIT_OK
    failure: BaseException | None = None
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        try:
            for number, row in enumerate(rows, start=1):
                _do(row, number, wanted)
        except (UserError, JudgedAgainst, KeyboardInterrupt) as error:
            failure = error
        print(f"\n{_table_after(rows)}")
    if args.json:
        print(_account(wanted, rows, failure))
    if failure is not None:
        at = next(row for row in rows if row.became in ("failed", "stopped"))
        print(
            f"stopped at step {at.step.name}; the same command goes on from there",
            file=sys.stderr,
        )
        raise failure
    if not args.json:
        print(f"start the server:\n\n    {launch_line(wanted)}\n")
    return EXIT_OK


def _wanted(args: argparse.Namespace) -> Wanted:
    presets.load(args.preset)
    model = served_model.read(args.model)
    tp = args.tp_size or model.artifact_tp or DEFAULT_TP
    served_model.check_parallel(model, tp, model.artifact_ep or 1)
    path = Path(args.model)
    out = args.out or path.with_name(f"{path.resolve().name}-tp{tp}")
    if model.is_artifact:
        if args.out is not None:
            raise UserError(
                f"--out {args.out}",
                found=f"{path}, which is an artifact already",
                allowed="--out with a checkpoint",
                do="leave --out out, or give the checkpoint",
            )
        out = path
    return Wanted(path, out, args.preset, tp, args.node, args.verify)


def launch_line(wanted: Wanted) -> str:
    """Return the command that starts the server."""
    words = ["sglang-mi300a", "serve", "--model", str(wanted.served), "--preset", wanted.preset]
    if wanted.served != wanted.out:  # an artifact brings its number of ranks along
        words += ["--tp-size", str(wanted.tp)]
    return shlex.join(words)


# -- doing -----------------------------------------------------------------------------------------


def _left_out(step: Step, args: argparse.Namespace) -> str:
    """Return why a step is left out, or ""."""
    if step.name in args.skip:
        return "left out as asked"
    if step.name in OPTIONAL and step.name not in args.optional:
        return f"optional: --with {step.name}"
    return ""


def _row(step: Step, wanted: Wanted, left_out: str) -> Row:
    if left_out:
        return Row(step, State("check", left_out), 0.0, 0, became="skipped")
    state = step.state(wanted)
    return Row(step, state, state.seconds, state.num_bytes)


def _do(row: Row, number: int, wanted: Wanted) -> None:
    """Do a step if it has something to do; raise where it fails, or no server starts without."""
    if row.became == "skipped":
        return
    step = row.step
    row.state = step.state(wanted)  # steps before it may have changed what it looks at
    if row.state.error is not None:
        row.became = "failed"
        raise row.state.error
    if row.state.kind in ("done", "cannot"):
        row.became = "kept" if row.state.kind == "done" else "cannot"
        return
    print(
        f"\n[{number}/{len(STEPS)}] {step.name}: sglang-mi300a {shlex.join(step.words(wanted))}",
        flush=True,
    )
    was_check = row.state.kind == "check"
    with _spent(row, wanted):
        row.state = step.run(wanted)
        if row.state.error is not None:
            raise row.state.error
    row.became = "fine" if was_check else "done"
    print(f"{step.name}: {_minutes(row.spent_s)}, {_size(row.spent_bytes)}", flush=True)


@contextlib.contextmanager
def _spent(row: Row, wanted: Wanted) -> Iterator[None]:
    before, began = row.step.num_bytes(wanted), time.monotonic()
    try:
        yield
    except KeyboardInterrupt:
        row.became = "stopped"
        raise
    except BaseException:
        row.became = "failed"
        raise
    finally:
        row.spent_s = time.monotonic() - began
        row.spent_bytes = max(0, row.step.num_bytes(wanted) - before)


# -- saying ----------------------------------------------------------------------------------------


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds else "-"


def _size(num_bytes: float) -> str:
    if not num_bytes:
        return "-"
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _table_before(rows: Sequence[Row]) -> str:
    lines = [f"{'step':<13} {'state':<9} {'minutes':>10} {'disk':>10}   (estimates)"]
    for row in rows:
        kind = "skipped" if row.became == "skipped" else row.state.kind
        lines.append(
            f"{row.step.name:<13} {kind:<9} {_minutes(row.estimated_s):>10} "
            f"{_size(row.estimated_bytes):>10}   {row.state.said}"
        )
    total_s = sum(row.estimated_s for row in rows)
    total_bytes = sum(row.estimated_bytes for row in rows)
    lines.append(f"{'in all':<23} {_minutes(total_s):>10} {_size(total_bytes):>10}")
    return "\n".join(lines)


def _disk(wanted: Wanted, rows: Sequence[Row]) -> str:
    """Return the room where most is written."""
    place = wanted.out.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    needed = next(row.estimated_bytes for row in rows if row.step.name == "shard")
    short = "" if needed <= free else f", {_size(needed - free)} too little for the weights"
    return f"room at {place}: {_size(free)} free{short}"


def _table_after(rows: Sequence[Row]) -> str:
    lines = [f"{'step':<13} {'became':<11} {'estimated':>22} {'spent':>22}"]
    for row in rows:
        estimated = f"{_minutes(row.estimated_s)}, {_size(row.estimated_bytes)}"
        spent = f"{_minutes(row.spent_s)}, {_size(row.spent_bytes)}"
        said = f"   {row.state.said}" if row.became in ("cannot", "kept") else ""
        lines.append(f"{row.step.name:<13} {row.became:<11} {estimated:>22} {spent:>22}{said}")
    return "\n".join(lines)


def _account(wanted: Wanted, rows: Sequence[Row], failure: BaseException | None) -> str:
    at = [row.step.name for row in rows if row.became in ("failed", "stopped")]
    reached = failure is None and all(row.became != "not reached" for row in rows)
    body = {
        "model": str(wanted.model),
        "artifact": str(wanted.out),
        "preset": wanted.preset,
        "tp": wanted.tp,
        "steps": [row.as_data() for row in rows],
        "failed": {"step": at[0], "message": str(failure)} if failure is not None else None,
        "launch": launch_line(wanted) if reached else None,
    }
    return json.dumps(body, indent=1)
