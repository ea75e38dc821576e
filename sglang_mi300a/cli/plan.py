"""Say what each APU will hold while it serves, to the byte, and whether it fits. Starts nothing.

    sglang-mi300a plan --model S                                  this node, preset tuned
    sglang-mi300a plan --model S --node mi300a-x4                 a described node, on any machine
    sglang-mi300a plan --model S --concurrency 96 --context 4096  sizes derived from sessions
    sglang-mi300a plan --model S --kv-tokens 300000 --state-slots 400 --max-running-requests 96

MODEL is an artifact, a checkpoint, or a directory with config.json alone. Each line is `exact` (a
formula tested against SGLang itself), `published` (with its source), or an `estimate` (with a
range). GB is 10^9 bytes, GiB is 2^30. Exit code 1: it does not fit, and what would is said.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sglang_mi300a import artifact_manifest, graph_phases, model_dims, served_model, settings
from sglang_mi300a.cli import stock_settings
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError
from sglang_mi300a.moe.kernels import steps, workspace
from sglang_mi300a.pools import (
    byte_text,
    estimates,
    fit,
    node_file,
    plan_picture,
    plan_report,
    pool_sizes,
    unified_memory,
    weight_sizes,
)
from sglang_mi300a.pools.memory_plan import EXPERT_WORKSPACE, Asked, Line, Plan, WeightBytes
from sglang_mi300a.serving import preset as presets
from sglang_mi300a.weights import model_sizes, resident
from sglang_mi300a.weights.plan import Placement

DEFAULT_CONTEXT = 4096
ENVIRONMENT_READ = (
    "SGLANG_MAMBA_CONV_DTYPE",
    "SGLANG_MAMBA_SSM_DTYPE",
    "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK",
)
"""Variables of SGLang's that change a plan."""
DRAFTING_PRESET = "tuned"
"""Whose drafting lines --mtp takes where the preset has none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags; SGLang's own spellings do too."""
    add = parser.add_argument
    add("--model", "--model-path", required=True, type=Path, metavar="DIR", help="what to serve")
    add(
        "--preset", "--mi300a", default="tuned", metavar="NAME",
        help=f"{', '.join(presets.names())} (default: tuned)",
    )  # fmt: skip
    add("--tp-size", "--tp", type=int, metavar="N", help="ranks (default: the artifact's, else 4)")
    add("--ep-size", type=int, metavar="N", help="expert-parallel ranks (the artifact's, else 1)")
    add(
        "--node", metavar="FILE",
        help=f"a described node: a file, or {', '.join(node_file.shipped())} (default: this node)",
    )  # fmt: skip
    sizes = parser.add_argument_group("sizes, derived from sessions or given; else the preset's")
    add = sizes.add_argument
    add("--concurrency", type=int, metavar="N", help="sessions at once")
    add(
        "--context", type=int, default=None, metavar="C",
        help=f"tokens of a session, prompt and reply (default: {DEFAULT_CONTEXT})",
    )  # fmt: skip
    add("--mtp", type=int, metavar="K", help="drafts a step; 0 for none (default: the preset's)")
    add("--kv-tokens", "--max-total-tokens", type=int, metavar="T", help="KV tokens a rank")
    add("--state-slots", "--max-mamba-cache-size", type=int, metavar="S", help="states a rank")
    add("--slots-per-request", type=float, metavar="R", help="states a session (the scheduler's)")
    add("--max-running-requests", type=int, metavar="N", help="requests at once")
    add("--state-dtype", "--mamba-ssm-dtype", choices=("float32", "bfloat16"))
    add(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="a field of SGLang's ServerArgs, as chunked_prefill_size=1024; may be repeated",
    )  # fmt: skip
    add("--host-processes", metavar="SIZE", help="host side of an APU, such as 8GB")
    add("--reserve", metavar="SIZE", help="kept free on an APU, such as 15GiB")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="for machines")
    output.add_argument("--plot", type=Path, metavar="FILE", help="also a picture, .png or .svg")
    output.add_argument(
        "--save-node", type=Path, metavar="FILE", help="also write what this node is, for --node"
    )


