"""The sizes of a model that decide what its pools, weights and dense GEMMs take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sglang_mi300a.errors import UserError


@dataclass(frozen=True)
class ModelDims:
    """Sizes of a Qwen3.5-MoE; names as in ``text_config`` where it has them.

    Attributes:
        query_rows_per_head: Rows of ``q_proj`` a head: ``head_dim``, doubled by the output gate.
        tied_target: Whether the target's head is its embedding.
        tied_draft: Whether the draft's head is its embedding.
        num_draft_layers: MTP layers, 0 or 1.
        num_experts_per_tok: Routed experts a token.
        max_position_embeddings: Longest context, tokens.
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
    num_experts_per_tok: int
    max_position_embeddings: int

    @property
    def num_attention_layers(self) -> int:
        """Layers that attend to all tokens and so have KV."""
        return self.num_hidden_layers // self.full_attention_interval

    @property
    def num_linear_layers(self) -> int:
        """Gated delta nets, which have a state."""
        return self.num_hidden_layers - self.num_attention_layers


def from_sizes(
    sizes: Mapping[str, Any], text_config: Mapping[str, Any], *, where: str
) -> ModelDims:
    """Return the dimensions of a model.

    Args:
        sizes: What decides how its weights are cut, by field name (more entries do no harm).
        text_config: Of its ``config.json``, for what the cutting of weights does not need.
        where: The file, for errors.

    Raises:
        UserError: A size is missing or no positive number.
    """
    values = dict(sizes)
    for name in ("num_experts_per_tok", "max_position_embeddings"):
        value = text_config.get(name)
        if type(value) is not int or value < 1:
            raise UserError(
                where,
                found=f"text_config.{name} = {value!r}",
                allowed="a whole number of at least 1",
                do="fetch config.json of the checkpoint again",
            )
        values[name] = value
    return ModelDims(**{field.name: values[field.name] for field in fields(ModelDims)})
