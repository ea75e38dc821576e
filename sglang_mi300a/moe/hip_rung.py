"""The first rung: the gfx942 code object that the package ships."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher.failure import LauncherError
from sglang_mi300a.moe import launching
from sglang_mi300a.moe.kernels import fit, probe, steps
from sglang_mi300a.moe.kernels.catalogue import WeightFormat
from sglang_mi300a.moe.kernels.workspace import reserved_bytes
from sglang_mi300a.moe.rungs import Experts, ExpertSizes, SharedExpert
from sglang_mi300a.moe.tile_choice import choose

_DECODES: tuple[WeightFormat, ...] = ("subnormals", "bf8")
"""Of MXFP4, in order of preference."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """One layer as the kernels read it.

    Attributes:
        w13_stream: uint8 ``[experts, bytes]``.
        w2_stream: uint8 ``[experts, bytes]``.
        weights: What the streams hold.
        inner: Neurons of an expert.
        shared: The shared expert that rides in the same launches, or None.
    """

    w13_stream: torch.Tensor
    w2_stream: torch.Tensor
    weights: WeightFormat
    inner: int
    shared: SharedExpert | None = None


class HipRung:
    """gfx942 machine code through the launcher.

    Attributes:
        max_tokens: Tokens of one launch at most; a longer batch is run in parts.
        decodes: The MXFP4 decode in use, by device: ``subnormals``, unless its matrix unit drops
            bf16 subnormals.
    """

    name = "hip"

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.decodes: dict[torch.device, WeightFormat] = {}
        self._workspaces: dict[torch.device, torch.Tensor] = {}

    def can_run(self, device: torch.device, sizes: ExpertSizes) -> str | None:
        """Return None if the code object loads on the device and has kernels for such layers."""
        if sizes.activations is not torch.bfloat16:
            return f"activations of {sizes.activations}, the kernels take torch.bfloat16"
        found = fit.misfit(
            num_experts=sizes.num_experts,
            hidden=sizes.hidden,
            inner=sizes.inner,
            top_k=sizes.top_k,
            layout=sizes.layout,
            weights=sizes.weights,
        )
        if found is not None:
            return found
        if device.type == "cuda":
            properties = torch.cuda.get_device_properties(device)
            arch = str(getattr(properties, "gcnArchName", properties.name)).split(":")[0]
            if arch != code_objects.ARCH:
                return f"device {arch}, the code object is for {code_objects.ARCH}"
        try:
            launching.module(device)
        except UserError as error:
            return f"{error.where}: {error.found}"
        except LauncherError as error:
            return str(error)
        return None

    def prepare(self, experts: Experts) -> Prepared:
        """Return the layer's streams; rewrite them in place where the decode asks for it."""
        w13, w2 = experts.tensors[steps.W13_STREAM], experts.tensors[steps.W2_STREAM]
        device = w13.device
        self._reserve(device, experts.sizes)
        if experts.sizes.weights == "bf16":
            return Prepared(w13, w2, "bf16", experts.sizes.inner)
        decode = self.decode(device)
        if decode == "bf8":
            for name, stream in ((steps.W13_STREAM, w13), (steps.W2_STREAM, w2)):
                cus = launching.num_compute_units(device)
                step = steps.restripe(name, stream.nbytes, cus)
                launching.launch(step, {name: stream}, device)
        return Prepared(w13, w2, decode, experts.sizes.inner)

    def with_shared(self, prepared: Prepared, shared: SharedExpert) -> Prepared:
        """Return the layer with its shared expert."""
        return replace(prepared, shared=shared)

    def facts(self, device: torch.device) -> dict[str, str]:
        """Return the decode in use, and which code object it is."""
        digest = launching.module(device).code.digest
        return {"decode": self.decodes.get(device, "not asked"), "code object": digest[:16]}

    def decode(self, device: torch.device) -> WeightFormat:
        """Return the decode that is exact on a device; asks the device once.

        Raises:
            UserError: None is.
        """
        if device not in self.decodes:
            exact = [decode for decode in _DECODES if _is_exact(decode, device)]
            if not exact:
                raise UserError(
                    f"matrix unit of {device}",
                    found=f"inexact weights by each decode ({', '.join(_DECODES)})",
                    allowed="one decode that gives every MXFP4 weight exactly",
                    do="serve with --allow-rung torch and send `sglang-mi300a kernels selftest` in",
                )
            self.decodes[device] = exact[0]
        return self.decodes[device]

    def apply(
        self,
        prepared: Prepared,
        hidden: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
    ) -> torch.Tensor:
        """Return the routed experts' sum for each token, plus the shared expert's if it rides."""
        out = torch.empty_like(hidden)
        workspace = self._workspaces[hidden.device]
        shared = prepared.shared
        for at in range(0, len(hidden), self.max_tokens):
            part = slice(at, at + self.max_tokens)
            how = choose(
                len(out[part]),
                top_k=topk_ids.shape[1],
                experts=len(prepared.w13_stream),
                inner=prepared.inner,
                weights=prepared.weights,
            )
            launching.expert_layer(
                hidden[part],
                topk_ids[part],
                topk_weights[part],
                prepared.w13_stream,
                prepared.w2_stream,
                shared.w13_stream if shared else None,
                shared.w2_stream if shared else None,
                shared.gate if shared else None,
                workspace,
                out[part],
                prepared.weights,
                prepared.inner,
                how.tile,
                how.gate_up_groups,
                how.down_groups,
            )
        return out

    def workspace_bytes(self, device: torch.device) -> int:
        """Return the size of a device's workspace; 0 before a layer was prepared on it."""
        return self._workspaces[device].nbytes if device in self._workspaces else 0

    def _reserve(self, device: torch.device, sizes: ExpertSizes) -> None:
        """Make the workspace large enough for such layers; the shared expert included."""
        needed = reserved_bytes(
            max_tokens=self.max_tokens,
            top_k=sizes.top_k,
            num_experts=sizes.num_experts,
            hidden=sizes.hidden,
            inner=sizes.inner,
        )
        if self.workspace_bytes(device) < needed:
            self._workspaces[device] = torch.empty(needed, dtype=torch.uint8, device=device)


def _is_exact(decode: WeightFormat, device: torch.device) -> bool:
    """Return whether the device reads the probe's weights back exactly through a decode."""
    values = torch.zeros(probe.values().size, dtype=torch.float32, device=device)
    buffers = {
        steps.PROBE_STREAM: torch.from_numpy(probe.stream(decode)).to(device),
        steps.PROBE_VALUES: values,
    }
    launching.launch(steps.read_back(decode, probe.NUM_RECORDS), buffers, device)
    return probe.is_exact(values.cpu().numpy())
