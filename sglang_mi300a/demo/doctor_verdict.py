"""Doctor's verdict on this machine, in short."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sglang_mi300a import device
from sglang_mi300a.cli.doctor import headline
from sglang_mi300a.code_objects import ARCH
from sglang_mi300a.demo.account import Account
from sglang_mi300a.demo.child import sglang_mi300a
from sglang_mi300a.demo.journey import Journey
from sglang_mi300a.doctor import record
from sglang_mi300a.doctor.judging import SEVERITIES
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK

EXPECTED = "no-gfx942"
"""What doctor must find on a machine like a laptop."""


def run(journey: Journey, account: Account) -> None:
    """Ask doctor."""
    here = [one.arch for one in device.accelerators()]
    against = EXIT_OK if ARCH in here else EXIT_JUDGED_AGAINST
    done = sglang_mi300a(account, journey, "doctor", "--json", expect=against, shown=False)
    told = json.loads(done.output)
    found = told["findings"]
    account.say(headline(record.parse(json.dumps(told["facts"]), "doctor --json")))
    account.table(
        ("severity", "finding", "seen"),
        [(one["severity"], one["id"], one["seen"]) for one in found],
    )
    for fault in judge([one["id"] for one in found], here):
        account.fault(fault)
    severities = [one["severity"] for one in found]
    counts = [f"{severities.count(name)} {name}" for name in SEVERITIES if name in severities]
    account.say(
        f"found: {', '.join(counts) or 'nothing'}; `sglang-mi300a doctor` says what to do. "
        + (
            "An MI300A is what is missing here, so all that follows runs without one."
            if EXPECTED in {one["id"] for one in found}
            else "This is a node of the kind that the package is for."
        )
    )


def judge(found: Iterable[str], archs: Iterable[str]) -> list[str]:
    """Return how doctor is wrong about the accelerators.

    Args:
        found: Ids of its findings.
        archs: Of the accelerators that are here.
    """
    has_ours, says_none = ARCH in archs, EXPECTED in found
    if has_ours == says_none:
        return [f"doctor says {EXPECTED}: {says_none}, though {ARCH} is here: {has_ours}"]
    return []
