"""How many bytes of weights a rank will hold, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a import artifact_manifest, served_model
from sglang_mi300a import layout as layouts
from sglang_mi300a.artifact_manifest import PARTS, Part, size_bytes
from sglang_mi300a.weights import checkpoint, model_sizes, plan
from sglang_mi300a.weights.plan import Placement
from sglang_mi300a.weights.steps import groups


@dataclass(frozen=True)
class ResidentBytes:
    """Weights of one model on one rank, as stored (SGLang's ``--dtype auto``).

    Attributes:
        stored: Bytes of the parameters that are loaded.
        lent: Bytes that the draft allocates for embedding and head, at bfloat16, and frees when
            it takes over the target's.
    """

    stored: int
    lent: int


def of_model(
    directory: Path, at: Placement, *, layout_id: str = layouts.PLAIN.id
) -> dict[Part, ResidentBytes]:
    """Return what one rank holds of target and, if there is one, draft; only headers are read.

    Args:
        directory: An artifact or a Hugging Face checkpoint.
        at: The rank. For an artifact, one that it was made for.
        layout_id: Layout of the experts (checkpoint only).

    Raises:
        UserError: The directory is neither, or does not fit the rank.
    """
    config = served_model.read_config(directory)
    sizes = model_sizes.from_config(config, where=str(directory / "config.json"))
    stored: dict[Part, int] = {}
    if artifact_manifest.is_artifact(directory):
        manifest = artifact_manifest.read(directory)
        for tensor in manifest.tensors:
            if tensor.rank == at.rank:
                stored[tensor.part] = stored.get(tensor.part, 0) + tensor.size
    else:
        sources = checkpoint.read(directory).sources()
        layout = layouts.named(layout_id, where="layout")
        text_only = sizes.vision is None or bool(config.get("language_model_only"))
        for part in PARTS if plan.has_draft(sources) else PARTS[:1]:
            rank_plan = plan.make(
                sizes, sources, at, part, text_only=text_only, where=str(directory)
            )
            stored[part] = sum(group.size for group in groups([rank_plan], layout))
    return {
        part: ResidentBytes(
            size, sum(size_bytes("BF16", shape) for shape in plan.lent(sizes, at, part).values())
        )
        for part, size in stored.items()
    }
