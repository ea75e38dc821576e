"""Which dense matrix products a server runs, each with the row counts it is dispatched with.

    sglang-mi300a gemm shapes --preset tuned                the model this package is for, TP 4
    sglang-mi300a gemm shapes --model S                     preset tuned
    sglang-mi300a gemm shapes --model S --preset baseline --json
    sglang-mi300a gemm shapes --model S --chunked-prefill-size 1024

MODEL is an artifact, a checkpoint, or a directory with config.json alone; no GPU is needed. N and K
are those of one rank. M follows from what SGLang captures for the preset (decode, verification,
draft, the draft's extension) and from the buckets that prefill is padded to. A tuning table covers
a server when it has a row for each cell; `sglang-mi300a tune gemm` makes one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sglang_mi300a import served_model
from sglang_mi300a.cli import gemm_grid
from sglang_mi300a.errors import EXIT_OK, UserError
from sglang_mi300a.gemm import shape_grid
from sglang_mi300a.serving import preset as presets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    shapes = actions.add_parser("shapes", help="the products, and the rows of each")
    add_grid_arguments(shapes, model_required=False)
    shapes.add_argument("--json", action="store_true", help="for machines")


def add_grid_arguments(parser: argparse.ArgumentParser, *, model_required: bool = True) -> None:
    """Declare the flags that say which server's products are meant."""
    add = parser.add_argument
    add(
        "--model", "--model-path", required=model_required, type=Path, metavar="DIR",
        help="what is served",
    )  # fmt: skip
    add(
        "--preset", "--mi300a", default="tuned", metavar="NAME",
        help=f"{', '.join(presets.names())} (default: tuned)",
    )  # fmt: skip
    add("--tp-size", "--tp", type=int, metavar="N", help="ranks (default: the artifact's, else 4)")
    add("--ep-size", type=int, metavar="N", help="expert-parallel ranks (the artifact's, else 1)")
    add("--max-running-requests", type=int, metavar="N", help="default: the preset's")
    add("--chunked-prefill-size", type=int, metavar="T", help="default: the preset's, or SGLang's")


def grid_asked_for(args: argparse.Namespace) -> shape_grid.ShapeGrid:
    """Return the grid that the flags of :func:`add_grid_arguments` describe.

    Raises:
        UserError: No such model or preset, or the model does not split so.
    """
    model = served_model.read(args.model)
    tp = args.tp_size or model.artifact_tp or 4
    ep = args.ep_size or model.artifact_ep or 1
    served_model.check_parallel(model, tp, ep)
    given: dict[str, Any] = {
        name: value
        for name in ("max_running_requests", "chunked_prefill_size")
        if (value := getattr(args, name)) is not None
    }
    return gemm_grid.of_preset(model, args.preset, tp, ep=ep, given=given)


def run(args: argparse.Namespace) -> int:
    """Print the grid."""
    if args.model is None:
        return _print_shipped(args)
    grid = grid_asked_for(args)
    if args.json:
        print(json.dumps(shape_grid.as_json(grid), indent=1))
    else:
        batches = grid.batches
        title = (
            f"dense products of {args.model}, preset {args.preset}, TP {grid.tp}: "
            f"batches of {shape_grid.folded(batches.decode_batch_sizes)}, "
            f"{batches.draft_tokens or 'no'} draft tokens, chunks of {batches.chunk_tokens}"
        )
        print(shape_grid.as_text(grid, title))
    return EXIT_OK


def _print_shipped(args: argparse.Namespace) -> int:
    """Print the shipped grid of the real model, which is one of a preset without changes."""
    presets.load(args.preset)
    changed = [
        f"--{name.replace('_', '-')}"
        for name in ("tp_size", "ep_size", "max_running_requests", "chunked_prefill_size")
        if getattr(args, name) is not None
    ]
    if changed:
        raise UserError(
            "gemm shapes",
            found=f"{', '.join(changed)} without --model",
            allowed="--preset alone, or a model",
            do="pass --model: a directory with config.json will do",
        )
    rows = shape_grid.shipped(args.preset)
    if args.json:
        print(json.dumps(rows, indent=1))
        return EXIT_OK
    model, tp = rows[0]["model"], rows[0]["tp"]
    print(f"dense products of {model}, preset {args.preset}, TP {tp}, one rank:")
    for row in rows:
        print(f"  {row['n']:>6} x {row['k']:<4}  M {shape_grid.folded(row['m'])}")
        print(f"  {'':>13}  {', '.join(row['names'])}")
    return EXIT_OK