@dataclass(frozen=True)
class Wishes:
    """What a user asks for beside a preset; None: nothing.

    Attributes:
        concurrency: Sessions at once; tokens and slots are derived from them.
        context: Tokens of a session.
        mtp: Drafts a step.
        kv_tokens: KV tokens a rank.
        state_slots: State slots a rank.
        slots_per_request: State slots a session.
        max_running_requests: Requests at once.
        state_dtype: Of states.
        fields: Further ``ServerArgs`` fields.
    """

    concurrency: int | None = None
    context: int | None = None
    mtp: int | None = None
    kv_tokens: int | None = None
    state_slots: int | None = None
    slots_per_request: float | None = None
    max_running_requests: int | None = None
    state_dtype: str | None = None
    fields: tuple[tuple[str, Any], ...] = ()


def run(args: argparse.Namespace) -> int:
    """Plan, print, judge."""
    if args.plot is not None:
        plan_picture.check(args.plot)
    model = served_model.read(args.model)
    tp = args.tp_size or model.artifact_tp or 4
    ep = args.ep_size or model.artifact_ep or 1
    served_model.check_parallel(model, tp, ep)
    node = _node(args, tp)
    wishes = Wishes(
        concurrency=args.concurrency,
        context=args.context,
        mtp=args.mtp,
        kv_tokens=args.kv_tokens,
        state_slots=args.state_slots,
        slots_per_request=args.slots_per_request,
        max_running_requests=args.max_running_requests,
        state_dtype=args.state_dtype,
        fields=tuple(_setting(text) for text in args.set),
    )
    plan = of_preset(model, args.preset, tp, ep, node, wishes)
    others = other_presets(model, args.preset, tp, ep, node)
    problems = fit.check_fit(plan, node.memory, others)
    if args.json:
        report = plan_report.as_json(plan, node.memory, problems, args.preset)
        print(json.dumps(report, indent=1))
    else:
        print(plan_report.as_text(plan, node.memory, problems, args.preset))
    if args.plot is not None:
        plan_picture.draw(plan, node.memory, args.plot)
    return EXIT_JUDGED_AGAINST if problems else EXIT_OK


def of_preset(
    model: served_model.ServedModel,
    preset: str,
    tp: int,
    ep: int,
    node: node_file.DescribedNode,
    wishes: Wishes | None = None,
) -> Plan:
    """Return the plan of a preset, with what is wished besides; see :func:`of_fields`."""
    lines = presets.load(preset).on("gfx942").values()
    fields = {line.name: line.value for line in lines if not line.is_environment}
    environment = {line.name: str(line.value) for line in lines if line.is_environment}
    return of_fields(model, fields, environment, tp, ep, node, wishes)


def of_fields(
    model: served_model.ServedModel,
    fields: Mapping[str, Any],
    environment: Mapping[str, str],
    tp: int,
    ep: int,
    node: node_file.DescribedNode,
    wishes: Wishes | None = None,
    *,
    expert_kernels: bool = True,
) -> Plan:
    """Return the plan of a server that is started with these settings.

    Args:
        model: What is served.
        fields: ``ServerArgs`` fields; those not named are SGLang's defaults.
        environment: Variables.
        tp: Tensor-parallel ranks.
        ep: Expert-parallel ranks among them.
        node: Where.
        wishes: What a user asks for besides.
        expert_kernels: Whether the compiled expert kernels run, which have a workspace.

    Raises:
        UserError: A size is out of range or does not go with another.
    """
    wishes = wishes or Wishes()
    memory_bytes = node.memory.apus[0].total_bytes
    dims, asked = checked_sizes(model, fields, environment, memory_bytes, wishes)
    return Plan(
        dims=dims,
        tp=tp,
        ep=ep,
        weights=_weights(model, dims, tp, ep),
        asked=asked,
        host=node.host,
        reserve=node.reserve,
        extra=_expert_workspace(dims, asked, tp, ep) if expert_kernels else (),
    )


