"""List the presets, or every line of one with its reason."""

from __future__ import annotations

import argparse
import dataclasses
import json

from sglang_mi300a.errors import EXIT_OK
from sglang_mi300a.serving import preset as presets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("name", nargs="?", help="a preset; without it, all are listed")
    parser.add_argument("--device", choices=("gfx942", "cpu"), default="gfx942")
    parser.add_argument("--json", action="store_true", help="for machines")


def run(args: argparse.Namespace) -> int:
    """Print the presets."""
    if args.name is None:
        rows = {name: presets.load(name).title for name in presets.names()}
        if args.json:
            print(json.dumps(rows))
        else:
            for name, title in rows.items():
                print(f"{name:<10} {title}")
        return EXIT_OK
    lines = list(presets.load(args.name).on(args.device).values())
    if args.json:
        print(json.dumps([dataclasses.asdict(line) for line in lines]))
        return EXIT_OK
    for line in lines:
        flag = line.name if line.is_environment else f"--{line.name.replace('_', '-')}"
        print(f"{flag} {line.value}\n    {line.why}")
    return EXIT_OK
