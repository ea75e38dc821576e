"""``tune moe``: tile and grid of the expert layer, timed on this device."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

from sglang_mi300a import code_objects, settings, tables, whole_files
from sglang_mi300a import device as devices
from sglang_mi300a.cli import kernels as kernels_command
from sglang_mi300a.errors import EXIT_OK, UserError
from sglang_mi300a.moe import tile_choice
from sglang_mi300a.moe.kernels import candidates
from sglang_mi300a.moe.kernels.prediction import Shape
from sglang_mi300a.moe.tile_tuning import SECONDS_A_BATCH
from sglang_mi300a.tables import Table
from sglang_mi300a.weights.progress_bar import ProgressBar

LAST = 2048
"""Tokens up to which batches are tuned unless more are asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    kernels_command.add_layer_arguments(parser)
    add = parser.add_argument
    add("--tokens", type=int, nargs="+", metavar="M", help=f"batches (the table's, to {LAST})")
    add("--dry-run", action="store_true", help="the candidates and the minutes; no GPU needed")
    add("--again", action="store_true", help="forget earlier results and time all anew")
    add("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Time the candidates and write the table, or say what would be timed."""
    shape = kernels_command.shape_named(args.shape)
    tokens = sorted(set(args.tokens or [m for m in candidates.TOKENS if m <= LAST]))
    if args.samples < 3 or tokens[0] < 1 or tokens[-1] > candidates.TOKENS[-1]:
        raise UserError(
            "tune moe",
            found=f"batches {tokens}, {args.samples} samples",
            allowed=f"batches of 1 to {candidates.TOKENS[-1]} tokens, 3 samples or more",
            do="correct --tokens or --samples",
        )
    if args.dry_run:
        _print_plan(shape, args.weights or "subnormals", tokens)
        return EXIT_OK
    device = kernels_command.timed_device(
        "tune moe", f"time {len(tokens)} batches of {shape.name}; --dry-run shows the plan anywhere"
    )
    from sglang_mi300a.moe import hip_rung, layer_timing, tile_tuning

    decode = args.weights or hip_rung.HipRung(1).decode(device)
    software = tile_choice.software()
    name = f"moe-{shape.name}-{decode}-{software['code_object']}.jsonl"
    path = settings.state_dir() / "tuned" / name
    if args.again:
        path.unlink(missing_ok=True)
    record = tile_tuning.TuningRecord(path)
    left = [m for m in tokens if m not in record.results]
    print(
        f"{len(left)} of {len(tokens)} batches to time, {shape.name}, decode {decode}, about "
        f"{_minutes(len(left))} minutes; results so far: {path}"
    )
    if left:
        weights = layer_timing.random_weights(shape, decode, device)
        timer = layer_timing.EventTimer(device)
        stock_name, stock = _stock(weights, device)
        with ProgressBar(
            "tuning", len(left), wanted=False if args.quiet else None, unit=" batches"
        ) as bar:
            for num_tokens in left:
                record.add(
                    tile_tuning.tune_batch(weights, decode, num_tokens, timer, stock, args.samples)
                )
                bar.advance(1)
        print(f"what would run without these kernels: rung {stock_name}")
    made = {
        "by": "sglang-mi300a tune moe",
        "date": datetime.date.today().isoformat(),
        "samples": args.samples,
    }
    table = tile_tuning.table_of(
        list(record.results.values()),
        shape,
        decode,
        device=_this_device(),
        software=software,
        made=made,
    )
    slower = [m for m, one in sorted(record.results.items()) if not one.is_faster]
    if slower:
        print(f"not faster than the rung below, left out: M {', '.join(map(str, slower))}")
    if table is None:
        print("no batch is faster: there is nothing to put into a table")
        return EXIT_OK
    target = tile_choice.measured_path()
    _save(tile_tuning.merged(table, _earlier(target)), target)
    print(f"table {target}; servers on this machine use it from their next start on")
    return EXIT_OK


def _print_plan(shape: Shape, weights: Any, tokens: list[int]) -> None:
    print(
        f"{len(tokens)} batches of {shape.name}, {shape.experts} experts of {shape.inner} neurons: "
        f"about {_minutes(len(tokens))} minutes (estimate: {SECONDS_A_BATCH:g} s a batch)"
    )
    print(f"  M {', '.join(map(str, tokens))}")
    for tile in candidates.TILES:
        for op in ("gate_up", "down"):
            stage = list(candidates.of_stage(op, weights, tile, shape.inner))
            groups = ", ".join(str(one.groups) for one in stage)
            print(f"  {stage[0].kernel.name}: {groups} workgroups a compute unit")


def _minutes(num_batches: int) -> int:
    return max(1, round(num_batches * SECONDS_A_BATCH / 60))


def _stock(weights: Any, device: Any) -> tuple[str, Any]:
    """Return the best rung below the compiled kernels, and how it runs these weights."""
    import torch

    from sglang_mi300a.moe import ladder
    from sglang_mi300a.moe.kernels import prediction, steps
    from sglang_mi300a.moe.rungs import Experts, ExpertSizes
    from sglang_mi300a.stream_layout import HIDDEN

    shape = weights.shape
    sizes = ExpertSizes(shape.experts, HIDDEN, shape.inner, prediction.TOP_K, "stream/1")
    makers = ladder.makers(candidates.TOKENS[-1], torch.bfloat16)
    for name in ladder.NAMES[1:]:
        found = ladder.examine_one(name, makers[name], device, sizes)
        if found.passed and found.instance is not None:
            break
        print(f"rung {name}: {found.in_words()}")
    else:
        raise UserError(
            "tune moe",
            found="no rung below the compiled kernels that is right here",
            allowed="one to compare with",
            do="run `sglang-mi300a kernels selftest`",
        )
    rung = found.instance
    # A rung may rewrite its weights in place, so it gets copies.
    tensors = {steps.W13_STREAM: weights.w13.clone(), steps.W2_STREAM: weights.w2.clone()}
    prepared = rung.prepare(Experts("tune moe", sizes, tensors))
    return name, lambda *given: rung.apply(prepared, *given)


def _this_device() -> dict[str, Any]:
    one = next(one for one in devices.accelerators() if one.arch == code_objects.ARCH)
    return {"name": one.name, "arch": one.arch, "visible_cus": one.num_visible_cus}


def _earlier(path: Path) -> Table | None:
    return tables.load(path) if path.is_file() else None


def _save(table: Table, path: Path) -> None:
    """Write a table whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole_files.write(path, tables.render(table).encode("utf-8"))
