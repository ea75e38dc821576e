"""The torch expert layer against loops in float64."""

import math

import numpy as np
import pytest
import torch

from sglang_mi300a import mxfp4
from sglang_mi300a.moe.reference import dequantise, expert_layer

EXPERTS, HIDDEN, INTER, TOP_K = 5, 64, 32, 3


def weights(seed=0):
    rng = np.random.default_rng(seed)

    def packed(*shape):
        return torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))

    def scale(*shape):
        return torch.from_numpy(rng.integers(120, 126, shape, dtype=np.uint8))

    return {
        "w13": packed(EXPERTS, 2 * INTER, HIDDEN // 2),
        "w13_scale": scale(EXPERTS, 2 * INTER, HIDDEN // 32),
        "w2": packed(EXPERTS, HIDDEN, INTER // 2),
        "w2_scale": scale(EXPERTS, HIDDEN, INTER // 32),
    }


def by_loops(hidden, w, ids, router):
    """The formula of the module, one scalar product at a time, in float64."""
    w13 = mxfp4.dequantise(w["w13"].numpy(), w["w13_scale"].numpy()).astype(np.float64)
    w2 = mxfp4.dequantise(w["w2"].numpy(), w["w2_scale"].numpy()).astype(np.float64)
    x = hidden.double().numpy()
    out = np.zeros_like(x)
    for m in range(len(x)):
        for j in range(ids.shape[1]):
            e = int(ids[m, j])
            if e < 0:
                continue
            inner = []
            for i in range(INTER):
                gate = float(w13[e, i] @ x[m])
                up = float(w13[e, INTER + i] @ x[m])
                inner.append(gate / (1 + math.exp(-gate)) * up)
            out[m] += float(router[m, j]) * (w2[e] @ np.array(inner))
    return out


def inputs(num_tokens, seed=1):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_tokens, HIDDEN, generator=generator) * 0.1
    ids = (
        torch.stack(
            [torch.randperm(EXPERTS, generator=generator)[:TOP_K] for _ in range(num_tokens)]
        )
        if num_tokens
        else torch.zeros(0, TOP_K, dtype=torch.int64)
    )
    router = torch.rand(num_tokens, TOP_K, generator=generator)
    return hidden, ids.to(torch.int32), router


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 17])
def test_the_layer_equals_the_formula(num_tokens):
    w = weights()
    hidden, ids, router = inputs(num_tokens)
    out = expert_layer(hidden, **w, topk_ids=ids, topk_weights=router)
    expected = by_loops(hidden, w, ids, router)
    # float32 sums of at most 64 products: relative error well below 1e-5
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_an_id_of_minus_one_contributes_nothing_and_is_never_an_index():
    w = weights()
    hidden, ids, router = inputs(4)
    ids[1] = -1
    ids[2, 0] = -1
    out = expert_layer(hidden, **w, topk_ids=ids, topk_weights=router)
    assert (out[1] == 0).all()
    np.testing.assert_allclose(out.numpy(), by_loops(hidden, w, ids, router), rtol=1e-4, atol=1e-5)


def test_all_padding_is_fine():
    w = weights()
    hidden, ids, router = inputs(3)
    out = expert_layer(hidden, **w, topk_ids=ids.fill_(-1), topk_weights=router)
    assert (out == 0).all()


def test_an_id_beyond_the_experts_is_refused():
    hidden, ids, router = inputs(2)
    ids[0, 0] = EXPERTS
    with pytest.raises(ValueError, match="expert id 5 of 5"):
        expert_layer(hidden, **weights(), topk_ids=ids, topk_weights=router)


def test_the_sum_over_slots_runs_in_slot_order():
    w = weights()
    hidden, ids, router = inputs(1)
    parts = [
        expert_layer(hidden, **w, topk_ids=ids[:, j : j + 1], topk_weights=router[:, j : j + 1])
        for j in range(TOP_K)
    ]
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part
    assert torch.equal(expert_layer(hidden, **w, topk_ids=ids, topk_weights=router), total)


def test_the_kernels_rounding_of_the_intermediate_can_be_asked_for():
    w = weights()
    hidden, ids, router = inputs(8)
    exact = expert_layer(hidden, **w, topk_ids=ids, topk_weights=router)
    rounded = expert_layer(
        hidden, **w, topk_ids=ids, topk_weights=router, intermediate_dtype=torch.bfloat16
    )
    relative = (rounded - exact).norm() / exact.norm()
    assert 1e-5 < relative < 2**-8  # one bf16 rounding is at most 2^-9 of each element


def test_the_result_is_rounded_once_to_the_dtype_of_the_tokens():
    w = weights()
    hidden, ids, router = inputs(5)
    in_bf16 = expert_layer(hidden.bfloat16(), **w, topk_ids=ids, topk_weights=router)
    in_fp32 = expert_layer(hidden.bfloat16().float(), **w, topk_ids=ids, topk_weights=router)
    assert torch.equal(in_bf16, in_fp32.bfloat16())


def test_torch_and_numpy_dequantise_alike_over_every_byte_and_scale():
    packed = np.tile(np.arange(256, dtype=np.uint8).reshape(16, 16), (253, 1))
    scales = np.repeat(np.arange(253, dtype=np.uint8), 16)[:, None]
    in_torch = dequantise(torch.from_numpy(packed), torch.from_numpy(scales)).numpy()
    assert (in_torch == mxfp4.dequantise(packed, scales)).all()
