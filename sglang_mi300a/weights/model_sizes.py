"""The sizes of a Qwen3.5-MoE that decide how its weights are cut, read from ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from sglang_mi300a.artifact_manifest import checksum
from sglang_mi300a.errors import UserError

ARCHITECTURE = "Qwen3_5MoeForConditionalGeneration"
DRAFT_ARCHITECTURE = "Qwen3_5ForCausalLMMTP"
_TEXT_MODEL_TYPE = "qwen3_5_moe_text"


@dataclass(frozen=True)
class VisionSizes:
    """Sizes of the visual tower; names as in ``vision_config``."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    out_hidden_size: int
    num_position_embeddings: int
    num_deepstack: int


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of target and draft; names as in ``text_config`` where it has them.

    Attributes:
        query_rows_per_head: Rows of ``q_proj`` per head: ``head_dim``, doubled by the output gate.
        tied_target: Whether the target's head is its embedding.
        tied_draft: Whether the draft's head is its embedding.
        num_draft_layers: MTP layers, 0 or 1.
        vision: The visual tower, or None if the config has none.
    """

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    query_rows_per_head: int
    full_attention_interval: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    num_experts: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    tied_target: bool
    tied_draft: bool
    num_draft_layers: int
    vision: VisionSizes | None

    def is_full_attention(self, layer: int) -> bool:
        """Return whether a target layer attends to all tokens (else it is a gated delta net)."""
        return (layer + 1) % self.full_attention_interval == 0

    def digest(self) -> str:
        """Return a checksum of all sizes, for the manifest."""
        return checksum(json.dumps(asdict(self), sort_keys=True).encode())


def from_config(config: Mapping[str, Any], *, where: str) -> ModelSizes:
    """Return the sizes that a ``config.json`` states.

    Args:
        config: The parsed file.
        where: Its path, for errors.

    Raises:
        UserError: Another architecture, or a size is missing or no positive number.
    """
    architectures = config.get("architectures") or []
    text = config.get("text_config")
    if ARCHITECTURE not in architectures or not isinstance(text, Mapping):
        raise UserError(
            where,
            found=f"architectures {architectures}"
            + ("" if isinstance(text, Mapping) else " without a text_config"),
            allowed=f"{ARCHITECTURE} with a text_config",
            do="give the directory of a Qwen3.5-MoE checkpoint",
        )
    field = _Reader(where, "text_config", text)
    if text.get("model_type") != _TEXT_MODEL_TYPE:
        field.refuse("model_type", text.get("model_type"), repr(_TEXT_MODEL_TYPE))
    hidden, heads = field.size("hidden_size"), field.size("num_attention_heads")
    head_dim = field.size("head_dim") if text.get("head_dim") else hidden // heads
    num_draft_layers = field.size("mtp_num_hidden_layers", 0, least=0)
    if num_draft_layers > 1:
        field.refuse("mtp_num_hidden_layers", num_draft_layers, "0 or 1, as SGLang builds")
    vision = config.get("vision_config")
    return ModelSizes(
        hidden_size=hidden,
        num_hidden_layers=field.size("num_hidden_layers"),
        vocab_size=field.size("vocab_size"),
        num_attention_heads=heads,
        num_key_value_heads=field.size("num_key_value_heads"),
        head_dim=head_dim,
        query_rows_per_head=head_dim * (2 if text.get("attn_output_gate", True) else 1),
        full_attention_interval=field.size("full_attention_interval"),
        linear_num_key_heads=field.size("linear_num_key_heads"),
        linear_num_value_heads=field.size("linear_num_value_heads"),
        linear_key_head_dim=field.size("linear_key_head_dim"),
        linear_value_head_dim=field.size("linear_value_head_dim"),
        linear_conv_kernel_dim=field.size("linear_conv_kernel_dim"),
        num_experts=field.size("num_experts"),
        moe_intermediate_size=field.size("moe_intermediate_size"),
        shared_expert_intermediate_size=field.size("shared_expert_intermediate_size"),
        tied_target=bool(config.get("tie_word_embeddings", False)),
        tied_draft=bool(text.get("tie_word_embeddings", False)),
        num_draft_layers=num_draft_layers,
        vision=_vision(where, vision) if isinstance(vision, Mapping) else None,
    )


def _vision(where: str, vision: Mapping[str, Any]) -> VisionSizes:
    field = _Reader(where, "vision_config", vision)
    return VisionSizes(
        depth=field.size("depth"),
        hidden_size=field.size("hidden_size"),
        intermediate_size=field.size("intermediate_size"),
        num_heads=field.size("num_heads"),
        in_channels=field.size("in_channels", 3),
        patch_size=field.size("patch_size"),
        temporal_patch_size=field.size("temporal_patch_size"),
        spatial_merge_size=field.size("spatial_merge_size"),
        out_hidden_size=field.size("out_hidden_size"),
        num_position_embeddings=field.size("num_position_embeddings"),
        num_deepstack=len(vision.get("deepstack_visual_indexes") or []),
    )


class _Reader:
    def __init__(self, where: str, section: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.section = section
        self.values = values

    def size(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self.values.get(name, default)
        if type(value) is not int or value < least:
            self.refuse(name, value, f"a whole number of at least {least}")
        return value

    def refuse(self, name: str, value: Any, allowed: str) -> NoReturn:
        raise UserError(
            self.where,
            found=f"{self.section}.{name} = {value!r}",
            allowed=allowed,
            do="fetch config.json of the checkpoint again",
        )
