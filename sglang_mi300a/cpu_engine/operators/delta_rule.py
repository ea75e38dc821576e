"""The gated delta rule: prompts in chunks, decoded and drafted tokens step by step.

For each value head, with state S ``[d_v, d_k]``, log decay g, step size beta, unit-length key k,
unit-length query q scaled by ``d_k ** -0.5``:

    S <- exp(g) S;   S <- S + beta (v - S k) k^T;   out = S q

Value head ``h`` uses query and key head ``h // (v_heads // qk_heads)``. States are stored
``[lines, v_heads, d_v, d_k]``; a negative line is padding: it starts from zeros and is not stored.
Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2024), equation 10.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from sglang_mi300a.cpu_engine.operators.gating import log_decay

CHUNK_TOKENS = 64
_NORM_EPSILON = 1e-6


def chunk_gated_delta_rule_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    initial_state_indices: torch.Tensor | None = None,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return outputs, last states and states between chunks of several sequences; store the last.

    Args:
        q: ``[1, tokens, qk_heads, d_k]``, sequence after sequence.
        k: ``[1, tokens, qk_heads, d_k]``.
        v: ``[1, tokens, v_heads, d_v]``.
        g: ``[1, tokens, v_heads]``, log decay, at most 0.
        beta: ``[1, tokens, v_heads]``.
        initial_state: States by line; each sequence's is read and, at its end, overwritten.
        cu_seqlens: ``[batch + 1]``, where each sequence begins and ends.
        initial_state_indices: ``[batch]``, each sequence's line; None: line i for sequence i.
        head_first: Must be False.
        use_qk_l2norm_in_kernel: Whether q and k still have to be brought to unit length.
        scale: Factor on q; None: ``d_k ** -0.5``.

    Returns:
        ``[1, tokens, v_heads, d_v]`` in the dtype of ``q``; last states
        ``[batch, v_heads, d_v, d_k]`` float32; the state at the start of every chunk, in sequence
        order, ``[1, chunks, v_heads, d_v, d_k]`` float32, which the prefix cache takes snapshots
        from.
    """
    if head_first:
        raise NotImplementedError("sgl_kernel stand-in: chunk_gated_delta_rule_cpu, head_first")
    queries, keys = _prepared(q[0], k[0], v.shape[2], use_qk_l2norm_in_kernel, scale)
    values, decays, steps = v[0].float(), g[0].float(), beta[0].float()
    out = torch.zeros_like(values)
    bounds = cu_seqlens.tolist()
    batch = len(bounds) - 1
    lines = list(range(batch)) if initial_state_indices is None else initial_state_indices.tolist()
    last_states = initial_state.new_zeros((batch, *initial_state.shape[1:]), dtype=torch.float32)
    at_chunks: list[torch.Tensor] = []
    for i, (first, last) in enumerate(pairwise(bounds)):
        if lines[i] >= 0:
            last_states[i] = initial_state[lines[i]].float()
        for at in range(first, last, CHUNK_TOKENS):
            chunk = slice(at, min(at + CHUNK_TOKENS, last))
            at_chunks.append(last_states[i].clone())
            out[chunk], last_states[i] = _chunk(
                queries[chunk],
                keys[chunk],
                values[chunk],
                decays[chunk],
                steps[chunk],
                last_states[i],
            )
        if lines[i] >= 0:
            initial_state[lines[i]] = last_states[i].to(initial_state.dtype)
    between = torch.stack(at_chunks) if at_chunks else last_states[:0]
    return out.unsqueeze(0).to(q.dtype), last_states, between.unsqueeze(0)


