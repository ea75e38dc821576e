"""A launcher's decision: preset, model and device in; SGLang's fields and environment out.

Called from two places: the hook on ``ServerArgs.__post_init__`` (every way to start SGLang passes
it) and ``sglang-mi300a serve``, which checks the same things before it starts anything.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from sglang_mi300a import (
    artifact_manifest,
    boot_report,
    boot_timeline,
    device,
    golden,
    hook_fit,
    hooking,
    plugin,
    served_model,
    settings,
)
from sglang_mi300a import layout as layouts
from sglang_mi300a.cli import plan, serve_kernels, serve_memory, serve_tables, stock_settings
from sglang_mi300a.cpu_engine import recipe
from sglang_mi300a.errors import EXIT_BAD_INPUT, JudgedAgainst, UserError
from sglang_mi300a.kernel_cache import aiter_locks
from sglang_mi300a.serving import hooks as serving_hooks
from sglang_mi300a.serving import preset as presets
from sglang_mi300a.serving import ready
from sglang_mi300a.supported import check_versions
from sglang_mi300a.weights.loader_options import FLAG, LoaderOptions

_flag: str | None = None
_applied: settings.Resolved | None = None


@contextmanager
def flag_given(value: str | None) -> Iterator[None]:
    """Make a parsed ``--mi300a`` known to the ``ServerArgs`` built inside the block."""
    global _flag
    _flag = value
    try:
        yield
    finally:
        _flag = None


def choice() -> str | None:
    """Return the preset asked for: the flag, else the environment; None if neither was given."""
    if _flag is None:
        return settings.switch()
    return "off" if _flag.lower() in settings.OFF_VALUES else _flag


def apply_preset(server_args: Any) -> None:
    """Set the chosen preset's fields on a ``ServerArgs`` that SGLang is about to complete.

    Refusals leave as ``SystemExit`` with one line, since SGLang logs other exceptions.
    """
    name = choice()
    try:
        if name is None:
            _point_out_the_flag(server_args)
        if name in (None, "off"):
            settings.withdraw()
            return
        _apply(server_args, name)
    except (UserError, JudgedAgainst) as error:
        plugin.refuse(error)


def _point_out_the_flag(server_args: Any) -> None:
    """Say once that the package is here but off, where it would be of use."""
    if not any(found.arch == "gfx942" for found in device.accelerators()):
        return
    config = Path(str(server_args.model_path)) / "config.json"
    if config.is_file() and served_model.is_ours(json.loads(config.read_text(encoding="utf-8"))):
        print(
            "sglang-mi300a: installed but off; pass --mi300a tuned (or baseline) to use it for "
            "this model, --mi300a off to say nothing",
            file=sys.stderr,
        )


def _apply(server_args: Any, name: str) -> None:
    global _applied
    fields = {field.name: getattr(server_args, field.name) for field in _fields(server_args)}
    given = {
        field.name: fields[field.name]
        for field in _fields(server_args)
        if field.default is dataclasses.MISSING or fields[field.name] != field.default
    }
    if _applied is not None and _applied.model_path == fields["model_path"]:
        return  # the same launch builds its arguments again
    decision = decide(name, given, fields)
    check_fit()
    check_port(str(fields["host"]), int(fields["port"]))
    memory = serve_memory.prepare(
        decision.model,
        name,
        decision.merged,
        {**decision.environment, **settings.given(plan.ENVIRONMENT_READ)},
        on_cpu=decision.record.device == "cpu",
    )
    products = serve_tables.prepare(
        decision.model,
        decision.merged,
        decision.record.tp_size,
        decision.record.ep_size,
        on_cpu=decision.record.device == "cpu",
    )
    kernels = serve_kernels.prepare(_say, on_cpu=decision.record.device == "cpu")
    for line in (*decision.notes, *memory.said, *products.said, *kernels.said):
        _say(line)
    if memory.job is not None:
        serve_memory.forbid_core_dumps()
    watchdog = {}
    if "watchdog_timeout" not in given:
        watchdog["watchdog_timeout"] = kernels.watchdog_s(fields["watchdog_timeout"])
    for key, value in {**decision.fields, **memory.fields, **watchdog}.items():
        setattr(server_args, key, value)
    if server_args.custom_sigquit_handler is None:
        server_args.custom_sigquit_handler = stop_on_failed_rank
    record = dataclasses.replace(
        decision.record,
        run_dir=str(_make_run_dir()),
        memory=memory.job.as_data() if memory.job else {},
        gemm=products.record,
    )
    settings.set_defaults({**decision.environment, **memory.environment, **products.environment})
    settings.replace_defaults(kernels.environment, settings.sglang_cache_defaults())
    settings.publish(record)
    _warm_up_before_listening(server_args)
    boot_timeline.mark("launcher's imports and checks")
    _applied = record
    beside = (record, server_args, kernels)
    threading.Thread(target=_stay_beside, args=beside, daemon=True).start()


def _warm_up_before_listening(server_args: Any) -> None:
    """Let SGLang run this package's warm-up before it listens, in place of its own after that.

    Where SGLang's front end has no place for it, SGLang's own stays.
    """
    if not settings.warm_up():
        return
    elsewhere = {
        "--tokenizer-worker-num": server_args.tokenizer_worker_num != 1,
        "--grpc-mode": server_args.grpc_mode or server_args.smg_grpc_mode,
        "--disaggregation-mode": server_args.disaggregation_mode != "null",
    }
    if any(elsewhere.values()):
        flag = next(flag for flag, given in elsewhere.items() if given)
        _say(f"with {flag} SGLang's own warm-up runs: one request, no timeline")
        return
    tree, pins = plugin.installed_sglang(), hook_fit.Pins.load()
    seams: tuple[hooking.AnySeam, ...] = (
        serving_hooks.WARM_UP,
        *serving_hooks.WARM_UP_RELIES_ON,
    )
    for seam in seams:
        status = hooking.judge(seam, tree, pins).status
        if status != "fits":
            _say(f"{seam.target} {status}: SGLang's own warm-up runs, one request, no timeline")
            return
    hooking.enter_into_registry(serving_hooks.WARM_UP)
    asked = [name for name in (server_args.warmups or "").split(",") if name]
    server_args.warmups = ",".join([*asked, serving_hooks.WARM_UP_NAME])


def _fields(server_args: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(server_args)


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a preset means for one model on one machine.

    Attributes:
        record: What ranks will read (without its run directory).
        fields: ``ServerArgs`` fields to set.
        environment: Variables to set where the user has not.
        merged: Every ``ServerArgs`` field, the preset's and the user's.
        model: Facts of the model.
        notes: What to tell the user, a line each.
    """

    record: settings.Resolved
    fields: dict[str, Any]
    environment: dict[str, str]
    merged: dict[str, Any]
    model: served_model.ServedModel
    notes: tuple[str, ...]


