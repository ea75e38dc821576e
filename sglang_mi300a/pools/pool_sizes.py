"""What SGLang 0.5.18 allocates for KV, states and their scratch: each formula once, to the byte.

Every function here is compared with the stock classes themselves over a grid of settings
(``tests/pools/plan/test_equal_to_stock.py``), by letting them allocate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sglang_mi300a.model_dims import ModelDims
from sglang_mi300a.pools.byte_text import GIB

Strategy = Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"]
"""How the prefix cache keeps states beside the running ones (``--mamba-radix-cache-strategy``)."""

_STRATEGIES: tuple[Strategy, ...] = ("no_buffer", "extra_buffer", "extra_buffer_lazy")

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOAT32_BYTES = 4
_INDEX_BYTES = 4  # of a KV location
_LONG_BYTES = 8

AITER_FRACTION = 0.85
"""What stock multiplies ``--mem-fraction-static`` by, a user's value too, with AITER attention
and a context of more than :data:`AITER_CONTEXT_TOKENS`."""
AITER_CONTEXT_TOKENS = 8192


@dataclass(frozen=True)
class Scheduler:
    """What of SGLang's scheduling decides how many states a request needs.

    Attributes:
        overlap: Overlap scheduling is on.
        strategy: The prefix cache's, resolved.
        radix_cache: The prefix cache is on.
        skip_decode_lock: ``SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK``.
    """

    overlap: bool
    strategy: Strategy = "extra_buffer"
    radix_cache: bool = True
    skip_decode_lock: bool = False

    @property
    def has_extra_buffer(self) -> bool:
        """Whether running requests keep states to take snapshots in."""
        return self.radix_cache and self.strategy != "no_buffer"

    @property
    def slots_per_request(self) -> int:
        """State slots that stock's rule wants for each running request.

        One runs, one or two take snapshots, one is the locked prefix, one is headroom.
        """
        if not self.radix_cache:
            return 1
        base = 2 if self.skip_decode_lock else 3
        if not self.has_extra_buffer:
            return 3
        if not self.overlap:
            return base + 1
        return base + (1 if self.strategy == "extra_buffer_lazy" else 2)


def resolved_strategy(
    asked: str, *, overlap: bool, page_tokens: int, triton: bool = True
) -> tuple[Strategy, bool]:
    """Return what stock makes of ``--mamba-radix-cache-strategy``, and whether overlap stays on.

    Args:
        asked: The flag; ``auto`` lets stock decide.
        overlap: Overlap scheduling is asked for.
        page_tokens: Tokens a page.
        triton: The linear-attention backend is triton.
    """
    for strategy in _STRATEGIES:
        if asked == strategy:
            return strategy, overlap
    if triton and (overlap or page_tokens > 1):
        return "extra_buffer", overlap
    return "no_buffer", False


@dataclass(frozen=True)
class RankSizes:
    """Bytes of one rank's tensors, one method a tensor or pool.

    Attributes:
        dims: The model.
        tp: Tensor-parallel ranks; they divide heads of linear attention.
        state_dtype: Of the recurrent state (``--mamba-ssm-dtype``).
        conv_dtype: Of the convolution's window and of the replay record.
        kv_dtype_bytes: Bytes of a KV element.
    """

    dims: ModelDims
    tp: int
    state_dtype: str = "float32"
    conv_dtype: str = "bfloat16"
    kv_dtype_bytes: int = 2

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        d = self.dims
        keys = d.linear_num_key_heads * d.linear_key_head_dim
        return (2 * keys + d.linear_num_value_heads * d.linear_value_head_dim) // self.tp

    @property
    def state_bytes(self) -> int:
        """One state slot: recurrent state and convolution window of every linear layer."""
        d = self.dims
        window = self.conv_channels * (d.linear_conv_kernel_dim - 1)
        return d.num_linear_layers * (
            window * DTYPE_BYTES[self.conv_dtype] + self._recurrent * DTYPE_BYTES[self.state_dtype]
        )

    @property
    def _recurrent(self) -> int:
        d = self.dims
        heads = d.linear_num_value_heads // self.tp
        return heads * d.linear_value_head_dim * d.linear_key_head_dim

    def replay_bytes(self, draft_tokens: int) -> int:
        """Return the replay record of one state slot: raw keys and values, gates.

        Args:
            draft_tokens: Tokens a verify step checks.
        """
        d = self.dims
        value_heads, key_heads = (
            d.linear_num_value_heads // self.tp,
            d.linear_num_key_heads // self.tp,
        )
        values, keys = value_heads * d.linear_value_head_dim, key_heads * d.linear_key_head_dim
        gates = 2 * value_heads * _FLOAT32_BYTES
        a_token = (values + keys) * DTYPE_BYTES[self.conv_dtype] + gates
        return d.num_linear_layers * draft_tokens * a_token

    def slot_bytes(self, draft_tokens: int, *, replay: bool) -> int:
        """Return what one more state slot costs.

        Args:
            draft_tokens: Tokens a verify step checks; 0 without MTP.
            replay: ``--enable-linear-replayssm-spec``.
        """
        return self.state_bytes + (self.replay_bytes(draft_tokens) if replay else 0)

    def state_pool_bytes(self, slots: int, draft_tokens: int, *, replay: bool) -> int:
        """Return the pool of ``slots`` states; stock adds one for padded rows."""
        return (slots + 1) * self.slot_bytes(draft_tokens, replay=replay)

    def verify_scratch_bytes(
        self, requests: int, draft_tokens: int, *, replay: bool, shared_windows: bool = True
    ) -> int:
        """Return what verification keeps beside the states until a step is accepted.

        Args:
            requests: ``--max-running-requests``; stock adds one for padded rows.
            draft_tokens: Tokens a verify step checks; 0 without MTP.
            replay: With it no intermediate state is kept, only convolution windows.
            shared_windows: Windows of one request overlap in memory, as on an accelerator.
        """
        if not draft_tokens:
            return 0
        d = self.dims
        kernel = d.linear_conv_kernel_dim
        columns = draft_tokens + kernel - 2 if shared_windows else draft_tokens * (kernel - 1)
        windows = self.conv_channels * columns * DTYPE_BYTES[self.conv_dtype]
        states = 0 if replay else draft_tokens * self._recurrent * DTYPE_BYTES[self.state_dtype]
        return (requests + 1) * d.num_linear_layers * (windows + states)

    @property
    def kv_layer_bytes(self) -> int:
        """KV of one token in one layer; ranks beyond the KV heads each keep one."""
        heads = max(1, self.dims.num_key_value_heads // self.tp)
        return heads * 2 * self.dims.head_dim * self.kv_dtype_bytes

    @property
    def kv_token_bytes(self) -> int:
        """KV of one token of the target."""
        return self.dims.num_attention_layers * self.kv_layer_bytes

    @property
    def draft_kv_token_bytes(self) -> int:
        """KV of one token of the draft."""
        return self.dims.num_draft_layers * self.kv_layer_bytes

    def budget_token_bytes(self, *, with_draft: bool) -> int:
        """Return what stock's budget charges for a token.

        With a draft it is both models' KV, but only where the draft's path is given.
        """
        return self.kv_token_bytes + (self.draft_kv_token_bytes if with_draft else 0)

    def kv_pool_bytes(self, tokens: int, page_tokens: int) -> int:
        """Return the target's KV pool; stock adds one page for padded rows."""
        return (tokens + page_tokens) * self.kv_token_bytes

    def draft_kv_pool_bytes(self, tokens: int, page_tokens: int) -> int:
        """Return the draft's KV pool, of as many tokens as the target's."""
        return (tokens + page_tokens) * self.draft_kv_token_bytes


