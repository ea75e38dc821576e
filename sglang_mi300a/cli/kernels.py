"""The compiled gfx942 kernels of the expert layer, and whether they are right on this machine.

    sglang-mi300a kernels selftest      one small expert layer on every rung, compared

`selftest` runs what every rank runs before it loads a model, at the sizes of one rank of
Qwen3.5-397B-A17B at TP 4 unless told otherwise. It exits with 1 if a rung that can run here gives a
wrong result, or if on gfx942 the compiled kernels cannot run.
"""

from __future__ import annotations

import argparse
import importlib
import json
from typing import Any

from sglang_mi300a import device as devices
from sglang_mi300a import settings
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their flags."""
    verbs = parser.add_subparsers(metavar="VERB", dest="verb", required=True)
    selftest = verbs.add_parser("selftest", help="one small expert layer on every rung")
    add = selftest.add_argument
    add("--hidden", type=int, default=4096, metavar="N", help="hidden size (4096)")
    add("--neurons", type=int, default=256, metavar="N", help="of an expert on a rank (256)")
    add("--layout", default="stream/1", metavar="ID", help="layout of the experts (stream/1)")
    add("--json", action="store_true", help="for machines")
    selftest.set_defaults(run_verb=_selftest)


def run(args: argparse.Namespace) -> int:
    """Run a verb."""
    code: int = args.run_verb(args)
    return code


def _selftest(args: argparse.Namespace) -> int:
    torch: Any = importlib.import_module("torch")
    from sglang_mi300a.moe import ladder
    from sglang_mi300a.moe.rungs import ExpertSizes

    target = devices.target_device(
        cpu_engine=settings.cpu_engine_asked(), found=devices.accelerators()
    )
    device = torch.device("cuda" if target == "gfx942" else "cpu")
    sizes = ExpertSizes(ladder.SELF_TEST_EXPERTS, args.hidden, args.neurons, 2, args.layout)
    rows = ladder.examine(device, sizes, ladder.makers(1024, torch.bfloat16))
    must_run = {"hip"} if target == "gfx942" else set()
    bad = [row for row in rows if row.is_wrong or (row.rung in must_run and not row.passed)]
    if args.json:
        print(
            json.dumps({"device": str(device), "rungs": [row.report() for row in rows]}, indent=1)
        )
    else:
        print(f"expert layer, hidden {args.hidden}, {args.neurons} neurons, on {device}")
        for row in rows:
            print(f"  {row.rung:<7} {row.in_words()}")
    return EXIT_JUDGED_AGAINST if bad else EXIT_OK
