"""The short causal convolution in front of a linear-attention layer, and its state.

State is the last ``width - 1`` inputs of a request, ``[lines, channels, width - 1]``, oldest
first. Line :data:`PAD_LINE` marks rows of a batch that are padding: they are not computed and no
state is touched for them.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.nn import functional

PAD_LINE = -1


def causal_conv1d_fn_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None = "silu",
    conv_states: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    seq_lens_cpu: list[int] | None = None,
    pad_slot_id: int = PAD_LINE,
) -> torch.Tensor:
    """Return the convolution of several sequences' new tokens, and move their states on.

    Args:
        x: ``[channels, tokens]``, sequence after sequence.
        weight: ``[channels, width]``; the last column meets the newest input.
        bias: ``[channels]`` or None.
        activation: ``"silu"``, ``"swish"`` or None.
        conv_states: ``[lines, channels, width - 1]``, updated in place; None: no state.
        has_initial_state: ``[batch]``, whether a sequence goes on from its state; else from zeros.
        cache_indices: ``[batch]``, each sequence's line; None: line i for sequence i.
        query_start_loc: ``[batch + 1]``, where each sequence begins and ends; None: all of ``x``.
        seq_lens_cpu: Their lengths; not needed beside ``query_start_loc``.
        pad_slot_id: Line of padding.

    Returns:
        The shape, dtype and memory layout of ``x``; 0 where ``x`` was padding.
    """
    history = weight.shape[1] - 1
    out = torch.zeros_like(x)
    bounds = [0, x.shape[1]] if query_start_loc is None else query_start_loc.tolist()
    for i, (first, last) in enumerate(pairwise(bounds)):
        line = i if cache_indices is None else int(cache_indices[i])
        if line == pad_slot_id or first == last:
            continue
        before = x.new_zeros(x.shape[0], history).float()
        if conv_states is not None and has_initial_state is not None and has_initial_state[i]:
            before = _state(conv_states, line, history)
        inputs = torch.cat([before, x[:, first:last].float()], dim=1)
        windows = inputs.unfold(1, history + 1, 1)
        out[:, first:last] = _weigh(windows, weight, bias, activation).to(x.dtype)
        if conv_states is not None:
            conv_states[line] = inputs[:, inputs.shape[1] - history :].to(conv_states.dtype)
    return out


def causal_conv1d_update_cpu(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = None,
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accept_tokens: torch.Tensor | None = None,
    intermediate_conv_window: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    retrieve_next_token: torch.Tensor | None = None,
    retrieve_next_sibling: torch.Tensor | None = None,
    retrieve_parent_token: torch.Tensor | None = None,
    pad_slot_id: int = PAD_LINE,
) -> torch.Tensor:
    """Return the convolution of one token a row, or of a block of drafted tokens a row.

    A plain call moves the state on. A call with ``intermediate_conv_window`` verifies drafts: the
    state is left alone and the state after each token is written there, so that the caller can
    commit the one behind the last accepted token.

    Args:
        x: ``[batch, channels]`` or ``[batch, channels, tokens]``.
        conv_state: ``[lines, channels, width - 1]``.
        weight: ``[channels, width]``.
        bias: ``[channels]`` or None.
        activation: ``"silu"``, ``"swish"`` or True; None or False for none.
        cache_seqlens: Must be None (circular states are not covered).
        conv_state_indices: ``[batch]``, each row's line; None: line i for row i.
        num_accept_tokens: Must be None.
        intermediate_conv_window: ``[entries, tokens, channels, width - 1]``, written.
        intermediate_state_indices: ``[batch]``, each row's entry there.
        retrieve_next_token: ``[batch, tokens]``, first child of each drafted token, or -1; None
            where the tokens are a chain.
        retrieve_next_sibling: ``[batch, tokens]``, next child of the same parent, or -1.
        retrieve_parent_token: ``[batch, tokens]``, written with each token's parent (0 for the
            root).
        pad_slot_id: Line of padding.

    Returns:
        The shape, dtype and memory layout of ``x``; 0 where ``x`` was padding.
    """
    if cache_seqlens is not None or num_accept_tokens is not None:
        raise NotImplementedError(
            "sgl_kernel stand-in: causal_conv1d_update_cpu with a circular state; covered are "
            "plain states and drafted blocks with intermediate_conv_window"
        )
    blocks = x.unsqueeze(-1) if x.dim() == 2 else x
    batch, _, num_tokens = blocks.shape
    history = weight.shape[1] - 1
    lines = range(batch) if conv_state_indices is None else conv_state_indices.tolist()
    out = torch.zeros_like(blocks)
    for i, line in enumerate(lines):
        if line == pad_slot_id:
            continue
        parents = [token - 1 for token in range(num_tokens)]
        if retrieve_next_token is not None and retrieve_next_sibling is not None:
            parents = tree_parents(
                retrieve_next_token[i].tolist(), retrieve_next_sibling[i].tolist()
            )
            if retrieve_parent_token is not None:
                written = torch.tensor([max(parent, 0) for parent in parents])
                retrieve_parent_token[i] = written.to(retrieve_parent_token.dtype)
        inputs = torch.cat([_state(conv_state, line, history), blocks[i].float()], dim=1)
        windows = inputs[:, _lineages(parents, history)]
        out[i] = _weigh(windows, weight, bias, activation).to(x.dtype)
        if intermediate_conv_window is None:
            conv_state[line] = inputs[:, num_tokens:].to(conv_state.dtype)
        else:
            entry = i if intermediate_state_indices is None else int(intermediate_state_indices[i])
            after_each = windows[:, :, 1:].transpose(0, 1)
            intermediate_conv_window[entry, :num_tokens] = after_each.to(
                intermediate_conv_window.dtype
            )
    return out.squeeze(-1) if x.dim() == 2 else out


def tree_parents(next_token: list[int], next_sibling: list[int]) -> list[int]:
    """Return each drafted token's parent; -1 for the root and for tokens that hang nowhere.

    Args:
        next_token: First child of each token, or -1.
        next_sibling: Next child of the same parent, or -1.
    """
    parents = [-1] * len(next_token)
    for parent, child in enumerate(next_token):
        while child != -1:
            parents[child] = parent
            child = next_sibling[child]
    return parents


def _lineages(parents: list[int], history: int) -> torch.Tensor:
    """Return ``[tokens, history + 1]``: columns of each token's window, oldest first.

    Columns count from the oldest input of the state; token i is column ``history + i``.
    """
    rows = []
    for token in range(len(parents)):
        window, node = [history + token], parents[token]
        while len(window) <= history and node >= 0:
            window.append(history + node)
            node = parents[node]
        missing = history + 1 - len(window)
        window.extend(history - 1 - older for older in range(missing))
        rows.append(window[::-1])
    return torch.tensor(rows, dtype=torch.long)


def _state(conv_states: torch.Tensor, line: int, history: int) -> torch.Tensor:
    if conv_states.shape[-1] != history:
        raise ValueError(
            f"convolution state holds {conv_states.shape[-1]} inputs, the kernel needs {history}"
        )
    return conv_states[line].float()


def _weigh(
    windows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | bool | None,
) -> torch.Tensor:
    """Return ``[channels, tokens]`` float32 for windows ``[channels, tokens, width]``."""
    summed = (windows * weight.float().unsqueeze(1)).sum(dim=-1)
    if bias is not None:
        summed = summed + bias.float().unsqueeze(1)
    if activation in (True, "silu", "swish"):
        return functional.silu(summed)
    if activation in (None, False):
        return summed
    raise ValueError(f"convolution activation {activation!r}; covered are silu, swish and none")
