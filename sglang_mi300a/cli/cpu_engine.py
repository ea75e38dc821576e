"""What SGLang's CPU engine needs to serve this architecture without a GPU.

`path` prints the folder that goes first on PYTHONPATH, so that the stock spellings work:

    PYTHONPATH=$(sglang-mi300a cpu-engine path) sglang serve --model-path S --mi300a tuned

"""

from __future__ import annotations

import argparse

from sglang_mi300a.cpu_engine import recipe
from sglang_mi300a.errors import EXIT_OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("what", choices=("path",), help="what to print")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    print(recipe.standins_path())
    return EXIT_OK
