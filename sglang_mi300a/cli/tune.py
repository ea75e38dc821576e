"""Tune what a server runs on this very node and software, into a table of your own.

    sglang-mi300a tune gemm --model S --dry-run        the plan and its minutes; no GPU needed
    sglang-mi300a tune gemm --model S                  every dense product of preset tuned
    sglang-mi300a tune gemm --model S --apply          and use the table from the next start on
    sglang-mi300a tune moe --dry-run                   tiles and grids of the expert layer
    sglang-mi300a tune moe                             and use what is fastest from then on

Each weight shape is tuned in a process of its own on each device: a candidate that crashes costs
the product under way and no more. The library's winner and, up to 256 tokens, each kernel of this
package that takes the product are verified on an output that was NaN before, and timed in turns
with stock's choice in captured graphs over cold weights; what is not faster than stock is left out.
Results are kept as they come: run the command again to go on after Ctrl-C, a crash, or with another
preset, and only what is missing is tuned. Nothing else should run on the devices meanwhile.

`tune moe` times every tile and grid of the expert kernels beside the rung that would serve without
them. Its table comes before the shipped one, whose rows are predictions.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time

from sglang_mi300a import device as devices
from sglang_mi300a import settings
from sglang_mi300a.cli import gemm as gemm_command
from sglang_mi300a.cli import tables as tables_command
from sglang_mi300a.cli import tune_moe
from sglang_mi300a.errors import EXIT_OK, UserError
from sglang_mi300a.gemm import staging, tuned_table, tuning_plan
from sglang_mi300a.gemm.kernels import catalogue
from sglang_mi300a.gemm.shape_grid import ShapeGrid, folded
from sglang_mi300a.gemm.tuning_record import Machine, Measured, Outcome, TuningRecord
from sglang_mi300a.gemm.tuning_run import ChildCommand, TuningRun, ask_machine
from sglang_mi300a.tables import Table
from sglang_mi300a.weights.progress_bar import ProgressBar

SAMPLES = 30
FAILED: tuple[Outcome, ...] = ("crashed", "stuck", "wrong")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what can be tuned, and the flags."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="WHAT")
    gemm = kinds.add_parser("gemm", help="dense products: a TunableOp and AITER table")
    gemm_command.add_grid_arguments(gemm)
    add = gemm.add_argument
    add("--devices", metavar="0,1,...", help="device ordinals (default: all of this node)")
    add("--samples", type=int, default=SAMPLES, metavar="N", help=f"timings each ({SAMPLES})")
    add("--retry-failed", action="store_true", help="once more: crashed, stuck and wrong ones")
    add("--apply", action="store_true", help="use the table from the next start on")
    add("--dry-run", action="store_true", help="the plan and its minutes")
    add("--quiet", action="store_true", help="no progress bar")
    tune_moe.add_arguments(kinds.add_parser("moe", help="tile and grid of the expert layer"))


def run(args: argparse.Namespace) -> int:
    """Tune, or say what would be tuned."""
    if args.kind == "moe":
        return tune_moe.run(args)
    grid = gemm_command.grid_asked_for(args)
    if args.samples < 3:
        raise UserError("--samples", found=str(args.samples), allowed="3 or more", do="pass 30")
    ordinals = _ordinals(args.devices)
    if args.dry_run:
        print_plan(grid, len(ordinals or devices.accelerators()) or grid.tp)
        return EXIT_OK
    table = tune(
        grid,
        ordinals or list(range(len(devices.accelerators()))),
        samples=args.samples,
        retry_failed=args.retry_failed,
        progress=False if args.quiet else None,
    )
    if table is not None and args.apply:
        use(table)
    return EXIT_OK


def print_plan(grid: ShapeGrid, num_devices: int) -> None:
    """Print what would be tuned, and how long that takes."""
    print(
        f"{grid.num_cells} products on {num_devices} devices: about "
        f"{tuning_plan.minutes_for(grid.num_cells, num_devices)} minutes (estimate: "
        f"{tuning_plan.SECONDS_A_CELL:g} s a product)"
    )
    for batch in tuning_plan.batches_of(grid.cells()):
        print(f"  {f'{batch.n} x {batch.k}':>13}  {len(batch.m):>4}  M {folded(batch.m)}")
    chunk = grid.batches.chunk_tokens
    if chunk > 1024:
        print(
            f"prefill chunks of {chunk} tokens bring most of them; with --chunked-prefill-size "
            "1024, here and when serving, far fewer are needed"
        )


def tune(
    grid: ShapeGrid,
    ordinals: list[int],
    *,
    samples: int = SAMPLES,
    retry_failed: bool = False,
    progress: bool | None = None,
    how: ChildCommand | None = None,
) -> Table | None:
    """Tune what is not tuned yet; return the table of this machine, which is saved too.

    Args:
        grid: What a server runs.
        ordinals: Devices.
        samples: Timings of each candidate and of stock.
        retry_failed: Whether products that crashed, hung or were wrong are tuned again.
        progress: Show a bar, or not; default on a terminal.
        how: How children are started.

    Raises:
        UserError: No device can be used.
    """
    if not ordinals:
        raise UserError(
            "devices",
            found="no AMD accelerator",
            allowed="a node with MI300A",
            do="run there; --dry-run shows the plan anywhere",
        )
    how = how or child_command()
    machine = ask_machine(how, ordinals[0])
    record = TuningRecord(tables_command.made_here() / f"gemm-{machine.digest()}.jsonl")
    kernels = catalogue.build() if settings.dense_kernels() == "own" else ""
    done = record.done(kernels, again=FAILED if retry_failed else ())
    left = [cell for cell in grid.cells() if cell not in done]
    minutes = tuning_plan.minutes_for(len(left), len(ordinals))
    print(
        f"{len(left)} of {grid.num_cells} products to tune on {len(ordinals)} devices "
        f"({machine.device['name']}), about {minutes} minutes; results so far: {record.path}"
    )
    batches = tuning_plan.batches_of(left, record.library_choices())
    with ProgressBar("tuning", len(left), wanted=progress, unit=" products") as bar:
        lines = Lines(len(left), wanted=progress is None and not sys.stderr.isatty())

        def count(_: Measured) -> None:
            bar.advance(1)
            lines.advance()

        run = TuningRun(how, record, samples=samples, done=count, kernels=kernels)
        run.over(batches, ordinals)
    dropped = run.dropped
    if kernels:
        done = record.done(kernels, again=FAILED if retry_failed else (), pairs=True)
        # No bar: a pair takes seconds, since its products are tuned.
        run = TuningRun(how, record, samples=samples, done=lambda _: None, kernels=kernels)
        run.over(tuning_plan.pairs_of(grid, record.best(), done), ordinals)
        dropped |= run.dropped
    for why in sorted(set(dropped.values())):
        names = ", ".join(name for name, said in dropped.items() if said == why)
        print(f"  kernels not timed ({names}): {why}")
    return _finish(record, machine, kernels)


class Lines:
    """Progress as lines on stderr, twenty in all, for the log of a batch job.

    Args:
        total: Products to come.
        wanted: Print them, or not.
    """

    def __init__(self, total: int, *, wanted: bool) -> None:
        self._total, self._wanted, self._done = total, wanted, 0
        self._began_s = time.monotonic()

    def advance(self) -> None:
        """Count a product."""
        self._done += 1
        if self._wanted and self._done * 20 // self._total > (self._done - 1) * 20 // self._total:
            each_s = (time.monotonic() - self._began_s) / self._done
            left = (self._total - self._done) * each_s / 60
            print(
                f"tuning: {self._done} of {self._total} products, {left:.0f} minutes left",
                file=sys.stderr,
                flush=True,
            )


def _finish(record: TuningRecord, machine: Machine, kernels: str) -> Table | None:
    counts = record.counts()
    print(
        f"{counts['won']} faster than stock, {counts['lost']} not, {counts['wrong']} wrong, "
        f"{counts['crashed']} crashed, {counts['stuck']} stuck"
    )
    if record.pairs:
        faster = sum(one.outcome == "won" for one in record.pairs.values())
        print(f"{faster} of {len(record.pairs)} pairs of products are faster in one launch")
    for one in (*record.results.values(), *record.pairs.values()):
        if one.outcome in FAILED:
            print(f"  {one.outcome}: {one.n} x {one.k}, M {one.m} {one.solution}")
        elif one.wrong:
            names = ", ".join(one.wrong)
            print(f"  left out as wrong: {one.n} x {one.k}, M {one.m} {names}")
    table = record.table(machine, date=datetime.date.today().isoformat(), kernels=kernels)
    if table is None:
        print("stock's choices are as fast throughout: there is nothing to put into a table")
        return None
    path = record.path.with_suffix(".json")
    tables_command.save(table, path)
    ours = len(tuned_table.kernel_cells(table))
    print(f"{ours} of {len(table.rows)} rows are kernels of this package")
    print(f"table {path}; use it with: sglang-mi300a tables apply {path}")
    return table


def use(table: Table) -> None:
    """Apply a table that was tuned here."""
    applied = staging.apply(
        table, tables_command.root(), len(devices.accelerators()) or tables_command.DEFAULT_DEVICES
    )
    print(f"applied: {applied.directory}")


def fill(grid: ShapeGrid, ordinals: list[int]) -> None:
    """Tune and apply what the applied table lacks of a grid; nothing if it lacks nothing."""
    applied = staging.current(tables_command.root())
    if applied is not None and not tuned_table.covered(applied.table, grid.cells())[1]:
        return
    table = tune(grid, ordinals)
    if table is not None:
        use(table)


def child_command() -> ChildCommand:
    """Return how children are started: each sees one device, and TunableOp obeys it alone."""
    visible = (settings.get("HIP_VISIBLE_DEVICES") or "").split(",")

    def environment_on(ordinal: int) -> dict[str, str]:
        device = visible[ordinal] if ordinal < len(visible) and visible[0] else str(ordinal)
        # TunableOp obeys a variable rather than its own calls, even one that says 0.
        return settings.child_environment(
            {"HIP_VISIBLE_DEVICES": device}, without="PYTORCH_TUNABLEOP_"
        )

    return ChildCommand([sys.executable, "-m", "sglang_mi300a.gemm.tune_child"], environment_on)


def _ordinals(text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [-1]
    if found[0] < 0:
        raise UserError(
            f"--devices {text}", found="no list of ordinals", allowed="0,1,2,3", do="correct it"
        )
    return found
