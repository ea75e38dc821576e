"""What would be served: whether its files are whole and fit each other. Only headers are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sglang_mi300a import artifact_manifest, served_model
from sglang_mi300a.artifact_manifest import PARTS
from sglang_mi300a.cli import plan
from sglang_mi300a.doctor.facts import Model
from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import estimates, fit, unified_memory
from sglang_mi300a.pools.byte_text import both
from sglang_mi300a.pools.node_file import DescribedNode
from sglang_mi300a.weights import artifact, resident, storage_probe
from sglang_mi300a.weights.plan import Placement


def gather(path: Path, tp: int, *, probe: bool = False) -> Model:
    """Return what a model directory is like.

    Args:
        path: The directory.
        tp: Ranks that are to be started.
        probe: Whether to read some of an artifact, to see how long a load takes.
    """
    is_artifact = artifact_manifest.is_artifact(path)
    kind = "artifact" if is_artifact else "checkpoint"
    try:
        found = served_model.read(path)
        if is_artifact:
            return _artifact(found, probe)
        parts = resident.of_model(path, Placement(tp, 1, 0))
        return Model(
            kind=kind,
            has_draft=found.has_draft,
            rank_bytes=sum(part.stored for part in parts.values()),
        )
    except UserError as error:
        return Model(kind=kind, fault=f"{_place_of(error, path)}: {error.found}")


def _place_of(error: UserError, path: Path) -> str:
    """Return where an error is, relative to the model's directory."""
    return error.where.replace(str(path), "<model>")


def plan_fault(path: Path, tp: int, preset: str, root: Path, visible: Sequence[int] | None) -> str:
    """Return what the memory plan of a preset lacks on this node, or "" where it fits.

    Args:
        path: Model directory.
        tp: Ranks.
        preset: By name.
        root: Directory that stands for ``/``.
        visible: Accelerators; None: all.
    """
    try:
        found = served_model.read(path)
        memory = unified_memory.read(root, visible=visible, num_ranks=tp)
        node = DescribedNode(memory, estimates.HOST_PROCESSES, estimates.RESERVE)
        made = plan.of_preset(found, preset, tp, found.artifact_ep or 1, node)
        problems = fit.check_fit(made, memory)
    except UserError as error:
        return f"{_place_of(error, path)}: {error.found}"
    if not problems:
        return ""
    apus = ", ".join(str(one.apu) for one in problems)
    worst = max(problems, key=lambda one: one.missing_bytes)
    return f"APU {apus}: up to {both(worst.missing_bytes)} missing under {worst.limit.name}"


def _artifact(found: served_model.ServedModel, probe: bool) -> Model:
    whole = artifact.read(found.path)
    manifest = whole.manifest
    parts = PARTS if manifest.has_draft else PARTS[:1]
    sizes = [
        sum(tensor.size for part in parts for tensor in artifact.check_files(whole, rank, part))
        for rank in range(manifest.tp)
    ]
    return Model(
        kind="artifact",
        tp=manifest.tp,
        ep=manifest.ep,
        has_draft=manifest.has_draft,
        rank_bytes=max(sizes),
        load_s=round(storage_probe.of_artifact(found.path).node_seconds, 1) if probe else 0.0,
    )
