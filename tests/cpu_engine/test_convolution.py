"""The short convolution against explicit sums, its state against the list of inputs seen."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sglang_mi300a.cpu_engine.operators import convolution

# Sums of at most five float32 products of numbers around 1.
TOLERANCE = 1e-5

CHANNELS, WIDTH = 5, 4
HISTORY = WIDTH - 1


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _silu(value: float) -> float:
    return value / (1 + math.exp(-value))


def _step(
    window: list[list[float]], weight: torch.Tensor, bias: torch.Tensor | None
) -> list[float]:
    """Return one token's output; ``window`` is the last ``WIDTH`` inputs, oldest first."""
    return [
        _silu(
            sum(float(weight[c, j]) * window[j][c] for j in range(WIDTH))
            + (float(bias[c]) if bias is not None else 0.0)
        )
        for c in range(CHANNELS)
    ]


def _one_by_one(
    tokens: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return outputs ``[channels, tokens]`` and the state after each token."""
    seen = state.T.tolist()
    outputs, states = [], []
    for token in tokens.T.tolist():
        seen.append(token)
        outputs.append(_step(seen[-WIDTH:], weight, bias))
        states.append(torch.tensor(seen[-HISTORY:]).T)
    return torch.tensor(outputs).reshape(-1, CHANNELS).T, states


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("lengths", [[1], [2, 1, 3], [7], [5, 9]])
def test_sequences_start_from_zeros_or_go_on_from_their_state(
    lengths: list[int], with_bias: bool
) -> None:
    batch = len(lengths)
    weight, bias = _random(CHANNELS, WIDTH), _random(CHANNELS, seed=1) if with_bias else None
    states = _random(batch + 2, CHANNELS, HISTORY, seed=2)
    x = _random(sum(lengths), CHANNELS, seed=3).T  # token-major memory, as in the model
    starts = torch.tensor([0, *lengths]).cumsum(0)
    lines = [batch + 1 - i for i in range(batch)]
    goes_on = [i % 2 == 0 for i in range(batch)]
    before, after = states.clone(), states.clone()
    got = convolution.causal_conv1d_fn_cpu(
        x,
        weight,
        bias,
        activation="silu",
        conv_states=after,
        has_initial_state=torch.tensor(goes_on),
        cache_indices=torch.tensor(lines, dtype=torch.int32),
        query_start_loc=starts.int(),
        seq_lens_cpu=lengths,
    )
    assert got.stride() == x.stride()
    for i, line in enumerate(lines):
        rows = slice(int(starts[i]), int(starts[i + 1]))
        start = before[line] if goes_on[i] else torch.zeros(CHANNELS, HISTORY)
        outputs, seen = _one_by_one(x[:, rows], start, weight, bias)
        torch.testing.assert_close(got[:, rows], outputs, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(after[line], seen[-1], atol=0, rtol=0)
    assert torch.equal(after[0], before[0])  # nobody's line


def test_a_prompt_in_two_parts_gives_what_it_gives_at_once() -> None:
    weight, x = _random(CHANNELS, WIDTH), _random(9, CHANNELS, seed=1).T
    whole, parts = torch.zeros(1, CHANNELS, HISTORY), torch.zeros(1, CHANNELS, HISTORY)

    def run(part: torch.Tensor, states: torch.Tensor, goes_on: bool) -> torch.Tensor:
        return convolution.causal_conv1d_fn_cpu(
            part,
            weight,
            None,
            conv_states=states,
            has_initial_state=torch.tensor([goes_on]),
            cache_indices=torch.tensor([0]),
            query_start_loc=torch.tensor([0, part.shape[1]]),
        )

    at_once = run(x, whole, False)
    in_two = torch.cat([run(x[:, :2], parts, False), run(x[:, 2:], parts, True)], dim=1)
    torch.testing.assert_close(at_once, in_two, atol=TOLERANCE, rtol=0)
    assert torch.equal(whole, parts)  # a state holds inputs, and those are copied


def test_padding_and_empty_sequences_leave_every_state_alone() -> None:
    weight, states = _random(CHANNELS, WIDTH), _random(2, CHANNELS, HISTORY, seed=1)
    before = states.clone()
    x = _random(3, CHANNELS, seed=2).T
    got = convolution.causal_conv1d_fn_cpu(
        x,
        weight,
        None,
        conv_states=states,
        has_initial_state=torch.tensor([True, True]),
        cache_indices=torch.tensor([-1, 1]),
        query_start_loc=torch.tensor([0, 3, 3]),
    )
    assert not got.any()
    assert torch.equal(states, before)


def test_a_sequence_without_state_keeps_none() -> None:
    weight, x = _random(CHANNELS, WIDTH), _random(4, CHANNELS, seed=1).T
    got = convolution.causal_conv1d_fn_cpu(x, weight, None)
    outputs, _ = _one_by_one(x, torch.zeros(CHANNELS, HISTORY), weight, None)
    torch.testing.assert_close(got, outputs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("with_bias", [False, True])
def test_decoding_one_token_moves_each_row_s_state_on(with_bias: bool) -> None:
    weight, bias = _random(CHANNELS, WIDTH), _random(CHANNELS, seed=1) if with_bias else None
    states, x = _random(4, CHANNELS, HISTORY, seed=2), _random(3, CHANNELS, seed=3)
    before = states.clone()
    got = convolution.causal_conv1d_update_cpu(
        x, states, weight, bias, "silu", conv_state_indices=torch.tensor([2, -1, 0])
    )
    assert got.shape == x.shape
    for row, line in ((0, 2), (2, 0)):
        outputs, seen = _one_by_one(x[row, :, None], before[line], weight, bias)
        torch.testing.assert_close(got[row], outputs[:, 0], atol=TOLERANCE, rtol=0)
        assert torch.equal(states[line], seen[-1])
    assert not got[1].any()
    assert torch.equal(states[1], before[1])
    assert torch.equal(states[3], before[3])


def test_without_activation_the_sum_comes_out() -> None:
    weight, states = torch.ones(CHANNELS, WIDTH), torch.ones(1, CHANNELS, HISTORY)
    got = convolution.causal_conv1d_update_cpu(torch.ones(1, CHANNELS), states, weight)
    assert torch.equal(got, torch.full((1, CHANNELS), 4.0))


@pytest.mark.parametrize("num_tokens", [1, 2, 4, 6])
def test_verifying_a_chain_keeps_the_state_after_each_token(num_tokens: int) -> None:
    weight, states = _random(CHANNELS, WIDTH), _random(3, CHANNELS, HISTORY, seed=1)
    before = states.clone()
    x = _random(2, num_tokens, CHANNELS, seed=2).transpose(1, 2)  # token-major, as in the model
    kept = torch.zeros(4, num_tokens + 1, CHANNELS, HISTORY)
    got = convolution.causal_conv1d_update_cpu(
        x,
        states,
        weight,
        None,
        "silu",
        conv_state_indices=torch.tensor([2, 0]),
        intermediate_conv_window=kept,
        intermediate_state_indices=torch.tensor([1, 3]),
    )
    assert got.stride() == x.stride()
    assert torch.equal(states, before)
    for row, (line, entry) in enumerate(((2, 1), (0, 3))):
        outputs, seen = _one_by_one(x[row], before[line], weight, None)
        torch.testing.assert_close(got[row], outputs, atol=TOLERANCE, rtol=0)
        assert torch.equal(kept[entry, :num_tokens], torch.stack(seen))
        assert not kept[entry, num_tokens].any()
    assert not kept[0].any()
    assert not kept[2].any()


#      0          parent of each token; links as the tree builder writes them
#     / \
#    1   2
#   / \   \
#  3   4   5
TREE = [-1, 0, 0, 1, 1, 2]
NEXT_TOKEN = [1, 3, 5, -1, -1, -1]
NEXT_SIBLING = [-1, 2, -1, 4, -1, -1]


def test_parents_are_read_off_the_links() -> None:
    assert convolution.tree_parents(NEXT_TOKEN, NEXT_SIBLING) == TREE
    assert convolution.tree_parents([1, 2, -1], [-1, -1, -1]) == [-1, 0, 1]
    assert convolution.tree_parents([-1], [-1]) == [-1]


def test_verifying_a_tree_convolves_each_token_with_its_ancestors() -> None:
    weight, states = _random(CHANNELS, WIDTH), _random(1, CHANNELS, HISTORY, seed=1)
    x = _random(1, 6, CHANNELS, seed=2).transpose(1, 2)
    kept, parents = torch.zeros(1, 6, CHANNELS, HISTORY), torch.full((1, 6), 9)
    got = convolution.causal_conv1d_update_cpu(
        x,
        states,
        weight,
        None,
        True,
        intermediate_conv_window=kept,
        intermediate_state_indices=torch.tensor([0]),
        retrieve_next_token=torch.tensor([NEXT_TOKEN]),
        retrieve_next_sibling=torch.tensor([NEXT_SIBLING]),
        retrieve_parent_token=parents,
    )
    assert parents.tolist() == [[max(parent, 0) for parent in TREE]]
    for token in range(6):
        path, node = [], token
        while node != -1:
            path.append(node)
            node = TREE[node]
        outputs, seen = _one_by_one(x[0][:, path[::-1]], states[0], weight, None)
        torch.testing.assert_close(got[0, :, token], outputs[:, -1], atol=TOLERANCE, rtol=0)
        assert torch.equal(kept[0, token], seen[-1])


def test_a_bfloat16_state_is_rounded_and_read_back() -> None:
    weight = _random(CHANNELS, WIDTH)
    states = torch.zeros(1, CHANNELS, HISTORY, dtype=torch.bfloat16)
    x = _random(1, CHANNELS, seed=1)
    convolution.causal_conv1d_update_cpu(x, states, weight)
    assert torch.equal(states[0, :, -1], x[0].bfloat16())


@pytest.mark.parametrize(
    "asked", [{"cache_seqlens": torch.zeros(1)}, {"num_accept_tokens": torch.ones(1)}]
)
def test_circular_states_are_refused_by_name(asked: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="causal_conv1d_update_cpu"):
        convolution.causal_conv1d_update_cpu(
            torch.ones(1, 2), torch.ones(1, 2, 3), torch.ones(2, 4), **asked
        )


def test_a_state_of_another_width_is_refused_with_both_widths() -> None:
    with pytest.raises(ValueError, match="holds 5 inputs, the kernel needs 3"):
        convolution.causal_conv1d_update_cpu(
            torch.ones(1, 2), torch.ones(1, 2, 5), torch.ones(2, 4)
        )


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="'gelu'"):
        convolution.causal_conv1d_fn_cpu(torch.ones(2, 1), torch.ones(2, 4), None, "gelu")
