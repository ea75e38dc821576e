"""The dense products of a preset: model, preset and node joined into one grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sglang_mi300a import model_dims, served_model, settings
from sglang_mi300a.gemm import linear_shapes, row_counts, shape_grid
from sglang_mi300a.pools import node_file, pool_sizes
from sglang_mi300a.serving import preset as presets
from sglang_mi300a.weights import model_sizes

REFERENCE_NODE = "mi300a-x4"
"""Whose memory decides SGLang's defaults where no other node is named."""


def of_preset(
    model: served_model.ServedModel,
    preset: str,
    tp: int,
    *,
    ep: int = 1,
    given: Mapping[str, Any] | None = None,
    memory_bytes: int | None = None,
) -> shape_grid.ShapeGrid:
    """Return the grid of a preset on gfx942.

    Args:
        model: What is served.
        preset: Its name.
        tp: Tensor-parallel ranks.
        ep: Expert-parallel ranks among them.
        given: ``ServerArgs`` fields that win over the preset's.
        memory_bytes: Of an APU; default the reference node's.
    """
    lines = presets.load(preset).on("gfx942").values()
    fields = {line.name: line.value for line in lines if not line.is_environment}
    return of_fields(
        model,
        {**fields, **(given or {})},
        tp,
        shared_expert_rides=shared_expert_rides(model, tp, ep),
        memory_bytes=memory_bytes,
    )


def of_fields(
    model: served_model.ServedModel,
    fields: Mapping[str, Any],
    tp: int,
    *,
    shared_expert_rides: bool,
    memory_bytes: int | None = None,
) -> shape_grid.ShapeGrid:
    """Return the grid of a server that is started with these settings; see :func:`of_preset`."""
    memory = memory_bytes or node_file.load(REFERENCE_NODE).memory.apus[0].total_bytes
    where = str(model.path / "config.json")
    sizes = model_sizes.from_config(model.config, where=where)
    dims = model_dims.from_sizes(asdict(sizes), model.text, where=where)
    chunk = int(fields.get("chunked_prefill_size") or 0)
    batches = row_counts.batches_of(
        fields,
        max_running_requests=int(fields["max_running_requests"]),
        chunk_tokens=chunk if chunk > 0 else pool_sizes.default_chunk_tokens(memory),
        memory_bytes=memory,
        tp=tp,
    )
    vision = None if model.text_only else model.config.get("vision_config")
    return shape_grid.grid_of(
        linear_shapes.of_text_model(
            dims,
            tp,
            with_draft=batches.draft_tokens > 0,
            shared_expert_rides=shared_expert_rides,
        ),
        batches,
        tp,
        linear_shapes.of_visual_tower(vision, tp) if vision else (),
    )


def shared_expert_rides(model: served_model.ServedModel, tp: int, ep: int) -> bool:
    """Return whether the compiled expert kernels will take the shared expert along.

    They do where it is cut as the routed ones are, unless this is turned off or another rung of the
    expert layer is allowed.
    """
    routed = int(model.text["moe_intermediate_size"]) * ep // tp
    shared = int(model.text["shared_expert_intermediate_size"]) // tp
    return (
        routed == shared
        and settings.shared_expert() == "together"
        and settings.allowed_rung() == "hip"
    )
