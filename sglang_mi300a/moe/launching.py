"""The expert layer's launches: buffers found by name, and all of it one torch operator.

    torch.ops.sglang_mi300a.moe_expert_layer(hidden, ids, weights, ..., workspace, out, ...)

Nothing is allocated here: result and workspace are the caller's, so a graph may record the call.
"""

# No annotations from the future: torch reads the operator's schema off them.
from collections.abc import Mapping
from functools import lru_cache

import torch

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import kernels, operators
from sglang_mi300a.moe.kernels import catalogue, steps
from sglang_mi300a.moe.kernels.catalogue import WeightFormat
from sglang_mi300a.moe.kernels.fit import ROOM
from sglang_mi300a.moe.kernels.signatures import signature
from sglang_mi300a.moe.kernels.steps import Layer, Step
from sglang_mi300a.moe.kernels.workspace import places

DTYPES = {
    steps.WORK: torch.int32,
    steps.TOKENS: torch.int32,
    steps.PAIR_ROWS: torch.int32,
    steps.SCALED: torch.bfloat16,
    steps.INNER: torch.bfloat16,
    steps.ROWS: torch.bfloat16,
    steps.SHARED_WORK: torch.int32,
    steps.SHARED_WEIGHTS: torch.float32,
}

_STANDIN_CUS = 4
"""Of a stand-in runtime, which runs workgroups one after another."""


def num_compute_units(device: torch.device) -> int:
    """Return the compute units that a launch may fill."""
    if device.type == "cpu":
        return _STANDIN_CUS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def module(device: torch.device) -> kernels.Module:
    """Return the room's code object on a device, loaded now or before.

    Raises:
        UserError: It is missing or damaged, or the device has no usable HIP runtime.
        LauncherError: HIP refused it.
    """
    return _module(device)


@lru_cache(maxsize=8)
def _code() -> code_objects.CodeObject:
    return code_objects.load(ROOM)


def _module(device: torch.device) -> kernels.Module:
    return kernels.load(_code(), device)


def launch(step: Step, buffers: Mapping[str, torch.Tensor | None], device: torch.device) -> None:
    """Launch one step on the device's current stream.

    Args:
        step: The launch.
        buffers: Tensor of each buffer it names.
        device: Where they are.

    Raises:
        UserError: A tensor does not fit; nothing was launched.
        LauncherError: HIP refused the launch.
    """
    arguments = [
        (buffers[one.buffer] if one.buffer else None)
        if isinstance(one, steps.Pointer)
        else one.value
        for one in step.arguments
    ]
    kernel = _module(device).kernel(signature(step.kernel))
    kernel.launch(step.grid, arguments)


_steps = lru_cache(maxsize=512)(steps.steps)
_places = lru_cache(maxsize=512)(places)


def _run(
    hidden: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    w13_stream: torch.Tensor,
    w2_stream: torch.Tensor,
    shared_w13_stream: torch.Tensor | None,
    shared_w2_stream: torch.Tensor | None,
    shared_gate: torch.Tensor | None,
    workspace: torch.Tensor,
    out: torch.Tensor,
    weights: str,
    inner: int,
    token_tile: int,
    gate_up_groups: int,
    down_groups: int,
) -> None:
    device = hidden.device
    layer = Layer(
        num_tokens=hidden.shape[0],
        top_k=topk_ids.shape[1],
        num_experts=w13_stream.shape[0],
        hidden=hidden.shape[1],
        inner=inner,
        weights=_format(weights),
        token_tile=token_tile,
        num_cus=num_compute_units(device),
        shared_expert=shared_gate is not None,
        gate_up_groups=gate_up_groups,
        down_groups=down_groups,
    )
    try:
        launches = _steps(layer)
    except ValueError as error:
        raise _refused("sizes", str(error), "sizes that have a kernel") from error
    _check(layer, w13_stream, w2_stream, shared_w13_stream, shared_w2_stream, workspace)
    buffers: dict[str, torch.Tensor | None] = {
        steps.HIDDEN_STATES: hidden,
        steps.TOPK_IDS: topk_ids,
        steps.TOPK_WEIGHTS: topk_weights,
        steps.W13_STREAM: w13_stream,
        steps.W2_STREAM: w2_stream,
        steps.SHARED_W13_STREAM: shared_w13_stream,
        steps.SHARED_W2_STREAM: shared_w2_stream,
        steps.SHARED_GATE: shared_gate,
        steps.OUT: out,
    }
    for name, given in buffers.items():
        if given is not None and given.device != device:
            raise _refused(name, f"a tensor on {given.device}", f"on {device}, like the tokens")
    for name, place in _places(layer).items():
        scratch = workspace[place.start : place.stop].view(DTYPES[name])
        buffers[name] = scratch.view_as(hidden) if name == steps.SCALED else scratch
    for step in launches:
        launch(step, buffers, device)


