"""Speculative decoding: the tree of drafted tokens, its verification, and what is kept of it.

A request's block has ``n`` tokens: token 0 is the last one the target chose, tokens 1 to n - 1 are
drafts. Indices into a block are local (0 to n - 1); ``retrieve_index`` holds global ones (row of
the flattened batch).
"""

from __future__ import annotations

from typing import Any

import torch

FULL_MASK = 0
BLOCK_MASK = 1
"""Values of SGLang's ``TreeMaskMode`` (its names: FULL_MASK, QLEN_ONLY)."""


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Turn the drafter's choices into links, positions and an attention mask.

    Draft i was candidate ``selected_index[i - 1]``. Candidates are numbered level by level, and
    candidate c was proposed by entry ``c // topk`` of ``parent_list``; entry 0 stands for token 0.
    Children of a token are linked in ascending order.

    Args:
        parent_list: ``[batch, entries]``, candidate behind each proposing entry.
        selected_index: ``[batch, n - 1]``, candidates kept, ascending.
        verified_seq_len: ``[batch]``, committed tokens.
        tree_mask: Flat bool, written. ``BLOCK_MASK``: an ``n x n`` matrix a request, row = query.
            ``FULL_MASK``: ``n x (committed + n)`` a request, of which the committed part is left.
        positions: ``[batch * n]``, written: committed tokens plus depth in the tree.
        retrieve_index: ``[batch, n]``, written: row of each token in the flattened batch.
        retrieve_next_token: ``[batch, n]``, written where there is a first child, else left (-1).
        retrieve_next_sibling: ``[batch, n]``, written where there is a next child, else left (-1).
        topk: Branches drafted at a time.
        depth: Most drafts on a path.
        draft_token_num: n.
        tree_mask_mode: ``FULL_MASK`` or ``BLOCK_MASK``.
    """
    if int(tree_mask_mode) not in (FULL_MASK, BLOCK_MASK):
        raise NotImplementedError(
            f"sgl_kernel stand-in: build_tree_kernel_efficient_cpu with tree mask mode "
            f"{int(tree_mask_mode)}; covered are {FULL_MASK} and {BLOCK_MASK}"
        )
    n = draft_token_num
    mask_at = 0
    for i, committed in enumerate(verified_seq_len.tolist()):
        parents = _parents(parent_list[i].tolist(), selected_index[i].tolist(), topk)
        for token in range(n - 1, 0, -1):
            parent = parents[token]
            if parent is not None:
                retrieve_next_sibling[i, token] = retrieve_next_token[i, parent]
                retrieve_next_token[i, parent] = token
        ancestors = [_ancestors(token, parents, depth) for token in range(n)]
        seen = torch.eye(n, dtype=torch.bool)
        for token, path in enumerate(ancestors):
            seen[token, 0] = True
            seen[token, path] = True
        prefix = committed if int(tree_mask_mode) == FULL_MASK else 0
        block = tree_mask[mask_at : mask_at + n * (prefix + n)].view(n, prefix + n)
        block[:, prefix:] = seen.to(tree_mask.dtype)
        mask_at += n * (prefix + n)
        depths = [0, *(1 + len([a for a in path if a]) for path in ancestors[1:])]
        positions[i * n : (i + 1) * n] = torch.tensor(depths) + committed
        retrieve_index[i] = torch.arange(n) + i * n


def _parents(parent_list: list[int], selected: list[int], topk: int) -> list[int | None]:
    """Return each token's parent; None for token 0 and for drafts whose parent was not kept."""
    kept_as = {candidate: token for token, candidate in reversed([*enumerate(selected, start=1)])}
    parents: list[int | None] = [None]
    for candidate in selected:
        entry = candidate // topk
        parents.append(0 if entry == 0 else kept_as.get(parent_list[entry]))
    return parents


def _ancestors(token: int, parents: list[int | None], depth: int) -> list[int]:
    """Return the tokens above ``token``, nearest first."""
    path: list[int] = []
    parent = parents[token]
    while parent is not None and len(path) < depth:
        path.append(parent)
        parent = parents[parent]
    return path


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each request's tree along the target's own choices.

    Args:
        predicts: ``[batch * n]``, written at each accepted row with the target's choice there.
        accept_index: ``[batch, most accepted]``, written from the left with the accepted rows,
            token 0's first; the rest is left (-1).
        accept_token_num: ``[batch]``, written with the number of accepted drafts.
        candidates: ``[batch, n]``, token ids.
        retrive_index: ``[batch, n]``, row of each token in the flattened batch.
        retrive_next_token: ``[batch, n]``, first child or -1.
        retrive_next_sibling: ``[batch, n]``, next child of the same parent or -1.
        target_predict: ``[batch, n]``, the target's choice behind each token.
    """
    choices = target_predict.flatten().tolist()
    for i, ids in enumerate(candidates.tolist()):
        rows = retrive_index[i].tolist()
        first_child, next_child = retrive_next_token[i].tolist(), retrive_next_sibling[i].tolist()
        token, accepted = 0, [rows[0]]
        while len(accepted) < accept_index.shape[1]:
            child = first_child[token]
            while child != -1 and ids[child] != choices[accepted[-1]]:
                child = next_child[child]
            if child == -1:
                break
            token = child
            accepted.append(rows[child])
        for place, row in enumerate(accepted):
            accept_index[i, place] = row
            predicts[row] = choices[row]
        accept_token_num[i] = len(accepted) - 1


def commit_accepted_states(
    mamba_caches: Any,
    state_indices_tensor: torch.Tensor,
    last_correct_step_indices: torch.Tensor,
    mamba_track_indices: torch.Tensor | None,
    mamba_steps_to_track: torch.Tensor | None,
) -> None:
    """Copy each request's state behind its last accepted token to the request's line.

    Args:
        mamba_caches: With ``temporal`` ``[layers, lines, ...]`` and ``intermediate_ssm``
            ``[layers, requests, steps, ...]``; ``conv`` and ``intermediate_conv_window`` are lists
            of such pairs.
        state_indices_tensor: ``[batch]``, lines; negative: none.
        last_correct_step_indices: ``[batch]``, step of the last accepted token; negative: leave
            the line.
        mamba_track_indices: ``[batch]``, further lines (prefix cache), or None.
        mamba_steps_to_track: ``[batch]``, their steps; negative: leave the line.
    """
    pairs = [*zip(mamba_caches.conv, mamba_caches.intermediate_conv_window, strict=True)]
    if mamba_caches.temporal.numel():
        pairs.append((mamba_caches.temporal, mamba_caches.intermediate_ssm))
    for state, by_step in pairs:
        _copy_steps(state, by_step, state_indices_tensor, last_correct_step_indices)
        if mamba_track_indices is not None and mamba_steps_to_track is not None:
            _copy_steps(state, by_step, mamba_track_indices, mamba_steps_to_track)


def _copy_steps(
    state: torch.Tensor, by_step: torch.Tensor, lines: torch.Tensor, steps: torch.Tensor
) -> None:
    kept = torch.nonzero((steps >= 0) & (lines >= 0)).flatten()
    state[:, lines[kept].long()] = by_step[:, kept, steps[kept].long()].to(state.dtype)