def _chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one chunk's outputs ``[tokens, heads, d_v]`` and the state behind it.

    Unrolled, the rule adds ``u_t k_t^T`` at token t, where ``u_t`` depends on the earlier ``u`` by
    a unit lower triangular system, solved at once:

        u_t + beta_t sum_{i<t} decay(i..t) (k_t . k_i) u_i = beta_t (v_t - decay(0..t) S k_t)
    """
    q, k, v = (each.transpose(0, 1) for each in (q, k, v))  # [heads, tokens, d]
    decay_to = g.transpose(0, 1).cumsum(dim=1)  # [heads, tokens], log
    tokens = decay_to.shape[1]
    between = decay_to.unsqueeze(2) - decay_to.unsqueeze(1)  # [heads, t, i], log
    not_yet = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    between = between.masked_fill(not_yet, float("-inf")).exp()
    from_state = decay_to.exp().unsqueeze(2)
    step = beta.transpose(0, 1).unsqueeze(2)
    coupling = step * between * (k @ k.transpose(1, 2))
    # Entries on and above the diagonal are not read: the diagonal counts as 1.
    u = torch.linalg.solve_triangular(
        coupling,
        step * (v - from_state * (k @ state.transpose(1, 2))),
        upper=False,
        unitriangular=True,
    )
    out = from_state * (q @ state.transpose(1, 2)) + (between * (q @ k.transpose(1, 2))) @ u
    to_end = (decay_to[:, -1:] - decay_to).exp().unsqueeze(2)
    end_state = decay_to[:, -1].exp()[:, None, None] * state + (to_end * u).transpose(1, 2) @ k
    return out.transpose(0, 1), end_state


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state_source: torch.Tensor,
    initial_state_indices: torch.Tensor,
    cu_seqlens: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = True,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    is_kda: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the outputs of decoded tokens, or of drafted blocks that are being verified.

    Args:
        A_log: ``[v_heads]``, log of the decay rate.
        dt_bias: ``[v_heads]``.
        q: ``[1, tokens, qk_heads, d_k]``, sequence after sequence.
        k: ``[1, tokens, qk_heads, d_k]``.
        v: ``[1, tokens, v_heads, d_v]``.
        a: ``[..., v_heads]``, one row a token: time step before softplus.
        b: ``[..., v_heads]``, one row a token: step size before sigmoid.
        initial_state_source: States by line.
        initial_state_indices: ``[batch]``, each sequence's line.
        cu_seqlens: ``[batch + 1]``, where each sequence begins and ends.
        use_qk_l2norm_in_kernel: Whether q and k still have to be brought to unit length.
        softplus_beta: Slope of the softplus.
        softplus_threshold: Above it softplus is the identity.
        is_kda: Must be False.
        disable_state_update: Whether to leave the states as they are (verification).
        intermediate_states_buffer: ``[entries, steps, v_heads, d_v, d_k]``, written with the state
            after each token; None: not kept.
        intermediate_state_indices: ``[batch]``, each sequence's entry; negative: not kept.
        cache_steps: Steps of the buffer; its shape says it.
        retrieve_parent_token: ``[batch, tokens of a sequence]``, each token's parent in a drafted
            tree; None: a chain.

    Returns:
        ``[1, tokens, v_heads, d_v]`` in the dtype of ``q``.
    """
    if is_kda:
        raise NotImplementedError(
            "sgl_kernel stand-in: fused_sigmoid_gating_delta_rule_update_cpu with is_kda; covered "
            "is one decay a head"
        )
    v_heads = v.shape[2]
    queries, keys = _prepared(q[0], k[0], v_heads, use_qk_l2norm_in_kernel, None)
    values = v[0].float()
    log_decays = log_decay(
        A_log, a.reshape(-1, v_heads), dt_bias, softplus_beta, softplus_threshold
    )
    decays = log_decays.exp()[..., None, None]  # [tokens, v_heads, 1, 1]
    steps = torch.sigmoid(b.reshape(-1, v_heads).float()).unsqueeze(-1)
    out = torch.zeros_like(values)
    bounds = cu_seqlens.tolist()
    for i, (first, last) in enumerate(pairwise(bounds)):
        line = int(initial_state_indices[i])
        state = torch.zeros(v_heads, v.shape[3], k.shape[3])
        if line >= 0:
            state = initial_state_source[line].float()
        after: list[torch.Tensor] = []
        for step, token in enumerate(range(first, last)):
            if retrieve_parent_token is not None and step > 0:
                state = after[int(retrieve_parent_token[i, step])]
            state = decays[token] * state
            miss = values[token] - _times(state, keys[token])
            state = state + (steps[token] * miss).unsqueeze(-1) * keys[token].unsqueeze(-2)
            out[token] = _times(state, queries[token])
            after.append(state)
        if after and line >= 0 and not disable_state_update:
            initial_state_source[line] = state.to(initial_state_source.dtype)
        if after and intermediate_states_buffer is not None:
            entry = i if intermediate_state_indices is None else int(intermediate_state_indices[i])
            if entry >= 0:
                intermediate_states_buffer[entry, : len(after)] = torch.stack(after).to(
                    intermediate_states_buffer.dtype
                )
    return out.unsqueeze(0).to(q.dtype)


def _times(state: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Return ``[heads, d_v]``: each head's state ``[d_v, d_k]`` times its vector ``[d_k]``."""
    return (state * vector.unsqueeze(-2)).sum(dim=-1)


def _prepared(
    q: torch.Tensor, k: torch.Tensor, v_heads: int, normalise: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 q (scaled) and k, one for each value head: ``[tokens, v_heads, d_k]``."""
    repeats = v_heads // q.shape[1]
    wide = [each.float().repeat_interleave(repeats, dim=1) for each in (q, k)]
    if normalise:
        wide = [
            each * torch.rsqrt(each.square().sum(dim=-1, keepdim=True) + _NORM_EPSILON)
            for each in wide
        ]
    return wide[0] * (q.shape[-1] ** -0.5 if scale is None else scale), wide[1]
