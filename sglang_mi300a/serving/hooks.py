"""What the serving room changes in SGLang's launcher.

The bodies join several rooms' data and therefore live in ``cli.launch``; they are named here and
imported when first called.
"""

from __future__ import annotations

import importlib
from typing import Any

from sglang_mi300a.hooking import AnySeam, Hook, Reliance

_SERVER_ARGS = "sglang.srt.server_args.ServerArgs"


def _launch() -> Any:
    return importlib.import_module("sglang_mi300a.cli.launch")


def _add_flag(original: Any, parser: Any) -> None:
    original(parser)
    parser.add_argument(
        "--mi300a",
        metavar="PRESET",
        default=None,
        help="serve a Quark MXFP4 Qwen3.5-MoE on AMD MI300A with this preset of sglang-mi300a "
        "(off, baseline, tuned); see `sglang-mi300a serve --help`",
    )


def _read_flag(original: Any, cls: Any, args: Any) -> Any:
    with _launch().flag_given(getattr(args, "mi300a", None)):
        return original(cls, args)


def _apply_preset(server_args: Any, *_: Any, **__: Any) -> None:
    _launch().apply_preset(server_args)


HOOKS: tuple[AnySeam, ...] = (
    Hook(
        name="serving.add_flag",
        target=f"{_SERVER_ARGS}.add_cli_args",
        kind="around",
        call=_add_flag,
        needs=("parser",),
        roles=("launcher",),
        reached_by="start",
        why="adds --mi300a to both stock spellings; without the package SGLang refuses the flag",
        remove_when="SGLang lets plugins declare flags",
    ),
    Hook(
        name="serving.read_flag",
        target=f"{_SERVER_ARGS}.from_cli_args",
        kind="around",
        call=_read_flag,
        needs=("cls", "args"),
        roles=("launcher",),
        reached_by="start",
        why="stock copies only its own fields out of the parsed flags",
        remove_when="SGLang lets plugins declare flags",
    ),
    Hook(
        name="serving.apply_preset",
        target=f"{_SERVER_ARGS}.__post_init__",
        kind="before",
        call=_apply_preset,
        needs=("self",),
        roles=("launcher",),
        reached_by="start",
        why="a preset's fields must be set before SGLang derives others from them",
        remove_when="SGLang reads defaults from plugins",
    ),
    Reliance(
        name="serving.run_scheduler_process",
        target="sglang.srt.managers.scheduler.run_scheduler_process",
        roles=("launcher", "rank"),
        why="it loads plugins in a rank and holds the rank's number",
        remove_when="SGLang tells plugins their rank",
    ),
)
