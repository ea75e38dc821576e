"""Which KV slots a request's tokens occupy: reading, writing and moving them.

``req_to_token`` is ``[requests, pool_len]``: slot of each position of each request. ``pool_len``
is passed along by SGLang because its own operators index flat memory; here the shape says it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor,
    strides: torch.Tensor,
    tgt_loc: torch.Tensor,
    src_loc: torch.Tensor,
) -> None:
    """Copy rows ``src_loc`` to rows ``tgt_loc`` in every buffer, as if all were read first.

    Args:
        data_ptrs: ``[buffers]`` uint64, address of each buffer's row 0.
        strides: ``[buffers]``, bytes a row.
        tgt_loc: ``[rows]``.
        src_loc: ``[rows]``.
    """
    target, source = tgt_loc.numpy(), src_loc.numpy()
    if not len(source):
        return
    num_rows = int(max(target.max(), source.max())) + 1
    for address, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = _bytes_at(address, num_rows * row_bytes).reshape(num_rows, row_bytes)
        rows[target] = rows[source]


def _bytes_at(address: int, num_bytes: int) -> NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Enter newly allocated slots at positions ``start_offset`` to ``end_offset`` of each request.

    Args:
        req_pool_indices: ``[batch]``, rows of ``req_to_token``.
        req_to_token: Updated in place.
        start_offset: ``[batch]``, first position.
        end_offset: ``[batch]``, one past the last.
        out_cache_loc: The slots, request after request.
        pool_len: Width of ``req_to_token``.
    """
    for row, first, last, at in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, first:last] = out_cache_loc[at : at + last - first].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Look up the slots at positions ``start_offset`` to ``end_offset`` of each request.

    Args:
        req_pool_indices: ``[batch]``, rows of ``req_to_token``.
        req_to_token: Read.
        start_offset: ``[batch]``, first position.
        end_offset: ``[batch]``, one past the last.
        out_cache_loc: The slots, request after request; written from its start, the rest is left.
        pool_len: Width of ``req_to_token``.
    """
    for row, first, last, at in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[at : at + last - first] = req_to_token[row, first:last].to(
            out_cache_loc.dtype
        )


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Look up the ``topk * steps`` slots behind each request's committed tokens.

    Args:
        req_pool_indices: ``[batch]``, rows of ``req_to_token``.
        req_to_token: Read.
        seq_lens: ``[batch]``, committed tokens.
        out_cache_loc: ``[batch * topk * steps]``, written.
        pool_len: Width of ``req_to_token``.
        topk: Branches drafted at a time.
        speculative_num_steps: Tokens drafted in a branch.
    """
    assign_extend_cache_locs_cpu(
        req_pool_indices,
        req_to_token,
        seq_lens,
        seq_lens + topk * speculative_num_steps,
        out_cache_loc,
        pool_len,
    )


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """Return a ``req_to_token`` with one row for each branch that is being drafted.

    A branch's row holds its request's committed slots, then the ``num_steps`` slots that the
    branch writes. Valid where a request's draft slots lie behind one another, as SGLang lays them
    out when a page holds one token or one branch is drafted.

    Args:
        req_to_token: Read.
        req_pool_indices: ``[batch]``.
        seq_lens: ``[batch]``, committed tokens.
        topk: Branches of a request.
        num_steps: Tokens of a branch.
        pool_len: Width of ``req_to_token``.

    Returns:
        ``[batch * topk, longest committed + num_steps]``, the dtype of ``req_to_token``; what lies
        behind a row's last draft slot is 0.
    """
    lengths = seq_lens.tolist()
    rows = req_to_token.new_zeros((len(lengths) * topk, max(lengths, default=0) + num_steps))
    for i, (request, length) in enumerate(zip(req_pool_indices.tolist(), lengths, strict=True)):
        for branch in range(topk):
            row, first = rows[i * topk + branch], length + branch * num_steps
            row[:length] = req_to_token[request, :length]
            row[length : length + num_steps] = req_to_token[request, first : first + num_steps]
    return rows


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor,
    out_cache_loc: torch.Tensor,
    accept_out_cache_loc: torch.Tensor,
) -> None:
    """Gather the slots of accepted tokens to the front of ``accept_out_cache_loc``.

    Args:
        accept_index: Indices into ``out_cache_loc``; -1 where nothing was accepted.
        out_cache_loc: Slots of all verified tokens.
        accept_out_cache_loc: Written from its start; the rest is left.
    """
    accepted = accept_index.flatten()
    slots = out_cache_loc[accepted[accepted >= 0].long()]
    accept_out_cache_loc[: len(slots)] = slots.to(accept_out_cache_loc.dtype)


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
) -> None:
    """Write each request's last accepted token, the one that the target itself chose.

    Args:
        accept_tokens: ``[batch * accept_stride]``, each request's accepted tokens at the front of
            its part.
        accept_lens: ``[batch]``, how many, at least 1.
        bonus_tokens: ``[batch]``, written.
        accept_stride: Length of a request's part.
    """
    batch = torch.arange(len(accept_lens), device=accept_lens.device)
    last = batch * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's ids left by one and put its next token at the end.

    Args:
        input_ids: All requests' ids, one behind the other; updated in place.
        extend_start_loc: ``[batch]``, where each request begins.
        extend_seq_lens: ``[batch]``, how many ids it has; 0 leaves it alone.
        topk_index: ``[batch]``, next tokens.
        select_index: ``[batch]``, where else to put the next token, or None.
    """
    starts, lengths = extend_start_loc.tolist(), extend_seq_lens.tolist()
    for i, (first, length) in enumerate(zip(starts, lengths, strict=True)):
        if length == 0:
            continue
        end = first + length
        input_ids[first : end - 1] = input_ids[first + 1 : end].clone()
        at = end - 1 if select_index is None else int(select_index[i])
        input_ids[at] = topk_index.flatten()[i]


def _spans(
    rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
) -> Iterator[tuple[int, int, int, int]]:
    """Yield row, first and last position, and where the span lies in a flat list of all spans."""
    at = 0
    for row, first, last in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield row, first, last, at
        at += last - first
