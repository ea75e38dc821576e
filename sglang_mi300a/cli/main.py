"""``sglang-mi300a``: one program, one module a command, imported only when it is used."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from sglang_mi300a.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, JudgedAgainst, UserError

DESCRIPTION = (
    "Serve amd/Qwen3.5-397B-A17B-MXFP4 with stock SGLang on one node of four AMD MI300A. "
    "Usual order: prepare once, then serve; or doctor, shard-weights, serve."
)


@dataclass(frozen=True)
class Command:
    """One subcommand: its module in this package and one line of help."""

    name: str
    module: str
    summary: str


COMMANDS = (
    Command("prepare", "prepare", "the first hour in one command, up to the line that starts it"),
    Command("doctor", "doctor", "what would go wrong on this machine, and what to do about it"),
    Command("shard-weights", "shard_weights", "make a per-rank artifact from a checkpoint; no GPU"),
    Command("artifact", "artifact", "inspect, verify or compare what shard-weights made"),
    Command("golden", "golden", "what a right server says, computed once from the checkpoint"),
    Command("plan", "plan", "what each APU will hold, to the byte, and whether it fits"),
    Command("gemm", "gemm", "which dense products a server runs, and with which rows"),
    Command("tune", "tune", "tune dense products on this node, into a table of your own"),
    Command("tables", "tables", "tuning tables: which there are, which fits, which is in use"),
    Command("kernel-cache", "kernel_cache", "AITER's kernels built once, packed, verified"),
    Command("serve", "serve", "start SGLang with a preset (or print how, with --dry-run)"),
    Command("presets", "presets", "what each preset sets, and why"),
    Command("hooks", "hooks", "what is put into SGLang, and whether it fits a given SGLang"),
    Command("patch", "patch", "edits of SGLang's own files that no preset needs; made on request"),
    Command(
        "kernels", "kernels", "the compiled gfx942 kernels: what they are, right or not, how fast"
    ),
    Command("report", "report", "one file that tells others how it fares on this machine"),
    Command("tiny-model", "tiny_model", "make a tiny checkpoint of the same architecture"),
    Command("cpu-engine", "cpu_engine", "what SGLang's CPU engine needs, for a laptop"),
    Command("demo", "demo", "a walk through all of this without a GPU, ending in a page"),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (0 fine, 1 judged against, 2 bad input)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return _run(arguments, prog="sglang-mi300a")


def shard_weights(argv: Sequence[str] | None = None) -> int:
    """Run ``shard-weights``, the same as ``sglang-mi300a shard-weights``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return _run(["shard-weights", *arguments], prog="")


def parse(arguments: list[str], prog: str = "sglang-mi300a") -> argparse.Namespace:
    """Return a command's flags; ``run`` among them does what they say.

    Raises:
        SystemExit: They are not understood, or are asked to be explained.
    """
    parser = _Parser(prog=prog or "shard-weights", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"sglang-mi300a {_version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command")
    for command in COMMANDS:
        if command.name in arguments[:1]:
            module = importlib.import_module(f"sglang_mi300a.cli.{command.module}")
            sub = subparsers.add_parser(
                command.name,
                prog=f"{prog} {command.name}".strip(),
                help=command.summary,
                description=module.__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
        else:
            subparsers.add_parser(command.name, help=command.summary, add_help=False)
    args, rest = parser.parse_known_args(arguments)
    if args.command is None:
        parser.print_help()
        raise SystemExit(EXIT_BAD_INPUT)
    if rest and not getattr(args, "passes_flags_through", False):
        parser.error(f"{args.command}: unknown arguments {' '.join(rest)}")
    args.rest = rest
    return args


def _run(arguments: list[str], prog: str) -> int:
    args = parse(arguments, prog)
    try:
        code = int(args.run(args))
        sys.stdout.flush()  # a closed pipe shows here, not at exit
        return code
    except UserError as error:
        print(f"sglang-mi300a {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except JudgedAgainst as verdict:
        print(f"sglang-mi300a {args.command}: {verdict}", file=sys.stderr)
        return verdict.exit_code
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _version() -> str:
    from sglang_mi300a.supported import installed_version

    return installed_version("sglang-mi300a") or "(source tree)"


if __name__ == "__main__":
    raise SystemExit(main())
