"""Start stock SGLang with a preset.

Composes the command and environment and becomes that process. The same server starts with
`sglang serve --model-path S --mi300a PRESET`; flags not listed here are SGLang's own and pass
through unchanged:

    sglang-mi300a serve --model S --preset tuned --port 30000 --tp-size 4
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from sglang_mi300a import device, served_model, settings
from sglang_mi300a.cli import launch
from sglang_mi300a.cpu_engine import recipe
from sglang_mi300a.errors import EXIT_OK
from sglang_mi300a.serving import preset as presets
from sglang_mi300a.supported import check_versions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--model", "--model-path", required=True, type=Path, metavar="DIR",
        help="artifact of shard-weights (fast), or a Hugging Face checkpoint",
    )  # fmt: skip
    parser.add_argument(
        "--preset", "--mi300a", default="tuned", metavar="NAME",
        help=f"{', '.join(presets.names())} or off (default: tuned)",
    )  # fmt: skip
    parser.add_argument(
        "--tp-size", "--tp", type=int, default=None, metavar="N",
        help="tensor-parallel ranks (default: the artifact's, else 4 on gfx942 and 1 on a CPU)",
    )  # fmt: skip
    parser.add_argument(
        "--ep-size", type=int, default=None, metavar="N",
        help="expert-parallel ranks (default: the artifact's, else 1)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-rung", choices=("triton", "torch"), default=None,
        help="on gfx942: serve although the compiled expert kernels cannot be used, on this slower "
        "rung at the lowest (default: refuse to start)",
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=30000, help="port to listen on")
    parser.add_argument(
        "--memory-check", choices=settings.MEMORY_CHECKS, default=None,
        help="a memory plan that does not fit: refuse to start (default), or warn and start "
        "(estimates in it may be too high for your machine)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-untuned", action="store_true",
        help="serve with stock's choices of dense products where the applied gemm table does not "
        "fit (default: refuse to start)",
    )  # fmt: skip
    parser.add_argument(
        "--tune-first", action="store_true",
        help="tune and apply what the gemm table lacks for this server, then start (minutes to "
        "hours; `sglang-mi300a tune gemm --dry-run` says)",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="print environment and command, start nothing"
    )
    parser.set_defaults(passes_flags_through=True)


def run(args: argparse.Namespace) -> int:
    """Check, compose, and become the server."""
    command, environment = compose(args)
    if args.dry_run:
        for name, value in environment.items():
            print(f"export {name}={shlex.quote(value)}")
        print(shlex.join(command))
        return EXIT_OK
    launch.check_port(args.host, args.port)
    if args.tune_first:
        _tune_first(args)
    sys.stdout.flush()
    os.execve(command[0], command, settings.child_environment(environment))


def compose(args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment to add to it.

    Raises:
        UserError: Preset, software, model or sizes do not fit.
    """
    if args.preset.lower() not in settings.OFF_VALUES:
        presets.load(args.preset)
    check_versions()
    model = served_model.read(args.model)
    environment = {}
    if args.allow_rung is not None:
        environment[settings.ALLOW_RUNG] = args.allow_rung
    if args.memory_check is not None:
        environment[settings.MEMORY_CHECK] = args.memory_check
    if args.allow_untuned:
        environment[settings.ALLOW_UNTUNED] = "1"
    on_cpu = not device.accelerators()
    if on_cpu:
        environment["PYTHONPATH"] = settings.python_path_with(recipe.standins_path())
    tp = args.tp_size or model.artifact_tp or (1 if on_cpu else 4)
    ep = args.ep_size or model.artifact_ep or 1
    served_model.check_parallel(model, tp, ep)
    command = [
        *sglang_serve(),
        "--model-path", str(args.model),
        "--mi300a", args.preset,
        "--tp-size", str(tp), "--ep-size", str(ep),
        "--host", args.host, "--port", str(args.port),
        *args.rest,
    ]  # fmt: skip
    return command, environment


def _tune_first(args: argparse.Namespace) -> None:
    """Tune what the applied gemm table lacks for the server that is asked for."""
    from sglang_mi300a.cli import gemm, tune

    sizes = argparse.ArgumentParser(add_help=False)
    gemm.add_grid_arguments(sizes, model_required=False)
    asked, _ = sizes.parse_known_args(args.rest)
    asked.model, asked.preset = args.model, args.preset
    asked.tp_size, asked.ep_size = args.tp_size, args.ep_size
    tune.fill(gemm.grid_asked_for(asked), list(range(len(device.accelerators()))))


def sglang_serve() -> list[str]:
    """Return how `sglang serve` is started with this interpreter."""
    program = Path(sys.executable).with_name("sglang")
    if program.is_file():
        return [str(program), "serve"]
    return [sys.executable, "-m", "sglang.launch_server"]  # the same server, an older spelling
