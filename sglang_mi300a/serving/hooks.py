"""What the serving room changes in SGLang's launcher.

The bodies join several rooms' data and therefore live in ``cli.launch``; they are named here and
imported when first called.
"""

from __future__ import annotations

import importlib
from typing import Any

from sglang_mi300a import boot_timeline, gates
from sglang_mi300a.hooking import AnySeam, Hook, Registration, Reliance
from sglang_mi300a.serving import fused_paths, start_check, steps

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


def _after_flush(result: bool, self: Any, *_: Any, **__: Any) -> None:
    def check_sums() -> str:
        from sglang.srt.distributed import get_tp_group

        group = get_tp_group()
        return start_check.sums_are_right(
            group.rank_in_group, group.world_size, self.device, group.all_reduce
        )

    if result:
        start_check.run(gates.of_this_process(), check_sums)


def _mark_graphs(result: Any, *_: Any, **__: Any) -> None:
    gib = sum(result.memory_usage.values())
    boot_timeline.mark("graphs", round(gib * (1 << 30)) if gib else None)


WARM_UP_NAME = "mi300a"
"""As it stands in SGLang's ``--warmups``."""

WARM_UP = Registration(
    name="serving.warm_up",
    target="sglang.srt.entrypoints.warmup._warmup_registry",
    key=WARM_UP_NAME,
    written_by="sglang.srt.entrypoints.warmup.warmup",
    by_decorator=True,
    value="sglang_mi300a.serving.stock:run",
    roles=("launcher",),
    required=False,  # SGLANG_MI300A_WARM_UP=0 leaves it out
    reached_by="start",
    why="SGLang's own warm-up is one request, with an image where the model has a vision tower; "
    "kernels of every other size would be compiled in users' requests",
    remove_when="SGLang warms up every captured size with text",
)
"""Registered once a preset has decided and set the environment: its module imports much of
SGLang, which reads that environment as it is imported."""

WARM_UP_RELIES_ON: tuple[Reliance, ...] = tuple(
    Reliance(
        name=f"serving.{name}",
        target=f"sglang.srt.{target}",
        roles=("launcher",),
        required=False,  # where it differs, SGLang's own warm-up runs
        why=why,
        remove_when=WARM_UP.remove_when,
    )
    for name, target, why in (
        (
            "lifespan",
            "entrypoints.http_server.lifespan",
            "it runs the warm-ups that --warmups names before the server listens, and after them "
            "starts the thread that turns health green",
        ),
        (
            "wait_and_warm_up",
            "entrypoints.http_server._wait_and_warmup",
            "that thread's function; it calls execute_warmup_func, which the warm-up puts in place "
            "of the request with an image",
        ),
        (
            "front_end",
            "entrypoints.http_server._setup_and_run_http_server",
            "it keeps that thread's arguments in the application's warmup_thread_kwargs",
        ),
        (
            "signals",
            "managers.tokenizer_manager.TokenizerManager.auto_create_handle_loop",
            "it replaces what happens when a rank fails, which the warm-up keeps until it ends",
        ),
    )
)

_NO_REPORT = "SGLang reports this itself"

RANK_HOOKS: tuple[AnySeam, ...] = (
    Hook(
        name="serving.after_warm_up",
        target="sglang.srt.managers.scheduler.Scheduler.flush_cache",
        kind="after",
        call=_after_flush,
        needs=("self",),
        # The launcher stops the server itself where a rank did not report after the warm-up.
        required=False,
        reached_by="verify",
        why="the request that empties caches reaches all ranks between the same two steps, with "
        "nothing running: there each checks sums over ranks and reports what it counted",
        remove_when=_NO_REPORT,
    ),
    Hook(
        name="serving.steps",
        target="sglang.srt.model_executor.model_runner.ModelRunner._forward_raw",
        kind="after",
        call=steps.count,
        needs=("self", "forward_batch"),
        required=False,
        reached_by="prefill",
        why="whether each step really ran in a captured graph is in its result and nowhere else",
        remove_when=_NO_REPORT,
    ),
    Hook(
        name="serving.graphs_captured",
        target="sglang.srt.model_executor.model_runner_components.cuda_graph_setup"
        ".capture_cuda_graphs",
        kind="after",
        call=_mark_graphs,
        needs=("model_runner",),
        callers=("sglang.srt.model_executor.model_runner.capture_cuda_graphs",),
        required=False,
        reached_by="pools",
        why="when graphs are captured, and their bytes, for the timeline of a start",
        remove_when=_NO_REPORT,
    ),
    *(
        Hook(
            name=f"serving.path_{path.id}",
            target=path.target,
            kind="after",
            call=fused_paths.counting(path),
            device="gfx942",
            required=False,
            only_with_draft=path.only_with_draft,
            reached_by="verify" if path.only_with_draft else "decode",
            why=f"counts the calls of {path.name}; without the path, {path.lost}",
            remove_when=_NO_REPORT,
        )
        for path in fused_paths.PATHS
        if path.target
    ),
)

LAUNCHER_HOOKS: tuple[AnySeam, ...] = (
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

HOOKS: tuple[AnySeam, ...] = (*LAUNCHER_HOOKS, WARM_UP, *WARM_UP_RELIES_ON, *RANK_HOOKS)