def _expert_workspace(
    dims: model_dims.ModelDims, asked: Asked, tp: int, ep: int
) -> tuple[Line, ...]:
    """Return the line of the expert kernels' workspace; none for a model they cannot run."""
    layer = workspace.largest_layer(
        max_tokens=workspace.launch_tokens(asked.chunk_tokens, dims.num_experts_per_tok),
        top_k=dims.num_experts_per_tok,
        num_experts=dims.num_experts // ep,
        hidden=dims.hidden_size,
        inner=dims.moe_intermediate_size * ep // tp,
    )
    try:
        steps.check(layer)
    except ValueError:  # served on a rung without a workspace
        return ()
    source = (
        f"the kernels' own sizes for {layer.num_tokens:,} tokens a launch, the shared expert "
        "included; one for all layers, made while weights are loaded"
    )
    amount = estimates.exact(workspace.workspace_bytes(layer), source)
    return (Line(EXPERT_WORKSPACE, "device", amount, with_weights=True),)


def checked_sizes(
    model: served_model.ServedModel,
    fields: Mapping[str, Any],
    environment: Mapping[str, str],
    memory_bytes: int,
    wishes: Wishes,
) -> tuple[model_dims.ModelDims, Asked]:
    """Return a model's dimensions and the sizes SGLang will be asked for; see :func:`of_fields`.

    Raises:
        UserError: A size is out of range or does not go with another.
    """
    where = str(model.path / "config.json")
    sizes = model_sizes.from_config(model.config, where=where)
    dims = model_dims.from_sizes(asdict(sizes), model.text, where=where)
    values = {**fields, **dict(wishes.fields)}
    if wishes.mtp is not None:
        values.update(_drafting(wishes.mtp, values))
    if wishes.state_dtype is not None:
        values["mamba_ssm_dtype"] = wishes.state_dtype
    if values.get("speculative_algorithm") and not (dims.num_draft_layers and model.has_draft):
        raise UserError(
            str(model.path),
            found="no MTP layer to draft with",
            allowed="a model with one, where drafts are asked for",
            do="pass --mtp 0",
        )
    asked = asked_of(values, environment, model.text, dims, memory_bytes, wishes)
    asked.check()
    return dims, asked


def asked_of(
    fields: Mapping[str, Any],
    environment: Mapping[str, str],
    text: Mapping[str, Any],
    dims: model_dims.ModelDims,
    memory_bytes: int,
    wishes: Wishes,
) -> Asked:
    """Return the sizes that SGLang will be asked for.

    Args:
        fields: ``ServerArgs`` fields that are set.
        environment: Variables that are set.
        text: ``text_config`` of the model.
        dims: The model.
        memory_bytes: Of an APU, for what SGLang derives from it.
        wishes: What a user asks for besides.
    """
    page = int(fields.get("page_size") or 1)
    scheduler = stock_settings.scheduler_of(fields, environment)
    draft_steps, draft_tokens = _drafted(fields)
    chunk = int(fields.get("chunked_prefill_size") or 0)
    chunk = chunk if chunk > 0 else pool_sizes.default_chunk_tokens(memory_bytes)
    context = int(fields.get("context_length") or dims.max_position_embeddings)
    session = min(DEFAULT_CONTEXT, context) if wishes.context is None else wishes.context
    requests, slots, tokens = _counts(fields, scheduler, page, session, wishes)
    passed = stock_settings.compensated_fraction(fields, context).fields
    return Asked(
        kv_tokens=tokens,
        state_slots=slots,
        max_running_requests=requests,
        session_tokens=session,
        page_tokens=page,
        context_tokens=context,
        scheduler=scheduler,
        draft_tokens=draft_tokens,
        draft_steps=draft_steps,
        replay=draft_steps > 0 and bool(fields.get("enable_linear_replayssm_spec", False)),
        state_dtype=_state_dtype(fields, environment, text),
        conv_dtype=environment.get("SGLANG_MAMBA_CONV_DTYPE", "bfloat16"),
        kv_dtype_bytes=_kv_dtype_bytes(fields),
        chunk_tokens=chunk,
        prefill_graph_tokens=_prefill_graph_tokens(fields, chunk),
        decode_graphs=graph_phases.captures(fields, "decode", default=True),
        mem_fraction=passed.get("mem_fraction_static", fields.get("mem_fraction_static")),
        aiter=fields.get("attention_backend") == "aiter",
    )


