"""The local experts against one token and one expert at a time in float64."""

from __future__ import annotations

import math

import pytest
import torch

from sglang_mi300a.cpu_engine.operators.experts import local_experts

# Two float32 products of rows of 6 and 4 numbers around 1.
TOLERANCE = 2e-5


@pytest.mark.parametrize("ids", [[], [[0, 1]], [[2, -1], [-1, -1], [1, 0]]], ids=str)
def test_a_token_gets_the_weighted_sum_of_the_experts_that_are_here(ids: list[list[int]]) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, inner, tokens = 6, 4, len(ids)
    x = torch.randn(tokens, hidden, generator=generator)
    w13 = torch.randn(3, 2 * inner, hidden, generator=generator)
    w2 = torch.randn(3, hidden, inner, generator=generator)
    weights = torch.rand(tokens, 2, generator=generator)
    wanted = torch.zeros(tokens, hidden, dtype=torch.float64)
    for token in range(tokens):
        for choice in range(2):
            expert = ids[token][choice]
            if expert < 0:
                continue
            both = w13[expert].double() @ x[token].double()
            gated = [
                float(both[i]) / (1 + math.exp(-float(both[i]))) * float(both[inner + i])
                for i in range(inner)
            ]
            out = w2[expert].double() @ torch.tensor(gated, dtype=torch.float64)
            wanted[token] += float(weights[token, choice]) * out
    got = local_experts(x, w13, w2, weights, torch.tensor(ids, dtype=torch.int32).view(tokens, 2))
    assert got.dtype == x.dtype
    torch.testing.assert_close(got.double(), wanted, atol=TOLERANCE, rtol=0)


def test_the_ranks_parts_add_up_to_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 6, generator=generator)
    w13 = torch.randn(4, 8, 6, generator=generator)
    w2 = torch.randn(4, 6, 4, generator=generator)
    weights = torch.rand(5, 3, generator=generator)
    ids = torch.stack([torch.randperm(4, generator=generator)[:3] for _ in range(5)])
    whole = local_experts(x, w13, w2, weights, ids)
    parts = [
        local_experts(x, w13[first : first + 2], w2[first : first + 2], weights, _local(ids, first))
        for first in (0, 2)
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole, atol=TOLERANCE, rtol=0)


def _local(ids: torch.Tensor, first: int) -> torch.Tensor:
    return torch.where((ids >= first) & (ids < first + 2), ids - first, -1)
