"""Attention over the paged KV cache: prompts and drafted blocks, and one token at a time.

The buffers are ``[slots, kv_heads, head_dim]``; ``req_to_token[request, position]`` is a slot.
Query head ``h`` reads KV head ``h // (q_heads // kv_heads)``.
"""

from __future__ import annotations

import torch


def extend_attention_cpu(
    q_extend: torch.Tensor,
    k_extend: torch.Tensor | None,
    v_extend: torch.Tensor | None,
    o_extend: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
) -> None:
    """Attend from each request's new tokens to its cached prefix and to the new tokens.

    Args:
        q_extend: ``[tokens, q_heads, d]``.
        k_extend: ``[tokens, kv_heads, d]`` in any shape, or None: the new keys are cached already.
        v_extend: ``[tokens, kv_heads, d_v]`` in any shape, or None.
        o_extend: ``[tokens, q_heads, d_v]``, written.
        k_buffer: Cached keys.
        v_buffer: Cached values.
        req_to_token: Slots by request and position.
        req_pool_indices: ``[batch]``.
        seq_lens: ``[batch]``, prefix plus new tokens.
        extend_seq_lens: ``[batch]``, new tokens.
        extend_start_loc: ``[batch]``, where a request's new tokens begin in ``q_extend``.
        max_len_extend: Longest of ``extend_seq_lens``.
        sm_scale: Factor on the logits.
        logit_cap: Logits become ``cap * tanh(logits / cap)``; 0 for none.
        is_cross_attn: Must be False.
        sliding_window_size: Must be 0.
        encoder_lens: Must be None.
        sinks: Must be None.
        tree_mask: For drafted trees: which new token sees which, ``batch`` square matrices one
            behind the other, row = query. None: each sees itself and those before it.
    """
    _refuse_uncovered(
        "extend_attention_cpu", is_cross_attn, sliding_window_size, encoder_lens, sinks
    )
    kv_heads, d = k_buffer.shape[1:]
    mask_at = 0
    for i, request in enumerate(req_pool_indices.tolist()):
        length, new = int(seq_lens[i]), int(extend_seq_lens[i])
        first, prefix = int(extend_start_loc[i]), length - new
        if prefix < 0:
            raise ValueError(f"extend_attention_cpu: request {i} has {new} new of {length} tokens")
        rows = slice(first, first + new)
        slots = req_to_token[request, :length].long()
        keys, values = k_buffer[slots], v_buffer[slots]
        if k_extend is not None and v_extend is not None:
            # Taken from the arguments, not from the cache: the caller may not have stored them.
            keys[prefix:] = k_extend[rows].reshape(new, kv_heads, d).to(keys.dtype)
            values[prefix:] = v_extend[rows].reshape(new, *values.shape[1:]).to(values.dtype)
        visible = torch.ones(new, length, dtype=torch.bool)
        if tree_mask is None:
            visible[:, prefix:] = torch.ones(new, new, dtype=torch.bool).tril()
        else:
            visible[:, prefix:] = tree_mask[mask_at : mask_at + new * new].view(new, new).bool()
            mask_at += new * new
        o_extend[rows] = _attend(q_extend[rows], keys, values, visible, sm_scale, logit_cap).to(
            o_extend.dtype
        )


def decode_attention_cpu(
    query: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    output: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """Store one new token a row in the cache, then attend from it to all of the row's tokens.

    Args:
        query: ``[batch, q_heads, d]``.
        k_buffer: Cached keys; updated at ``loc``.
        v_buffer: Cached values; updated at ``loc``.
        output: ``[batch, q_heads, d_v]``, written.
        key: ``[batch, kv_heads, d]`` in any shape, or None: cached already.
        value: ``[batch, kv_heads, d_v]`` in any shape, or None.
        loc: ``[batch]``, slots of the new tokens.
        attn_logits: Scratch of SGLang's own operator; not used.
        req_to_token: Slots by row and position.
        req_pool_indices: ``[batch]``, rows of ``req_to_token``.
        seq_lens: ``[batch]``, tokens with the new one.
        sm_scale: Factor on the logits.
        logit_cap: Logits become ``cap * tanh(logits / cap)``; 0 for none.
        is_cross_attn: Must be False.
        sliding_window_size: Must be 0.
        encoder_lens: Must be None.
        sinks: Must be None.
    """
    _refuse_uncovered(
        "decode_attention_cpu", is_cross_attn, sliding_window_size, encoder_lens, sinks
    )
    batch = len(query)
    if len(seq_lens) != batch or len(req_pool_indices) != batch:
        raise ValueError(
            f"decode_attention_cpu: {batch} queries, {len(seq_lens)} sequence lengths, "
            f"{len(req_pool_indices)} rows"
        )
    if key is not None and value is not None:
        slots = loc.long()
        k_buffer[slots] = key.reshape(batch, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[slots] = value.reshape(batch, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for i, (row, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        slots = req_to_token[row, :length].long()
        visible = torch.ones(1, length, dtype=torch.bool)
        output[i : i + 1] = _attend(
            query[i : i + 1], k_buffer[slots], v_buffer[slots], visible, sm_scale, logit_cap
        ).to(output.dtype)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
) -> torch.Tensor:
    """Return ``[n, q_heads, d_v]``; q is ``[n, q_heads, d]``, k ``[m, kv_heads, d]``."""
    n, q_heads, d = q.shape
    kv_heads = k.shape[1]
    grouped = q.float().reshape(n, kv_heads, q_heads // kv_heads, d)
    logits = torch.einsum("nkgd,mkd->kgnm", grouped, k.float()) * sm_scale
    if logit_cap > 0:
        logits = logit_cap * torch.tanh(logits / logit_cap)
    weights = logits.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("kgnm,mkd->nkgd", weights, v.float()).reshape(n, q_heads, v.shape[-1])


def _refuse_uncovered(
    operator: str,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    asked = {
        "cross attention": is_cross_attn or encoder_lens is not None,
        "a sliding window": sliding_window_size > 0,
        "attention sinks": sinks is not None,
    }
    for feature, is_asked in asked.items():
        if is_asked:
            raise NotImplementedError(
                f"sgl_kernel stand-in: {operator} with {feature}; covered is full causal or "
                "tree-masked self-attention, which is what Qwen3.5-MoE uses"
            )
