"""The sizes of a tiny model, and what they must divide."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_mi300a.errors import UserError
from sglang_mi300a.mxfp4 import BLOCK

FULL_ATTENTION_INTERVAL = 4
"""Every fourth layer attends to all tokens, the others carry a gated delta-net state.

Source: config.json of Qwen3.5-397B-A17B (45 delta-net and 15 full-attention layers of 60).
"""

PARTIAL_ROTARY_FACTOR = 0.25
"""Share of each attention head that is rotated (64 of 256 dims in Qwen3.5-397B-A17B)."""


@dataclass(frozen=True)
class TinySizes:
    """Sizes of a tiny model; the defaults keep the structure of Qwen3.5-397B-A17B.

    Attributes:
        hidden: Width of the residual stream (4096 in the real model).
        layers: Decoder layers, a multiple of 4 (60).
        vocab: Rows of embedding and head; more than the tokenizer has, and no multiple of
            64 x ranks, so that padding of the vocabulary is exercised (248,320).
        attention_heads: Query heads (32).
        kv_heads: Key/value heads; fewer than 4, so that 4 ranks must share them (2).
        head_dim: Width of an attention head (256).
        gdn_key_heads: Key heads of the delta net (16).
        gdn_value_heads: Value heads of the delta net, 4 per key head as in the real model (64).
        gdn_head_dim: Width of a delta-net key or value head (128).
        gdn_conv_taps: Taps of the short convolution (4).
        experts: Routed experts (512).
        experts_per_token: Routed experts a token visits (10).
        moe_intermediate: Width of one routed expert (1024).
        shared_intermediate: Width of the shared expert (1024).
        dense_intermediate: Width of the MLP of the dense kind.
        max_positions: Longest context (262,144).
        shard_bytes: Tensors are put into a file until it holds this many bytes.
    """

    hidden: int = 256
    layers: int = 4
    vocab: int = 1248
    attention_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    gdn_key_heads: int = 4
    gdn_value_heads: int = 16
    gdn_head_dim: int = 32
    gdn_conv_taps: int = 4
    experts: int = 16
    experts_per_token: int = 4
    moe_intermediate: int = 128
    shared_intermediate: int = 128
    dense_intermediate: int = 512
    max_positions: int = 8192
    shard_bytes: int = 2 << 20

    def __post_init__(self) -> None:
        """Refuse sizes that no Qwen3.5 checkpoint could have.

        Raises:
            UserError: A size is not positive, or does not divide as the architecture needs.
        """
        for name, size in self.__dict__.items():
            if size <= 0:
                _refuse(name, size, "a positive number", "give a positive number")
        _must_divide("layers", self.layers, FULL_ATTENTION_INTERVAL)
        _must_divide("hidden", self.hidden, BLOCK)
        _must_divide("moe_intermediate", self.moe_intermediate, BLOCK)
        _must_divide("attention_heads", self.attention_heads, self.kv_heads)
        _must_divide("gdn_value_heads", self.gdn_value_heads, self.gdn_key_heads)
        _must_divide("head_dim", self.head_dim, 8)
        if self.experts_per_token > self.experts:
            _refuse(
                "experts_per_token",
                self.experts_per_token,
                f"at most experts = {self.experts}",
                "lower experts_per_token or raise experts",
            )

    @property
    def rotary_dim(self) -> int:
        """Rotated dims of an attention head."""
        return int(self.head_dim * PARTIAL_ROTARY_FACTOR)

    @property
    def mrope_section(self) -> list[int]:
        """Rotary pairs given to time, height and width, [11, 11, 10] for 32 pairs."""
        pairs = self.rotary_dim // 2
        width = pairs // 3
        height = (pairs - width + 1) // 2
        return [pairs - width - height, height, width]

    @property
    def layer_types(self) -> list[str]:
        """The type of each layer, as config.json spells it."""
        return [
            "full_attention" if (layer + 1) % FULL_ATTENTION_INTERVAL == 0 else "linear_attention"
            for layer in range(self.layers)
        ]

    def serves_on(self, *, tp: int, ep: int = 1) -> str:
        """Return "" if the model can be cut over ``tp`` and ``ep`` ranks, else why not.

        Args:
            tp: Tensor-parallel ranks.
            ep: Expert-parallel ranks; divides ``tp``.
        """
        moe_tp = tp // ep
        for name, size, by in (
            ("attention_heads", self.attention_heads, tp),
            ("gdn_key_heads", self.gdn_key_heads, tp),
            ("gdn_value_heads", self.gdn_value_heads, tp),
            ("experts", self.experts, ep),
            ("moe_intermediate", self.moe_intermediate, moe_tp * BLOCK),
            ("shared_intermediate", self.shared_intermediate, tp),
        ):
            if size % by:
                return f"{name} = {size} is no multiple of {by}"
        return ""


def _must_divide(name: str, size: int, by: int) -> None:
    if size % by:
        _refuse(name, size, f"a multiple of {by}", f"use {-(-size // by) * by}")


def _refuse(name: str, size: int, allowed: str, do: str) -> None:
    raise UserError(f"tiny model size {name}", found=str(size), allowed=allowed, do=do)
