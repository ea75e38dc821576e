"""What rides on the first rung beside MXFP4 experts: the shared expert, and a draft's bf16 ones."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sglang_mi300a.moe import on_rung, selftest
from sglang_mi300a.moe.hip_rung import HipRung
from sglang_mi300a.moe.on_rung import OnRung
from sglang_mi300a.moe.rungs import ExpertSizes
from sglang_mi300a.moe.torch_rung import TorchRung
from tests.gfx942 import room
from tests.moe.kernels import running
from tests.moe.kernels.test_hip_rung import CPU, EXPERTS, INNER, SIZES, TOP_K, batch_of, experts

BF16 = ExpertSizes(EXPERTS, running.HIDDEN, INNER, TOP_K, "stream/1", weights="bf16")


def linear(bits):
    """A module with a bf16 weight."""
    return SimpleNamespace(weight=torch.from_numpy(np.array(bits)).view(torch.bfloat16))


def block_with(shared):
    """A sparse block with a shared expert, as far as it is looked at."""
    return SimpleNamespace(
        shared_expert=SimpleNamespace(
            gate_up_proj=linear(shared.weights.w13[0]), down_proj=linear(shared.weights.w2[0])
        ),
        shared_expert_gate=linear(shared.gate[None]),
    )


def dispatched(hidden, ids, router):
    """What SGLang's dispatcher hands over."""
    topk = SimpleNamespace(topk_ids=ids, topk_weights=router)
    return SimpleNamespace(hidden_states=hidden, topk_output=topk)


@pytest.fixture
def taken(hip):
    rung = HipRung(max_tokens=32)
    weights, loaded = experts(hip)
    return weights, OnRung(SIZES, rung, rung.prepare(loaded))


@pytest.mark.parametrize("num_tokens", [1, 18])
def test_the_shared_expert_rides_in_the_same_launches(hip, taken, num_tokens):
    weights, layer = taken
    shared = running.random_shared(INNER)
    block = block_with(shared)
    address = block.shared_expert.gate_up_proj.weight.data_ptr()
    assert on_rung.why_apart(block, layer) == ""
    on_rung.take_shared(block, layer)
    assert block.shared_expert is None  # SGLang's own condition then skips its branch
    assert layer.prepared.shared.w13_stream.data_ptr() == address
    before = len(hip.launches)
    batch, tensors = batch_of(hip, num_tokens)
    out = layer.apply(dispatched(*tensors))
    assert len(hip.launches) - before == 4
    want = running.expected(weights, batch, shared)
    assert room.relative_l2(out.float().numpy(), want) < running.THREE_ROUNDINGS
    without = room.relative_l2(out.float().numpy(), running.expected(weights, batch))
    assert without > 10 * running.THREE_ROUNDINGS  # it is not small beside the routed ones


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda b: setattr(b, "shared_expert", None), "the layer has none"),
        (lambda b: setattr(b, "shared_expert_gate", None), "no gate"),
        (lambda b: setattr(b.shared_expert, "down_proj", SimpleNamespace()), "not in bfloat16"),
        (
            lambda b: setattr(b.shared_expert.down_proj, "weight", torch.zeros(4096, 128)),
            "down_proj is not in bfloat16",
        ),
        (
            lambda b: setattr(
                b.shared_expert.gate_up_proj, "weight", torch.zeros(512, 4096).bfloat16()
            ),
            r"gate_up_proj is (512, 4096), beside routed experts it would be (256, 4096)",
        ),
        (
            lambda b: setattr(
                b.shared_expert.down_proj, "weight", torch.zeros(128, 4096).bfloat16().T
            ),
            "down_proj is not contiguous",
        ),
    ],
)
def test_a_shared_expert_that_cannot_ride_is_left_apart_with_the_reason(taken, change, why):
    block = block_with(running.random_shared(INNER))
    change(block)
    assert why in on_rung.why_apart(block, taken[1])


def test_a_rung_that_does_not_take_the_shared_expert_leaves_it_apart():
    block = block_with(running.random_shared(INNER))
    layer = OnRung(SIZES, TorchRung(), None)
    assert on_rung.why_apart(block, layer) == "rung torch does not take it"


def test_a_drafts_bf16_experts_are_taken_in_place(hip):
    rung = HipRung(max_tokens=32)
    assert rung.can_run(CPU, BF16) is None
    assert selftest.run(rung, CPU, BF16).passed
    weights = running.random_weights(EXPERTS, INNER, bf16=True)
    layer = SimpleNamespace(
        w13_weight=linear(weights.w13).weight, w2_weight=linear(weights.w2).weight
    )
    address = layer.w13_weight.data_ptr()
    taken = on_rung.take_bf16("mtp.experts", layer, BF16, rung)
    assert taken.prepared.w13_stream.data_ptr() == address
    batch, tensors = batch_of(hip, 5)
    out = taken.apply(dispatched(*tensors))
    want = running.expected(weights, batch)
    assert room.relative_l2(out.float().numpy(), want) < running.THREE_ROUNDINGS


def test_ids_and_weights_of_other_types_or_strides_are_brought_to_the_kernels(hip, taken):
    weights, layer = taken
    batch, (hidden, ids, router) = batch_of(hip, 5)
    wide = torch.stack([hidden, hidden], dim=2)[:, :, 0]
    out = layer.apply(dispatched(wide, ids.long(), router.double()))
    want = running.expected(weights, batch)
    assert room.relative_l2(out.float().numpy(), want) < running.THREE_ROUNDINGS