def request_table_bytes(
    requests: int,
    context_tokens: int,
    scheduler: Scheduler,
    *,
    draft_tokens: int,
    draft_steps: int,
    page_tokens: int,
) -> int:
    """Return the tables from requests to KV locations and state slots.

    Args:
        requests: ``--max-running-requests``; stock adds one for padded rows.
        context_tokens: Longest context.
        scheduler: Scheduling.
        draft_tokens: Tokens a verify step checks; 0 without MTP.
        draft_steps: Steps of a chain of drafts.
        page_tokens: Tokens a page.
    """
    row = context_tokens + _spare_tokens(draft_tokens, draft_steps, page_tokens)
    per_request = row * _INDEX_BYTES + _INDEX_BYTES
    if scheduler.has_extra_buffer:
        per_request += (2 if scheduler.overlap else 1) * _LONG_BYTES
    return (requests + 1) * per_request


def _spare_tokens(draft_tokens: int, draft_steps: int, page_tokens: int) -> int:
    """Return what stock adds to a row for tokens that a step allocates and may not keep."""
    spare = 4 + draft_tokens
    if draft_tokens and page_tokens > 1:
        spare = max(spare, 2 * max(draft_steps, draft_tokens) + page_tokens - 1)
    return spare


def admitted_requests(asked: int, kv_tokens: int, slots: int, scheduler: Scheduler) -> int:
    """Return how many requests stock lets run at once."""
    return min(asked, kv_tokens // 2, slots // scheduler.slots_per_request)


def effective_fraction(passed: float, *, aiter: bool, context_tokens: int) -> float:
    """Return what stock makes of ``--mem-fraction-static``."""
    scaled = aiter and context_tokens > AITER_CONTEXT_TOKENS
    return passed * AITER_FRACTION if scaled else passed


def fraction_to_pass(asked: float, *, aiter: bool, context_tokens: int) -> float:
    """Return the ``--mem-fraction-static`` of which stock makes the one asked for."""
    return asked / effective_fraction(1.0, aiter=aiter, context_tokens=context_tokens)


def default_chunk_tokens(memory_bytes: int) -> int:
    """Return stock's ``--chunked-prefill-size`` for a device of this much memory."""
    memory_gib = memory_bytes / GIB
    for below_gib, tokens in ((35, 2048), (60, 4096), (160, 8192)):
        if memory_gib < below_gib:
            return tokens
    return 16384


def budget_state_bytes(
    sizes: RankSizes, slots: int, requests: int, draft_tokens: int, *, replay: bool
) -> int:
    """Return what stock's budget charges for states, where the number of slots is given.

    It charges whole states, windows included, for the scratch of verification.

    Args:
        sizes: The rank's sizes.
        slots: ``--max-mamba-cache-size``.
        requests: Requests that may run.
        draft_tokens: Tokens a verify step checks; 0 without MTP.
        replay: ``--enable-linear-replayssm-spec``.
    """
    scratch = 0 if replay else (requests + 1) * draft_tokens * sizes.state_bytes
    return sizes.state_pool_bytes(slots, draft_tokens, replay=replay) + scratch
