"""The delta rule against the recurrence written out token by token in float64."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sglang_mi300a.cpu_engine.operators import delta_rule

Array = NDArray[np.float64]

# Chunks solve a float32 system of up to 64 unknowns; values are around 1.
TOLERANCE = 2e-5


class Inputs(NamedTuple):
    """Random inputs of a batch."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    A_log: torch.Tensor
    dt_bias: torch.Tensor


def _inputs(
    tokens: int, qk_heads: int = 2, v_heads: int = 4, d_k: int = 6, d_v: int = 5, seed: int = 0
) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return Inputs(
        q=normal(1, tokens, qk_heads, d_k),
        k=normal(1, tokens, qk_heads, d_k),
        v=normal(1, tokens, v_heads, d_v),
        a=normal(tokens, v_heads),
        b=normal(tokens, v_heads),
        A_log=normal(v_heads) * 0.5,
        dt_bias=normal(v_heads),
    )


def _g_and_beta(x: Inputs) -> tuple[Array, Array]:
    a, b = x.a.double().numpy(), x.b.double().numpy()
    softplus = np.log1p(np.exp(a + x.dt_bias.double().numpy()))
    return -np.exp(x.A_log.double().numpy()) * softplus, 1 / (1 + np.exp(-b))


def _token(state: Array, x: Inputs, token: int, g: Array, beta: Array) -> tuple[Array, Array]:
    """Return one token's outputs ``[v_heads, d_v]`` and the states behind it."""
    q, k, v = (each[0, token].double().numpy() for each in (x.q, x.k, x.v))
    v_heads, d_v = v.shape
    state, out = state.copy(), np.zeros((v_heads, d_v))
    for head in range(v_heads):
        group = head // (v_heads // len(q))
        unit_q = q[group] / math.sqrt(float(q[group] @ q[group]) + 1e-6)
        unit_k = k[group] / math.sqrt(float(k[group] @ k[group]) + 1e-6)
        state[head] *= math.exp(g[token, head])
        miss = v[head] - state[head] @ unit_k
        state[head] += beta[token, head] * np.outer(miss, unit_k)
        out[head] = state[head] @ unit_q / math.sqrt(len(unit_q))
    return out, state


def _recurrence(x: Inputs, rows: range, state: Array) -> tuple[Array, list[Array]]:
    g, beta = _g_and_beta(x)
    outputs, states = [np.zeros((0, *x.v.shape[2:]))], []
    for token in rows:
        out, state = _token(state, x, token, g, beta)
        outputs.append(out[None])
        states.append(state)
    return np.concatenate(outputs), states


def _states(lines: int, x: Inputs, seed: int = 7) -> torch.Tensor:
    shape = (lines, x.v.shape[2], x.v.shape[3], x.k.shape[3])
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _close(mine: torch.Tensor, theirs: Array) -> None:
    torch.testing.assert_close(mine.double(), torch.from_numpy(theirs), atol=TOLERANCE, rtol=0)


CHUNK = delta_rule.CHUNK_TOKENS


