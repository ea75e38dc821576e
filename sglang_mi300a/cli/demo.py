"""A walk through the whole product on this machine, without a GPU, each step with its evidence.

Doctor, a tiny Quark MXFP4 Qwen3.5-MoE made and sharded for two ranks, one expert layer of true
sizes on the shipped gfx942 code (in a checkout), tables applied and refused, the memory plan of the
397B model, then the tiny model served by stock SGLang's CPU engine with preset `baseline` and with
`tuned`, every greedy token compared with transformers' own implementation, and the control: stock
without the package. It ends in one HTML page that loads nothing.

What it shows is computed on a CPU (evidence level E0) or is gfx942 code in an interpreter (E1):
that the path is right, and nothing of its speed on an MI300A. Exit code 1: a step failed; it is
named.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from sglang_mi300a import settings, shipped
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--json", action="store_true", help="only a summary for machines on stdout")
    parser.add_argument(
        "--page", type=Path, metavar="FILE",
        help="where the HTML page goes (default: demo.html in the state directory)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep model and artifact there (must not exist)"
    )


def run(args: argparse.Namespace) -> int:
    """Take the walk; exit 0 only if no step failed."""
    from sglang_mi300a.demo import console, page, summary, walk
    from sglang_mi300a.demo.journey import Journey

    target = (args.page or settings.state_dir() / "demo.html").absolute()
    _check_writable(target)
    accounts = []
    with _scratch(args.keep) as scratch, _ended_as_by_ctrl_c():
        journey = Journey(scratch)
        terminal = console.Console(len(walk.STEPS), quiet=args.json)
        for account in walk.take(journey, walk.STEPS, terminal.start, terminal.piece):
            accounts.append(account)
            terminal.end(account)
    target.write_text(page.render(accounts, version=shipped.version()), encoding="utf-8")
    if args.json:
        print(json.dumps(summary.of_walk(accounts, journey.counts, target)))
    else:
        print(console.closing(accounts))
        print(f"\n{page.result(accounts)}\npage: {target}")
    failed = walk.failed(accounts)
    for account in accounts:
        for fault in account.faults:
            print(f"sglang-mi300a demo: step {account.name} failed: {fault}", file=sys.stderr)
    return EXIT_JUDGED_AGAINST if failed else EXIT_OK


def _check_writable(target: Path) -> None:
    """Check now that the page can be written in the end."""
    found = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = f"not writable ({error.strerror})"
    if target.is_dir():
        found = "a directory"
    elif not os.access(target if target.exists() else target.parent, os.W_OK):
        found = found or "not writable"
    if found:
        raise UserError(
            f"--page {target}", found=found, allowed="a file that can be written", do="name another"
        )


@contextmanager
def _scratch(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="sglang-mi300a-demo-") as scratch:
            yield Path(scratch)
        return
    if keep.exists():
        raise UserError(
            f"--keep {keep}", found="it exists", allowed="a new directory", do="name another"
        )
    keep.mkdir(parents=True)
    yield keep.absolute()


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Take a polite end (SIGTERM) like Ctrl-C, so that every process is ended first."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
