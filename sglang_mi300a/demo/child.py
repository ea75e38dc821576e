"""Programs that a step starts and waits for; none outlives it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sglang_mi300a import served_model, settings
from sglang_mi300a.cli.server_process import end_group
from sglang_mi300a.demo.account import Account, Command
from sglang_mi300a.demo.journey import Journey

WITHIN_S = 300.0


def sglang_mi300a(
    account: Account,
    journey: Journey,
    *arguments: str | Path,
    expect: int,
    says: Sequence[str] = (),
    shown: bool = True,
) -> Command:
    """Run a command of this program as a user would, and judge it.

    Args:
        account: Gets the command, and a fault if it is not as expected.
        journey: Its own state directory is used, not the user's.
        arguments: Of ``sglang-mi300a``.
        expect: Exit code.
        says: Texts that the output must hold.
        shown: Whether what it printed is to be read.
    """
    words = [str(word) for word in arguments]
    exit_code, output = run(
        [sys.executable, "-m", "sglang_mi300a.cli.main", *words],
        {settings.STATE_DIR: str(journey.scratch / "state")},
    )
    typed = _shortened(shlex.join(["sglang-mi300a", *words]), journey)
    done = Command(typed, _shortened(output, journey).rstrip(), exit_code)
    if shown:
        account.add(done)
    account.expect(
        exit_code == expect, f"`{typed}` ended with {exit_code}, expected {expect}: {_tail(output)}"
    )
    for text in says:
        account.expect(text in output, f"`{typed}` does not say {text!r}")
    return done


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: Path | None = None,
    within_s: float = WITHIN_S,
) -> tuple[int, str]:
    """Run a program; return its exit code and what it printed.

    Args:
        command: Program and arguments.
        environment: Variables to add.
        folder: Where it runs; None: here.
        within_s: Seconds it may take.

    Raises:
        subprocess.TimeoutExpired: It took longer, and was ended.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=settings.child_environment(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=within_s)
    except BaseException:
        end_group(process)
        raise
    return process.returncode, output


def _shortened(text: str, journey: Journey) -> str:
    """Return a text with short names for the folders of the walk."""
    text = text.replace(str(journey.scratch), "DEMO")
    return text.replace(str(served_model.SHIPPED_CONFIG), served_model.SHIPPED_CONFIG.name)


def _tail(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