@pytest.mark.parametrize(
    "lengths",
    [[0], [1], [3, 1, 0, 2], [CHUNK - 1, 2], [CHUNK], [CHUNK + 1], [2 * CHUNK + 5, 7]],
    ids=str,
)
@pytest.mark.parametrize(("qk_heads", "v_heads"), [(1, 1), (2, 4), (1, 4)])
def test_chunks_give_what_the_recurrence_gives(
    lengths: list[int], qk_heads: int, v_heads: int
) -> None:
    x = _inputs(sum(lengths), qk_heads, v_heads)
    states = _states(len(lengths) + 2, x)
    before = states.clone()
    lines = [len(lengths) - i for i in range(len(lengths))]
    starts = [0, *np.cumsum(lengths).tolist()]
    g, beta = _g_and_beta(x)
    out, last, between = delta_rule.chunk_gated_delta_rule_cpu(
        q=x.q,
        k=x.k,
        v=x.v,
        g=torch.from_numpy(g).float().unsqueeze(0),
        beta=torch.from_numpy(beta).float().unsqueeze(0),
        initial_state=states,
        initial_state_indices=torch.tensor(lines, dtype=torch.int32),
        cu_seqlens=torch.tensor(starts, dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
    )
    assert out.shape == x.v.shape
    at_chunk = iter(between[0])
    for i, line in enumerate(lines):
        rows = range(starts[i], starts[i + 1])
        outputs, seen = _recurrence(x, rows, before[line].double().numpy())
        for at in range(0, len(rows), CHUNK):
            _close(next(at_chunk), seen[at - 1] if at else before[line].double().numpy())
        _close(out[0, rows.start : rows.stop], outputs)
        end = seen[-1] if seen else before[line].double().numpy()
        _close(last[i], end)
        _close(states[line], end)
    assert next(at_chunk, None) is None
    assert torch.equal(states[0], before[0])
    assert torch.equal(states[-1], before[-1])


def test_strong_decay_over_a_chunk_neither_overflows_nor_leaves_traces() -> None:
    x = _inputs(CHUNK)
    states = _states(1, x)
    before = states[0].double().numpy()
    g = torch.full((1, CHUNK, 4), -30.0)  # exp(30 * 63) is far beyond float32
    beta = torch.ones(1, CHUNK, 4)
    out, _, _ = delta_rule.chunk_gated_delta_rule_cpu(
        x.q, x.k, x.v, g, beta, states, torch.tensor([0, CHUNK]), use_qk_l2norm_in_kernel=True
    )
    state = before
    for token in range(CHUNK):
        outputs, state = _token(state, x, token, g[0].double().numpy(), beta[0].double().numpy())
        _close(out[0, token], outputs)


def test_a_prompt_in_two_parts_gives_what_it_gives_at_once() -> None:
    x = _inputs(100)
    g, beta = (torch.from_numpy(each).float().unsqueeze(0) for each in _g_and_beta(x))

    def run(rows: slice, states: torch.Tensor) -> torch.Tensor:
        part = [each[:, rows] for each in (x.q, x.k, x.v, g, beta)]
        bounds = torch.tensor([0, part[0].shape[1]])
        out, _, _ = delta_rule.chunk_gated_delta_rule_cpu(
            *part, states, bounds, use_qk_l2norm_in_kernel=True
        )
        return out

    whole, parts = torch.zeros_like(_states(1, x)), torch.zeros_like(_states(1, x))
    at_once = run(slice(0, 100), whole)
    in_two = torch.cat([run(slice(0, 37), parts), run(slice(37, 100), parts)], dim=1)
    torch.testing.assert_close(at_once, in_two, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(whole, parts, atol=TOLERANCE, rtol=0)


def test_a_padded_sequence_starts_from_zeros_and_is_not_stored() -> None:
    x = _inputs(3)
    states = _states(2, x)
    before = states.clone()
    g, beta = (torch.from_numpy(each).float().unsqueeze(0) for each in _g_and_beta(x))
    out, _, _ = delta_rule.chunk_gated_delta_rule_cpu(
        x.q,
        x.k,
        x.v,
        g,
        beta,
        states,
        torch.tensor([0, 3]),
        torch.tensor([-1]),
        use_qk_l2norm_in_kernel=True,
    )
    outputs, _ = _recurrence(x, range(3), np.zeros(states.shape[1:]))
    _close(out[0], outputs)
    assert torch.equal(states, before)


def _update(
    x: Inputs, states: torch.Tensor, lines: list[int], starts: list[int], **more: object
) -> torch.Tensor:
    return delta_rule.fused_sigmoid_gating_delta_rule_update_cpu(
        A_log=x.A_log,
        dt_bias=x.dt_bias,
        q=x.q,
        k=x.k,
        v=x.v,
        a=x.a,
        b=x.b,
        initial_state_source=states,
        initial_state_indices=torch.tensor(lines),
        cu_seqlens=torch.tensor(starts),
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("qk_heads", "v_heads"), [(1, 1), (2, 4), (1, 4)])
def test_decoding_moves_each_state_one_token_on(qk_heads: int, v_heads: int) -> None:
    x = _inputs(3, qk_heads, v_heads)
    states = _states(4, x)
    before = states.clone()
    out = _update(x, states, [2, -1, 0], [0, 1, 2, 3])
    assert out.shape == x.v.shape
    for row, line in ((0, 2), (2, 0)):
        outputs, seen = _recurrence(x, range(row, row + 1), before[line].double().numpy())
        _close(out[0, row], outputs[0])
        _close(states[line], seen[-1])
    outputs, _ = _recurrence(x, range(1, 2), np.zeros(states.shape[1:]))
    _close(out[0, 1], outputs[0])
    assert torch.equal(states[1], before[1])
    assert torch.equal(states[3], before[3])


def test_decoding_goes_on_where_the_prompt_s_chunks_ended() -> None:
    x = _inputs(70)
    g, beta = (torch.from_numpy(each).float().unsqueeze(0) for each in _g_and_beta(x))
    states = _states(1, x)
    outputs, _ = _recurrence(x, range(70), states[0].double().numpy())
    delta_rule.chunk_gated_delta_rule_cpu(
        *(each[:, :69] for each in (x.q, x.k, x.v, g, beta)),
        states,
        torch.tensor([0, 69]),
        use_qk_l2norm_in_kernel=True,
    )
    tail = x._replace(**{n: getattr(x, n)[:, 69:] for n in "qkv"}, a=x.a[69:], b=x.b[69:])
    _close(_update(tail, states, [0], [0, 1])[0, 0], outputs[69])


@pytest.mark.parametrize("lengths", [[1], [4, 4], [2, 0, 3]], ids=str)
def test_verifying_keeps_the_state_after_each_token_and_moves_none(lengths: list[int]) -> None:
    x = _inputs(sum(lengths))
    states = _states(len(lengths), x)
    before = states.clone()
    starts = [0, *np.cumsum(lengths).tolist()]
    kept = torch.zeros(len(lengths) + 1, 5, *states.shape[1:])
    out = _update(
        x,
        states,
        list(range(len(lengths))),
        starts,
        disable_state_update=True,
        intermediate_states_buffer=kept,
        intermediate_state_indices=torch.tensor([i + 1 for i in range(len(lengths))]),
        cache_steps=5,
    )
    assert torch.equal(states, before)
    assert not kept[0].any()
    for i, length in enumerate(lengths):
        rows = range(starts[i], starts[i + 1])
        outputs, seen = _recurrence(x, rows, before[i].double().numpy())
        _close(out[0, rows.start : rows.stop], outputs)
        for step, state in enumerate(seen):
            _close(kept[i + 1, step], state)
        assert not kept[i + 1, length:].any()


def test_verifying_a_tree_lets_each_token_go_on_from_its_parent() -> None:
    parents = [0, 0, 0, 1, 1, 2]
    x = _inputs(6)
    states = _states(1, x)
    kept = torch.zeros(1, 6, *states.shape[1:])
    out = _update(
        x,
        states,
        [0],
        [0, 6],
        disable_state_update=True,
        intermediate_states_buffer=kept,
        intermediate_state_indices=torch.tensor([0]),
        retrieve_parent_token=torch.tensor([parents]),
    )
    g, beta = _g_and_beta(x)
    for token in range(6):
        path = [token]
        while path[-1] != 0:
            path.append(parents[path[-1]])
        state = states[0].double().numpy()
        for node in reversed(path):
            outputs, state = _token(state, x, node, g, beta)
        _close(out[0, token], outputs)
        _close(kept[0, token], state)


def test_an_entry_below_zero_is_not_kept() -> None:
    x = _inputs(2)
    kept = torch.zeros(1, 2, *_states(1, x).shape[1:])
    _update(
        x,
        _states(1, x),
        [0],
        [0, 2],
        intermediate_states_buffer=kept,
        intermediate_state_indices=torch.tensor([-1]),
    )
    assert not kept.any()


def test_a_batch_of_nothing_gives_nothing() -> None:
    x = _inputs(0)
    assert _update(x, _states(1, x), [], [0]).shape == (1, 0, 4, 5)


def test_outputs_come_in_the_model_s_dtype_from_float32_states() -> None:
    x = _inputs(2)
    narrow = x._replace(**{name: getattr(x, name).bfloat16() for name in ("q", "k", "v", "a", "b")})
    wide = narrow._replace(**{n: getattr(narrow, n).float() for n in ("q", "k", "v", "a", "b")})
    states, more_states = _states(1, x), _states(1, x)
    out = _update(narrow, states, [0], [0, 2])
    assert torch.equal(out, _update(wide, more_states, [0], [0, 2]).bfloat16())
    assert torch.equal(states, more_states)


def test_other_layouts_are_refused_by_name() -> None:
    x = _inputs(1)
    with pytest.raises(NotImplementedError, match="fused_sigmoid_gating_delta_rule_update_cpu"):
        _update(x, _states(1, x), [0], [0, 1], is_kda=True)
    g, beta = (torch.from_numpy(each).float().unsqueeze(0) for each in _g_and_beta(x))
    with pytest.raises(NotImplementedError, match="chunk_gated_delta_rule_cpu"):
        delta_rule.chunk_gated_delta_rule_cpu(
            x.q, x.k, x.v, g, beta, _states(1, x), torch.tensor([0, 1]), head_first=True
        )
