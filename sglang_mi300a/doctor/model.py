"""What would be served: whether its files are whole and fit each other. Only headers are read."""

from __future__ import annotations

from pathlib import Path

from sglang_mi300a import artifact_manifest, served_model
from sglang_mi300a.artifact_manifest import PARTS
from sglang_mi300a.doctor.facts import Model
from sglang_mi300a.errors import UserError
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
