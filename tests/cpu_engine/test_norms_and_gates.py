"""Norms, gates and the projection split against plain loops in float64."""

from __future__ import annotations

import math

import pytest
import torch

from sglang_mi300a.cpu_engine.operators import gating, norms, projections

# float32 results of a few hundred float32 operations against float64: a few units in the last
# place of values around 1 to 10.
TOLERANCE = 2e-5

EPS = 1e-6


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _rms(row: list[float]) -> float:
    return math.sqrt(sum(value * value for value in row) / len(row) + EPS)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_gated_norm_divides_by_the_root_mean_square_and_gates_with_silu(rows: int) -> None:
    x, z, weight = _random(rows, 6), _random(rows, 6, seed=1), _random(6, seed=2)
    wanted = [
        [
            value / _rms(row) * w * gate * _sigmoid(gate)
            for value, w, gate in zip(row, weight.tolist(), gates, strict=True)
        ]
        for row, gates in zip(x.tolist(), z.tolist(), strict=True)
    ]
    got = norms.fused_rmsnorm_gated_cpu(x, weight, z, EPS)
    assert got.shape == x.shape
    torch.testing.assert_close(got, torch.tensor(wanted).reshape(rows, 6), atol=TOLERANCE, rtol=0)


def test_the_gated_norm_rounds_once_to_bfloat16() -> None:
    x, z, weight = _random(4, 64), _random(4, 64, seed=1), _random(64, seed=2)
    narrow = [each.bfloat16() for each in (x, weight, z)]
    exact = norms.fused_rmsnorm_gated_cpu(*[each.float() for each in narrow], EPS)
    assert torch.equal(norms.fused_rmsnorm_gated_cpu(*narrow, EPS), exact.bfloat16())


def test_the_gated_norm_refuses_a_gate_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"x is \[2, 6\], z \[1, 6\]"):
        norms.fused_rmsnorm_gated_cpu(torch.ones(2, 6), torch.ones(6), torch.ones(1, 6), EPS)


@pytest.mark.parametrize(("tokens", "q_heads", "k_heads"), [(0, 2, 1), (1, 1, 1), (3, 4, 2)])
def test_query_and_key_heads_are_normed_alone_and_scaled_by_one_plus_weight(
    tokens: int, q_heads: int, k_heads: int
) -> None:
    d = 4
    packed = _random(tokens, (q_heads + k_heads) * d)
    q, k = packed.split([q_heads * d, k_heads * d], dim=-1)  # strided, as in the model
    q_weight, k_weight = _random(d, seed=1), _random(d, seed=2)
    got = norms.fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, EPS, d)
    for normed, source, weight, heads in (
        (got[0], q, q_weight, q_heads),
        (got[1], k, k_weight, k_heads),
    ):
        assert normed.shape == (tokens * heads, d)
        assert normed.is_contiguous()
        for token in range(tokens):
            for head in range(heads):
                row = source[token, head * d : (head + 1) * d].tolist()
                wanted = [
                    v / _rms(row) * (1 + w) for v, w in zip(row, weight.tolist(), strict=True)
                ]
                torch.testing.assert_close(
                    normed[token * heads + head], torch.tensor(wanted), atol=TOLERANCE, rtol=0
                )