def decide(name: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Decision:
    """Return what preset ``name`` means here.

    Args:
        name: Preset.
        given: Fields the user set to something other than SGLang's default.
        defaults: Every field's value before the preset.

    Raises:
        UserError: The preset, model, device, software or a field does not fit.
    """
    chosen = presets.load(name)
    check_versions()
    target = _target_device()
    model = served_model.read(Path(str(given["model_path"])))
    if settings.golden() != "off":
        _check_golden(model)
    tp, ep = int(given.get("tp_size", 1)), int(given.get("ep_size", 1))
    served_model.check_parallel(model, tp, ep)
    layout_id = expert_layout(model, tp, ep)
    allowed_rung = settings.allowed_rung() if target == "gfx942" else "torch"
    if target == "gfx942" and allowed_rung == "hip":
        _check_code_object(model, tp, ep, layout_id)

    lines = chosen.on(target)
    wanted = {k: line for k, line in lines.items() if not line.is_environment}
    for key, line in wanted.items():
        if line.fixed and key in given and given[key] != line.value:
            raise UserError(
                f"--{key.replace('_', '-')}",
                found=repr(given[key]),
                allowed=f"{line.value!r} with preset {name} ({line.why})",
                do="leave the flag out, or serve with --mi300a off",
            )
    fields = {k: line.value for k, line in wanted.items() if k not in given}
    merged = {**defaults, **fields, **given}
    with_draft = merged["speculative_algorithm"] is not None
    if with_draft:
        _check_draft(model, name)
        fields.setdefault("speculative_draft_model_path", str(model.path))
    environment = {k: str(line.value) for k, line in lines.items() if line.is_environment}
    if target == "cpu":
        for key, value in recipe.server_fields(tp, with_draft).items():
            if key not in given:
                fields[key] = value
        cpus = sorted(os.sched_getaffinity(0))
        environment.update(recipe.environment(tp, cpus, str(merged["dtype"])))
    merged = {**defaults, **fields, **given}
    _check_refused(merged)
    seen = settings.child_environment({})
    right = stock_settings.put_right(
        merged, {**environment, **seen}, int(model.text["max_position_embeddings"])
    )
    fields.update(right.fields)
    options = LoaderOptions.from_mapping(_extra_config(merged["model_loader_extra_config"]))
    record = settings.Resolved(
        preset=name,
        device=target,
        model_path=str(model.path),
        tp_size=tp,
        ep_size=ep,
        num_local_ranks=tp * int(merged["pp_size"]) // int(merged["nnodes"]),
        with_draft=with_draft,
        kv_tokens=int(merged["max_total_tokens"]),
        state_slots=int(merged["max_mamba_cache_size"]),
        max_running_requests=int(merged["max_running_requests"]),
        load_options=dataclasses.asdict(options),
        expert_layout=layout_id,
        allowed_rung=allowed_rung,
        shared_expert=settings.shared_expert(),
        run_dir="",
    )
    return Decision(record, fields, environment, merged, model, right.notes)


def _check_golden(model: served_model.ServedModel) -> None:
    """Refuse golden logits of another checkpoint before any rank starts."""
    from sglang_mi300a.weights import checkpoint

    values = golden.read(model.path)
    if values is not None:
        files = (
            artifact_manifest.read(model.path).source_files
            if model.is_artifact
            else checkpoint.read(model.path).files
        )
        golden.check_source(values, files, model.path)


def expert_layout(model: served_model.ServedModel, tp: int, ep: int) -> str:
    """Return the id of the layout in which a model's experts will lie in memory.

    Raises:
        UserError: The artifact's is not known to this version.
    """
    if model.artifact_layout is not None:
        return layouts.named(model.artifact_layout, where=str(model.path)).id
    hidden, inner = _expert_sizes(model, tp, ep)
    return layouts.default_for(hidden, inner).id


def _expert_sizes(model: served_model.ServedModel, tp: int, ep: int) -> tuple[int, int]:
    """Return the hidden size, and the neurons of an expert on a rank."""
    return model.text["hidden_size"], model.text["moe_intermediate_size"] * ep // tp


def _check_code_object(model: served_model.ServedModel, tp: int, ep: int, layout_id: str) -> None:
    """Refuse before any rank starts what no rank's code object could run."""
    from sglang_mi300a.moe import ladder
    from sglang_mi300a.moe.kernels import fit

    hidden, inner = _expert_sizes(model, tp, ep)
    reason = fit.misfit(
        num_experts=model.text["num_experts"] // ep,
        hidden=hidden,
        inner=inner,
        top_k=model.text["num_experts_per_tok"],
        layout=layout_id,
    )
    if reason is not None:
        raise ladder.refusal("gfx942", [ladder.Tried("hip", reason)], "hip")


def _extra_config(text: Any) -> dict[str, Any]:
    try:
        data = json.loads(text) if isinstance(text, str) else text
    except json.JSONDecodeError as error:
        raise UserError(
            FLAG, found=f"{text!r} ({error})", allowed="a JSON object", do="correct it, or drop it"
        ) from error
    return dict(data or {})


def _target_device() -> str:
    found = device.accelerators()
    target = device.target_device(cpu_engine=settings.cpu_engine_asked(), found=found)
    if target is None:
        seen = ", ".join(f"{d.name} ({d.arch})" for d in found) or "no AMD accelerator"
        raise UserError(
            "device",
            found=seen,
            allowed="gfx942 (AMD MI300A), or SGLang's CPU engine",
            do="to try it on a CPU: sglang-mi300a serve, or put the CPU engine's stand-ins first: "
            "PYTHONPATH=$(sglang-mi300a cpu-engine path)",
        )
    return target


def _check_draft(model: served_model.ServedModel, name: str) -> None:
    if not model.has_draft:
        raise UserError(
            str(model.path),
            found="no MTP layer to draft with",
            allowed=f"a checkpoint with mtp.* tensors, or an artifact made with them, for {name}",
            do="pass --mi300a baseline, or run shard-weights without --no-draft",
        )


def _check_refused(merged: Mapping[str, Any]) -> None:
    refused = {
        "dp_size": (merged["dp_size"] != 1, "1: run one server a node behind SGLang's router"),
        "pp_size": (merged["pp_size"] != 1, "1"),
        "skip_server_warmup": (
            bool(merged["skip_server_warmup"]),
            "False: the warm-up request is what proves that every hook is reached",
        ),
        "disable_radix_cache": (bool(merged["disable_radix_cache"]), "False"),
    }
    for key, (bad, allowed) in refused.items():
        if bad:
            raise UserError(
                f"--{key.replace('_', '-')}",
                found=repr(merged[key]),
                allowed=allowed,
                do="leave the flag out, or serve with --mi300a off",
            )


def check_fit() -> None:
    """Judge every seam of launcher and ranks against the installed SGLang, before any rank starts.

    Raises:
        HookError: A required seam does not fit.
    """
    tree, pins = plugin.installed_sglang(), hook_fit.Pins.load()
    for seam in plugin.all_seams():
        fit = hooking.judge(seam, tree, pins)
        if seam.required and not fit.fits:
            raise hooking.unfit(seam, fit, pins)


def check_port(host: str, port: int) -> None:
    """Check that the server's address is free.

    Raises:
        UserError: Something listens there, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"--host {host} --port {port}",
                found=f"not free ({error.strerror})",
                allowed="an address of this machine that nothing listens on",
                do=f"stop what listens there (`ss -ltnp 'sport = :{port}'`) or pass another --port",
            ) from error


def _make_run_dir() -> Path:
    path = settings.new_run_dir()
    if not settings.run_dir_given():
        atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _stay_beside(
    record: settings.Resolved, server_args: Any, kernels: serve_kernels.Prepared
) -> None:
    """Print the table once the server serves, then watch the memory of its APUs."""
    if _print_table_when_ready(record, kernels.watch()):
        serve_memory.watch(record, server_args, _say)


def _say(line: str) -> None:
    print(f"sglang-mi300a: {line}", file=sys.stderr, flush=True)


def _print_table_when_ready(record: settings.Resolved, locks: aiter_locks.Watch | None) -> bool:
    """Print the one table once every rank has passed both gates; return whether they have.

    A lock of AITER's that nobody will release stops the server meanwhile, by name.
    """
    run_dir = Path(record.run_dir)
    while run_dir.is_dir():
        if locks is not None and (problem := locks.problem()):
            _say(str(problem))
            os.kill(os.getpid(), signal.SIGQUIT)  # SGLang hands it to stop_on_failed_rank
            return False
        reports = boot_report.read_all(run_dir)
        stages = [report.stage for report in reports.values()]
        if len(stages) == record.num_local_ranks and set(stages) == {"serving"}:
            print(boot_report.table(reports, record.num_local_ranks), file=sys.stderr, flush=True)
            return True
        if "refused" in stages:
            return False  # the rank's signal prints it
        time.sleep(0.25)
    return False


def stop_on_failed_rank(signum: int, frame: FrameType | None) -> None:
    """Print which rank failed and why, end every child, and leave with the refusal's exit code.

    SGLang calls this (its ``custom_sigquit_handler``) when a rank reports failure.
    """
    import psutil

    record, code = settings.resolved(), EXIT_BAD_INPUT
    if record is not None:
        time.sleep(0.5)  # ranks that fail together write their reports together
        reports = boot_report.read_all(Path(record.run_dir))
        codes = [one.exit_code for one in reports.values() if one.refusal]
        if gave_up := ready.refusal(Path(record.run_dir)):
            codes.append(gave_up[1])
        code = min(codes, default=code)
        print(
            boot_report.table(reports, record.num_local_ranks)
            + f"\nsglang-mi300a: {'the warm-up' if gave_up else 'a rank'} failed; stopping the "
            "server",
            file=sys.stderr,
            flush=True,
        )
        if not settings.run_dir_given():
            shutil.rmtree(record.run_dir, ignore_errors=True)
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(code)
