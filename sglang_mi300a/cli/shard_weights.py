"""Make a per-rank artifact from a Hugging Face checkpoint, without GPU or engine.

    shard-weights --model DIR --out DIR --tp 4 --text-only

Each source byte is read once. A killed run goes on where it stopped when the same command is given
again, and ends with the same bytes. To shard on several nodes of a cluster, give each some ranks:

    shard-weights --model DIR --out /shared/DIR --tp 4 --ranks $SLURM_ARRAY_TASK_ID
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from sglang_mi300a import layout as layouts
from sglang_mi300a.cli.artifact import ranks
from sglang_mi300a.errors import EXIT_OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    from sglang_mi300a.weights.shard import DEFAULT_JOBS, DRAFT_EXPERTS

    add = parser.add_argument
    add("--model", required=True, type=Path, metavar="DIR", help="Hugging Face checkpoint")
    add("--out", required=True, type=Path, metavar="DIR", help="artifact to make")
    add("--tp", required=True, type=int, metavar="N", help="tensor-parallel ranks")
    add("--ep", default=1, type=int, metavar="N", help="expert-parallel ranks among them (1)")
    add("--ranks", type=ranks, metavar="A,B", help="write only these ranks now (all)")
    add("--text-only", action="store_true", help="leave the visual tower out")
    add("--no-draft", action="store_true", help="leave the MTP layer out")
    add(
        "--draft-experts", choices=DRAFT_EXPERTS, default="stored",
        help="mxfp4: re-quantise the MTP layer's experts; a quarter of the bytes, other drafts",
    )  # fmt: skip
    add(
        "--ignore-tensor", action="append", default=[], metavar="PATTERN",
        help="leave out tensors that the model has no place for (shell pattern; may be repeated)",
    )  # fmt: skip
    add(
        "--jobs", default=DEFAULT_JOBS, type=int, metavar="N",
        help=f"files written at the same time ({DEFAULT_JOBS})",
    )  # fmt: skip
    add(
        "--heads", choices=("replicated", "padded"), default="replicated",
        help="padded: for SGLang's CPU engine, where ranks outnumber KV heads",
    )  # fmt: skip
    add(
        "--layout", choices=layouts.names(),
        help="order of the expert weights (default: stream/1, which the gfx942 kernels read, where "
        "they take the model's sizes; else plain/1, SGLang's own)",
    )  # fmt: skip
    add("--quiet", action="store_true", help="no progress bar")
    add("--json", action="store_true", help="a summary for machines")


def run(args: argparse.Namespace) -> int:
    """Make the artifact and print what was done."""
    from sglang_mi300a.weights.shard import shard_weights

    report = shard_weights(
        args.model,
        args.out,
        tp=args.tp,
        ep=args.ep,
        ranks=args.ranks,
        text_only=args.text_only,
        draft=not args.no_draft,
        draft_experts=args.draft_experts,
        heads=args.heads,
        layout=args.layout,
        jobs=args.jobs,
        ignore=args.ignore_tensor,
        progress=False if args.quiet or args.json else None,
    )
    if args.json:
        print(json.dumps({**asdict(report), "output": str(report.output)}))
        return EXIT_OK
    print(
        f"{report.output}: ranks {', '.join(map(str, report.ranks))}; read "
        f"{report.num_bytes_read / 1e9:.3f} GB, wrote {report.num_bytes_written / 1e9:.3f} GB"
        + (
            f"; {report.num_files_kept} files of an earlier run kept"
            if report.num_files_kept
            else ""
        )
    )
    if report.missing_ranks:
        print(f"still to make: --ranks {','.join(map(str, report.missing_ranks))}")
    return EXIT_OK
