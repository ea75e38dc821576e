"""Make a tiny checkpoint of the served architecture, with random weights and a real tokenizer.

Deterministic: the same flags give the same bytes. `--echo` scales the layers so that MTP drafts
get accepted, which random weights never do.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang_mi300a.errors import EXIT_OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    from sglang_mi300a.tiny_model import KINDS

    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where to make it")
    parser.add_argument(
        "--kind", choices=KINDS, default="qwen3_5-moe-mxfp4", help="(default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--echo", action="store_true", help="drafts get accepted")
    parser.add_argument("--visual", action="store_true", help="with a tiny visual tower")
    parser.add_argument("--no-mtp", action="store_true", help="without the MTP draft layer")


def run(args: argparse.Namespace) -> int:
    """Make the checkpoint."""
    from sglang_mi300a.tiny_model import make_tiny_model

    made = make_tiny_model(
        args.out,
        kind=args.kind,
        seed=args.seed,
        echo=args.echo,
        visual=args.visual,
        mtp=not args.no_mtp,
    )
    print(
        f"{made.path}: {made.kind}, {made.num_tensors} tensors in {made.num_files} files, "
        f"{made.weight_bytes / 1e6:.1f} MB, {made.num_tokens} tokens"
    )
    return EXIT_OK