def _drafted(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return drafts a step and tokens a verify step checks, as stock makes them of the flags."""
    if not fields.get("speculative_algorithm"):
        return 0, 0
    if fields.get("speculative_num_steps") is None:  # stock's own choice for this architecture
        return 3, 4
    steps = int(fields["speculative_num_steps"])
    tokens = fields.get("speculative_num_draft_tokens")
    if fields.get("speculative_eagle_topk", 1) == 1 or tokens is None:
        return steps, steps + 1  # a chain, whatever was asked
    return steps, int(tokens)


def _counts(
    fields: Mapping[str, Any],
    scheduler: pool_sizes.Scheduler,
    page: int,
    session: int,
    wishes: Wishes,
) -> tuple[int, int, int]:
    """Return running requests, state slots and KV tokens: given, derived, or the preset's."""
    given = (wishes.max_running_requests, wishes.state_slots, wishes.kv_tokens)
    if wishes.concurrency is None:
        if wishes.slots_per_request is not None:
            raise UserError(
                "--slots-per-request",
                found="no --concurrency",
                allowed="both, since slots are derived from sessions",
                do="pass --concurrency too, or --state-slots",
            )
        names = ("max_running_requests", "max_mamba_cache_size", "max_total_tokens")
        usual = [int(fields[name]) for name in names]
    else:
        if wishes.max_running_requests not in (None, wishes.concurrency):
            raise UserError(
                "--concurrency, --max-running-requests",
                found=f"{wishes.concurrency} and {wishes.max_running_requests}",
                allowed="one of them",
                do="leave --max-running-requests out",
            )
        ratio = scheduler.slots_per_request
        each = ratio if wishes.slots_per_request is None else wishes.slots_per_request
        if not ratio <= each <= 1000:
            raise UserError(
                "--slots-per-request",
                found=f"{each:g}",
                allowed=f"{ratio} (what SGLang wants in this scheduler mode) to 1000",
                do=f"pass {ratio} or more",
            )
        pages = -(-session // page)
        sessions = wishes.concurrency
        usual = [sessions, math.ceil(sessions * each), sessions * pages * page]
    requests, slots, tokens = (
        default if value is None else value for value, default in zip(given, usual, strict=True)
    )
    return requests, slots, tokens


def _setting(text: str) -> tuple[str, Any]:
    """Return the field and value of ``--set NAME=VALUE``; a value is JSON, or else text."""
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name.isidentifier():
        raise UserError(
            f"--set {text}",
            found="no NAME=VALUE",
            allowed="a field of SGLang's ServerArgs and its value",
            do="write for instance --set chunked_prefill_size=1024",
        )
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _drafting(steps: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that make SGLang draft so many tokens."""
    if steps == 0:
        return {"speculative_algorithm": None, "enable_linear_replayssm_spec": False}
    lines = presets.load(DRAFTING_PRESET).on("gfx942")
    names = ("speculative_algorithm", "enable_linear_replayssm_spec", "mamba_ssm_dtype")
    usual = {} if fields.get("speculative_algorithm") else lines
    return {
        **{name: usual[name].value for name in names if name in usual},
        "speculative_num_steps": steps,
        "speculative_num_draft_tokens": steps + 1,
    }


def _state_dtype(
    fields: Mapping[str, Any],
    environment: Mapping[str, str],
    text: Mapping[str, Any],
) -> str:
    """Return the dtype of states as stock resolves it: flag, replay's rule, variable, model."""
    flag = fields.get("mamba_ssm_dtype")
    if flag is None and fields.get("enable_linear_replayssm_spec"):
        flag = "float32"
    variable = environment.get("SGLANG_MAMBA_SSM_DTYPE")
    return str(flag or variable or text.get("mamba_ssm_dtype") or "float32")


def _kv_dtype_bytes(fields: Mapping[str, Any]) -> int:
    dtype = str(fields.get("kv_cache_dtype", "auto"))
    sizes = {"auto": 2, "bfloat16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
    if dtype not in sizes:
        raise UserError("--kv-cache-dtype", found=dtype, allowed=", ".join(sizes), do="pass auto")
    return sizes[dtype]


def _prefill_graph_tokens(fields: Mapping[str, Any], chunk: int) -> int:
    """Return the largest prefill graph; stock captures none on ROCm unless a backend is named."""
    return max(graph_phases.prefill_token_counts(fields, chunk), default=0)


def _weights(
    model: served_model.ServedModel, dims: model_dims.ModelDims, tp: int, ep: int
) -> tuple[WeightBytes, ...]:
    has_files = artifact_manifest.is_artifact(model.path) or any(model.path.glob("*.safetensors"))
    if not has_files:
        if not model.text_only and "vision_config" in model.config:
            raise UserError(
                str(model.path),
                found="config.json of a model with a visual tower, and no weights",
                allowed="weights beside it, or a text-only config.json",
                do='add `"language_model_only": true` to config.json if it is served text-only, or '
                "give the checkpoint or artifact",
            )
        one = WeightBytes(
            weight_sizes.target_bytes(dims, tp),
            weight_sizes.draft_bytes(dims, tp),
            weight_sizes.lent_bytes(dims, tp),
            "from config.json: text only, MXFP4 experts, the rest bf16",
        )
        return (one,) * tp
    # An artifact states every rank's bytes. The ranks of a checkpoint have equal shapes.
    ranks = range(tp) if model.is_artifact else range(1)
    found = [_resident(model.path, Placement(tp, ep, rank)) for rank in ranks]
    return tuple(found if model.is_artifact else found * tp)


def _resident(path: Path, at: Placement) -> WeightBytes:
    parts = resident.of_model(path, at)
    draft = parts.get("draft", resident.ResidentBytes(0, 0))
    return WeightBytes(
        parts["target"].stored, draft.stored, draft.lent, "from the headers of the weights"
    )


def _amount(text: str | None, flag: str, usual: estimates.Amount) -> estimates.Amount:
    if text is None:
        return usual
    planned = byte_text.size(text, where=flag)
    return replace(usual, planned=planned, low=planned, high=planned, source=f"{flag} {text}")


def _node(args: argparse.Namespace, tp: int) -> node_file.DescribedNode:
    found = _described(args, tp)
    return replace(
        found,
        host=_amount(args.host_processes, "--host-processes", found.host),
        reserve=_amount(args.reserve, "--reserve", found.reserve),
    )


def _described(args: argparse.Namespace, tp: int) -> node_file.DescribedNode:
    if args.node is not None:
        if args.save_node is not None:
            raise UserError(
                "--save-node",
                found=f"--node {args.node}",
                allowed="one of them: --save-node describes the node it runs on",
                do="leave --node out",
            )
        return node_file.load(args.node, num_ranks=tp)
    if args.save_node is not None:
        _save_node(args.save_node)
    memory = unified_memory.read(visible=visible_now(), num_ranks=tp)
    return node_file.DescribedNode(memory, estimates.HOST_PROCESSES, estimates.RESERVE)


def _save_node(path: Path) -> None:
    described = node_file.describe(
        unified_memory.read(), name=path.stem, source="sglang-mi300a plan --save-node"
    )
    try:
        path.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"--save-node {path}",
            found=f"not writable ({error.strerror})",
            allowed="a file that can be written",
            do="name another",
        ) from error


def visible_now() -> list[int] | None:
    """Return the accelerators that this process's environment leaves visible; None: all."""
    return visible_devices(
        settings.get("ROCR_VISIBLE_DEVICES"), settings.get("HIP_VISIBLE_DEVICES")
    )


def visible_devices(rocr: str | None, hip: str | None) -> list[int] | None:
    """Return the accelerators that ROCm's two variables leave visible; None: all.

    ``HIP_VISIBLE_DEVICES`` counts among those that ``ROCR_VISIBLE_DEVICES`` leaves. Devices by
    UUID cannot be told apart here, and all are taken to be visible.
    """
    found: list[int] | None = None
    for text in (rocr, hip):
        if text is None:
            continue
        numbers = [part.strip() for part in text.split(",") if part.strip()]
        if not all(part.isdigit() for part in numbers):
            return None
        chosen = [int(part) for part in numbers]
        found = chosen if found is None else [found[i] for i in chosen if i < len(found)]
    return found


def other_presets(
    model: served_model.ServedModel, preset: str, tp: int, ep: int, node: node_file.DescribedNode
) -> dict[str, Plan]:
    """Return what the presets beside ``preset`` would plan by themselves, by name."""
    found = {}
    for name in presets.names():
        if name != preset:
            try:
                found[name] = of_preset(model, name, tp, ep, node)
            except UserError:  # that preset is not for this model
                continue
    return found