@pytest.mark.parametrize(("tokens", "q_heads", "k_heads"), [(0, 2, 1), (1, 1, 1), (3, 4, 2)])
def test_the_gate_is_taken_out_from_between_the_query_heads(
    tokens: int, q_heads: int, k_heads: int
) -> None:
    d = 4
    packed = _random(tokens, (2 * q_heads + k_heads) * d)
    q_gate, k = packed.split([2 * q_heads * d, k_heads * d], dim=-1)
    weights = _random(d, seed=1), _random(d, seed=2)
    q, k_normed, gate = norms.fused_qk_gemma_rmsnorm_with_gate_cpu(
        q_gate, k, *weights, EPS, d, q_heads
    )
    assert q.is_contiguous()
    assert gate.is_contiguous()
    assert gate.shape == q.shape == (tokens * q_heads, d)
    plain_q = torch.cat([q_gate[:, 2 * h * d : (2 * h + 1) * d] for h in range(q_heads)], dim=-1)
    wanted = norms.fused_qk_gemma_rmsnorm_cpu(plain_q, k, *weights, EPS, d)
    assert torch.equal(q, wanted[0])
    assert torch.equal(k_normed, wanted[1])
    for token in range(tokens):
        for head in range(q_heads):
            first = (2 * head + 1) * d
            assert torch.equal(gate[token * q_heads + head], q_gate[token, first : first + d])


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_attention_output_is_gated_by_a_sigmoid_flat_or_by_head(tokens: int) -> None:
    output, gate = _random(tokens, 8), _random(tokens, 8, seed=1)
    wanted = torch.tensor(
        [
            [o * _sigmoid(g) for o, g in zip(outputs, gates, strict=True)]
            for outputs, gates in zip(output.tolist(), gate.tolist(), strict=True)
        ]
    ).reshape(tokens, 8)
    for shaped in (gate, gate.view(tokens, 2, 4)):
        before = output.clone()
        got = gating.fused_sigmoid_mul_cpu(output, shaped)
        torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=0)
        assert torch.equal(output, before)


def test_gating_in_place_overwrites_and_returns_the_same_tensor() -> None:
    output, gate = _random(2, 8), _random(2, 8, seed=1)
    wanted = gating.fused_sigmoid_mul_cpu(output, gate)
    assert gating.fused_sigmoid_mul_cpu(output, gate, inplace=True) is output
    assert torch.equal(output, wanted)


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_the_shared_expert_is_added_times_its_gate(tokens: int) -> None:
    hidden, weight = _random(tokens, 5), _random(5, seed=1)
    shared, final = _random(tokens, 5, seed=2), _random(tokens, 5, seed=3)
    wanted = final.double().clone()
    for token in range(tokens):
        logit = sum(h * w for h, w in zip(hidden[token].tolist(), weight.tolist(), strict=True))
        for i in range(5):
            wanted[token, i] += _sigmoid(logit) * float(shared[token, i])
    gating.add_gated_shared_expert(hidden, weight, shared, final)
    torch.testing.assert_close(final.double(), wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("tokens", [0, 1, 4])
def test_decay_and_step_follow_softplus_and_sigmoid(tokens: int) -> None:
    rate, bias = _random(3), _random(3, seed=1)
    # 25 is above the threshold at which softplus is the identity.
    a = _random(tokens, 3, seed=2) + torch.tensor([0.0, 25.0, -25.0])
    b = _random(tokens, 3, seed=3)
    g, beta = gating.fused_gdn_gating_cpu(rate, a, b, bias)
    assert g.shape == beta.shape == (1, tokens, 3)
    assert g.dtype == beta.dtype == torch.float32
    for token in range(tokens):
        for head in range(3):
            softplus = math.log1p(math.exp(float(a[token, head]) + float(bias[head])))
            wanted = -math.exp(float(rate[head])) * softplus
            assert float(g[0, token, head]) == pytest.approx(wanted, rel=1e-5)
            assert float(beta[0, token, head]) == pytest.approx(
                _sigmoid(float(b[token, head])), rel=1e-5
            )


@pytest.mark.parametrize(("tokens", "qk_heads", "v_heads"), [(0, 1, 1), (1, 1, 4), (3, 2, 4)])
def test_the_merged_projection_is_split_in_the_stored_order(
    tokens: int, qk_heads: int, v_heads: int
) -> None:
    d_qk, d_v = 3, 5
    q, k = _random(tokens, qk_heads * d_qk), _random(tokens, qk_heads * d_qk, seed=1)
    v, z = _random(tokens, v_heads * d_v, seed=2), _random(tokens, v_heads * d_v, seed=3)
    b, a = _random(tokens, v_heads, seed=4), _random(tokens, v_heads, seed=5)
    got = projections.fused_qkvzba_split_reshape_cat_contiguous_cpu(
        torch.cat([q, k, v, z], dim=-1), torch.cat([b, a], dim=-1), qk_heads, v_heads, d_qk, d_v
    )
    wanted = (torch.cat([q, k, v], dim=-1), z.view(tokens, v_heads, d_v), b, a)
    for mine, theirs in zip(got, wanted, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.is_contiguous()