def _format(weights: str) -> WeightFormat:
    for known in catalogue.WEIGHT_FORMATS:
        if weights == known:
            return known
    raise _refused("weights", weights, ", ".join(catalogue.WEIGHT_FORMATS))


def _check(
    layer: Layer,
    w13: torch.Tensor,
    w2: torch.Tensor,
    shared_w13: torch.Tensor | None,
    shared_w2: torch.Tensor | None,
    workspace: torch.Tensor,
) -> None:
    """Refuse streams and workspaces of another size: kernels bound their reads by these numbers."""
    wanted = {
        "w13_stream": (w13, layer.stream_bytes("gate_up")),
        "w2_stream": (w2, layer.stream_bytes("down")),
        "shared_w13_stream": (shared_w13, layer.shared_stream_bytes("gate_up")),
        "shared_w2_stream": (shared_w2, layer.shared_stream_bytes("down")),
    }
    for name, (tensor, num_bytes) in wanted.items():
        found = 0 if tensor is None else tensor.nbytes
        if found != num_bytes:
            raise _refused(
                name,
                f"{found} bytes",
                f"{num_bytes} for {layer.num_experts} experts of {layer.inner} neurons",
            )
    needed = next(reversed(_places(layer).values())).stop
    if workspace.nbytes < needed:
        raise _refused("workspace", f"{workspace.nbytes} bytes", f"{needed} or more")


def _refused(what: str, found: str, allowed: str) -> UserError:
    return UserError(
        f"expert layer, {what}",
        found=found,
        allowed=allowed,
        do="give what the kernels were written for; nothing was launched",
    )


def _fake(
    hidden: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    w13_stream: torch.Tensor,
    w2_stream: torch.Tensor,
    shared_w13_stream: torch.Tensor | None,
    shared_w2_stream: torch.Tensor | None,
    shared_gate: torch.Tensor | None,
    workspace: torch.Tensor,
    out: torch.Tensor,
    weights: str,
    inner: int,
    token_tile: int,
    gate_up_groups: int,
    down_groups: int,
) -> None:
    """Write nothing: the operator's only results are what it was given to write."""


expert_layer = operators.define("moe_expert_layer", _run, fake=_fake, mutates=("workspace", "out"))
"""Sort, gate·up, down, slot sum.

    hidden        bf16 [M, hidden], M at least 1
    topk_ids      int32 [M, k], local experts; negative = none
    topk_weights  float32 [M, k]
    w13_stream, w2_stream                uint8 [experts, bytes]
    shared_w13_stream, shared_w2_stream  uint8 [1, bytes], bf16 streams; or None
    shared_gate   bf16 [hidden]; or None
    workspace     uint8, ``workspace_bytes`` of the largest batch; written
    out           bf16 [M, hidden]; written
    weights       ``subnormals``, ``bf8`` or ``bf16``
    inner         neurons of an expert
    token_tile    16 or 32
    gate_up_groups, down_groups  workgroups a compute unit; 0 = as many as it holds
"""
