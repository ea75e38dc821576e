"""Tuning where there is nothing to gain: no row may come of it, and nothing else either.

    python benchmarks/tuning_null.py [--json]

Runs `tune gemm` on an accelerator other than an MI300A, through PyTorch's real TunableOp, on a few
products, twice. First as it is: there TunableOp knows `Default` alone and our kernels do not run,
so the table must be empty. Then with the library's own product in the place of each kernel, one of
them spoilt: every step of timing and verifying runs, all candidates are one and the same kernel,
and what differs is noise, which a winner's margin (`LEAST_GAIN`) must exceed. Level E2; takes a
minute. Ends with 1 if a product is won, or the spoilt kernel is not found out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from sglang_mi300a.cli import tune
from sglang_mi300a.gemm.kernels import catalogue
from sglang_mi300a.gemm.linear_shapes import ONE_LAUNCH
from sglang_mi300a.gemm.row_counts import Batches
from sglang_mi300a.gemm.shape_grid import Product, ShapeGrid
from sglang_mi300a.gemm.tuning_plan import batches_of, pairs_of
from sglang_mi300a.gemm.tuning_record import LEAST_GAIN, Measured, TuningRecord
from sglang_mi300a.gemm.tuning_run import ChildCommand, TuningRun, ask_machine

SPOILT = "gemm_skinny_16x16_w16"
SAMPLES = 30
GRID = ShapeGrid(
    tp=1,
    batches=Batches((1,), 0, 0, (), 64),
    products=(
        Product(62080, 4096, ("lm_head",), 1, 0, (16, 320)),
        Product(5120, 4096, (ONE_LAUNCH[0],), 1, 0, (1, 16, 256)),
        Product(32, 4096, (ONE_LAUNCH[1],), 1, 0, (1, 16, 256)),
    ),
)


def play_child() -> None:
    """Be a tuning process in which the library makes what our kernels would."""
    import torch

    from sglang_mi300a.gemm import candidates, own_products, skinny, tune_child

    def product(x: Any, w: Any, out: Any, w_2: Any, out_2: Any, kernel: str) -> None:
        torch.mm(x, w.t(), out=out)
        if w_2 is not None:
            torch.mm(x, w_2.t(), out=out_2)
        if kernel == SPOILT:
            out[0, 0] = float("nan")

    usable = frozenset(kernel.name for kernel in catalogue.KERNELS)
    candidates.NOTHING_FASTER = ("",)
    own_products.self_test = lambda *_: own_products.SelfTest(usable, {})
    skinny.product = product
    tune_child.main()


def tuned(how: ChildCommand, folder: Path) -> tuple[TuningRecord, dict[str, str], bool]:
    """Return what tuning the grid found, kernels that were not timed, and whether a table came."""
    machine, kernels = ask_machine(how), catalogue.build()
    record = TuningRecord(folder / "record.jsonl")
    dropped: dict[str, str] = {}
    for batches in (lambda: batches_of(GRID.cells()), lambda: pairs_of(GRID, record.best(), set())):
        run = TuningRun(how, record, samples=SAMPLES, done=lambda _: None, kernels=kernels)
        run.over(batches(), [0])
        dropped |= run.dropped
    return record, dropped, record.table(machine, date="now", kernels=kernels) is not None


def largest_difference(results: list[Measured]) -> float:
    """Return by how much a candidate's median differed at most from stock's, as a part of it."""
    return max(
        (
            abs(us / one.stock_us - 1)
            for one in results
            if one.stock_us
            for us in (one.us, *one.others.values())
        ),
        default=0.0,
    )


def main() -> int:
    """Tune twice and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        play_child()
        return 0
    import torch

    if not torch.cuda.is_available():
        print("not run: no accelerator here")
        return 2
    how = tune.child_command()
    playing = ChildCommand([sys.executable, __file__, "--child"], how.environment_on)
    report: dict[str, Any] = {
        "command": "python benchmarks/tuning_null.py --json",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "evidence": "E2",
        "samples": SAMPLES,
        "least_gain": LEAST_GAIN,
    }
    good = True
    for name, command in (("as it is", how), ("the library for our kernels", playing)):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            record, dropped, has_table = tuned(command, Path(folder))
        results = [*record.results.values(), *record.pairs.values()]
        spoilt = [one for one in results if any(SPOILT in wrong for wrong in one.wrong)]
        report[name] = {
            "outcomes": record.counts(),
            "pairs": len(record.pairs),
            "has_table": has_table,
            "kernels_not_timed": len(dropped),
            "candidates": sum(len(one.others) + bool(one.us) for one in results),
            "products_where_the_spoilt_one_is_wrong": len(spoilt),
            "products_of_few_tokens": sum(one.m <= catalogue.MAX_TOKENS for one in results),
            "largest_difference": round(largest_difference(results), 4),
        }
        good = good and not has_table and all(one.outcome == "lost" for one in results)
    played = report["the library for our kernels"]
    good = good and (
        played["products_where_the_spoilt_one_is_wrong"] == played["products_of_few_tokens"]
    )
    print(json.dumps(report, indent=1) if args.json else report)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
