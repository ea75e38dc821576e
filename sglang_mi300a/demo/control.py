"""The control: with the package off, stock SGLang fails on the same checkpoint."""

from __future__ import annotations

import sys

from sglang_mi300a import settings
from sglang_mi300a.cli.server_process import Server, ServerDied
from sglang_mi300a.cpu_engine import recipe
from sglang_mi300a.demo.account import Account
from sglang_mi300a.demo.journey import Journey

KNOWN_REASON = "name 'e8m0_shuffle' is not defined"
"""Stock's MXFP4 expert layer wants AITER, which it imports on ROCm only."""

FLAGS = (
    "--device", "cpu", "--disable-overlap-schedule", "--dtype", "bfloat16",
    "--max-total-tokens", "1024", "--max-mamba-cache-size", "16",
    "--attention-backend", "torch_native", "--mi300a", "off",
)  # fmt: skip


def run(journey: Journey, account: Account) -> None:
    """Start stock SGLang with the package off; it must fail, and for the known reason."""
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(journey.model)]
    account.say(
        f"starting: python -m sglang.launch_server --model-path DEMO/model {' '.join(FLAGS)}"
    )
    environment = {"PYTHONPATH": settings.python_path_with(recipe.standins_path())}
    try:
        with Server([*command, *FLAGS], environment):
            account.fault("stock served the checkpoint without the package")
    except ServerDied as died:
        for fault in judge(died.exit_code, died.log):
            account.fault(fault)
        account.say(f"it ended with {died.exit_code}: {_last_error(died.log)}")


def judge(exit_code: int | None, log: str) -> list[str]:
    """Return why a failed start is not the known one.

    Args:
        exit_code: Of the server; None if it did not end by itself.
        log: All it printed.
    """
    faults = []
    if exit_code is None:
        faults.append("it did not end by itself")
    if KNOWN_REASON not in log:
        faults.append(f"not for the known reason ({KNOWN_REASON})")
    if "ranks loaded the package" in log:
        faults.append("the package was loaded although it was off")
    return faults


def _last_error(log: str) -> str:
    lines = [line for line in log.splitlines() if "Error" in line]
    return lines[-1].strip() if lines else "no error in its log"
