"""The entry point SGLang calls in every process it lets plugins into.

In a launcher it adds the flag ``--mi300a`` and, once that or the environment asks for a preset,
decides everything. In a rank it installs what the launcher decided; without that decision it does
nothing. SGLang swallows a plugin's exceptions and serves on, so a refusal leaves here as
``SystemExit``.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import signal
import sys
from collections.abc import Collection
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from sglang_mi300a import boot_timeline, gates, hook_fit, hooking, settings
from sglang_mi300a.errors import JudgedAgainst, UserError

OTHER_PROCESSES = ("run_detokenizer_process", "run_data_parallel_controller_process")
"""Processes of SGLang's, by their first function, that hold none of what ours changes."""

ROOMS_WITH_SEAMS = ("cpu_engine", "gemm", "moe", "pools", "serving", "weights")


def activate() -> None:
    """Install what this process needs; called by SGLang's plugin loader.

    Stock SGLang loads plugins in its launcher and its ranks only. Where it is made to load them in
    more of its processes, nothing of ours is needed there.
    """
    try:
        if multiprocessing.parent_process() is None:
            _activate_launcher()
        elif (record := settings.resolved()) is not None and not _runs(OTHER_PROCESSES):
            _activate_rank(record)
    except UserError as error:
        refuse(error)


def refuse(error: UserError | JudgedAgainst) -> NoReturn:
    """Print one line and leave the process so that SGLang cannot swallow it."""
    print(f"sglang-mi300a: refusing to start. {error}", file=sys.stderr, flush=True)
    raise SystemExit(error.exit_code)


def all_seams() -> tuple[hooking.AnySeam, ...]:
    """Return every room's declared seams (imports neither torch nor SGLang)."""
    seams: list[hooking.AnySeam] = []
    for room in ROOMS_WITH_SEAMS:
        seams.extend(importlib.import_module(f"sglang_mi300a.{room}.hooks").HOOKS)
    return tuple(seams)


def installed_sglang() -> hook_fit.DirectoryTree:
    """Return the source tree of the SGLang that this process imports, without importing it."""
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        raise UserError(
            "sglang",
            found="not importable",
            allowed="an installed SGLang",
            do="install SGLang for this machine first (on ROCm: its image), then this package",
        )
    return hook_fit.DirectoryTree(Path(next(iter(found.submodule_search_locations))).parent)


def _activate_launcher() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_mi300a.cpu_engine import hooks as cpu_engine
    from sglang_mi300a.serving import hooks as serving

    settings.withdraw()  # a decision inherited from elsewhere is not ours
    # These only add and read a flag. They are judged when a preset is asked for, so that a machine
    # that is not ours pays nothing.
    on_cpu = cpu_engine.LAUNCHER_HOOKS if settings.cpu_engine_asked() else ()
    hooking.register((*serving.LAUNCHER_HOOKS, *on_cpu), HookRegistry, HookType)


def _activate_rank(record: settings.Resolved) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    rank = _rank_of_this_process()
    rank_gates = gates.RankGates(
        rank=rank,
        run_dir=Path(record.run_dir),
        all_gather=_all_gather,
        proofs_wanted=gates.proofs_wanted(with_draft=record.with_draft),
        hooks_by_target=HookRegistry._hooks,
    )
    gates.enter(rank_gates)
    after_weights = importlib.import_module("sglang_mi300a.pools.after_weights")
    rank_gates.at_first_byte.append(partial(after_weights.look_before, rank_gates, record))
    products = importlib.import_module("sglang_mi300a.gemm.rank_check")
    rank_gates.at_first_byte.append(partial(products.look, record))
    try:
        hooking.install(
            all_seams(),
            role="rank",
            device=record.device,
            with_draft=record.with_draft,
            tree=installed_sglang(),
            pins=hook_fit.Pins.load(),
            registry=HookRegistry,
            kinds=HookType,
            say=partial(print, file=sys.stderr, flush=True),
        )
        entry = importlib.import_module("sglang_mi300a.weights.private_entry")
        experts = importlib.import_module("sglang_mi300a.moe.stock")
        entry.install_private_loader(rank_gates, record, [experts.complete])
    except UserError as error:
        rank_gates.report("refused", str(error))
        print(f"sglang-mi300a: rank {rank}: {error}", file=sys.stderr, flush=True)
        os.kill(os.getppid(), signal.SIGQUIT)  # the launcher prints the table and stops
        raise SystemExit(error.exit_code) from error
    boot_timeline.mark("rank's imports")
    rank_gates.report("plugin")


def _rank_of_this_process() -> int:
    """Return ``tp_rank`` of the ``run_scheduler_process`` call that loads the plugins.

    SGLang hands a rank its number only as that call's argument, and writes it nowhere before the
    plugins run.
    """
    if (rank := _runs({"run_scheduler_process"})) is not None:
        return int(rank.f_locals["tp_rank"])
    raise UserError(
        "plugin",
        found="a child process that is no scheduler",
        allowed="SGLang's launcher and its scheduler processes",
        do="report this; `sglang-mi300a hooks check` says whether this SGLang starts ranks "
        "differently",
    )


def _runs(functions: Collection[str]) -> FrameType | None:
    """Return the innermost call of one of these functions that this one is part of."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name not in functions:
        frame = frame.f_back
    return frame


def _all_gather(mine: Any) -> list[Any]:
    import torch.distributed
    from sglang.srt.distributed import get_world_group

    group = get_world_group()
    if group.world_size == 1:
        return [mine]
    everyone: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(everyone, mine, group=group.cpu_group)
    return everyone
