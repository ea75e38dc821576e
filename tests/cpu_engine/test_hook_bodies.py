"""The bodies of the hooks, called the way SGLang calls what they wrap."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from sglang_mi300a.cpu_engine import coverage, hook_bodies
from sglang_mi300a.cpu_engine.operators import norms


@pytest.fixture(autouse=True, scope="module")
def _operators() -> None:
    coverage.register_operators()


def _norm(**other: Any) -> SimpleNamespace:
    plain = {"norm_before_gate": True, "group_size": None, "bias": None, "activation": "swish"}
    return SimpleNamespace(weight=torch.full((4,), 2.0), eps=1e-6, **{**plain, **other})


def test_the_gated_norm_calls_the_registered_operator() -> None:
    x, z = torch.randn(3, 4), torch.randn(3, 4)
    wanted = norms.fused_rmsnorm_gated_cpu(x, torch.full((4,), 2.0), z, 1e-6)
    assert torch.equal(hook_bodies.gated_norm(_norm(), x, z), wanted)
    assert torch.equal(hook_bodies.gated_norm(_norm(activation="silu"), x, z=z), wanted)


@pytest.mark.parametrize(
    "other",
    [
        {"norm_before_gate": False},
        {"group_size": 2},
        {"bias": torch.zeros(4)},
        {"activation": "sigmoid"},
    ],
)
def test_another_kind_of_gated_norm_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="gated norm"):
        hook_bodies.gated_norm(_norm(**other), torch.ones(1, 4), torch.ones(1, 4))


def test_a_gated_norm_without_gate_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="gated norm"):
        hook_bodies.gated_norm(_norm(), torch.ones(1, 4))


def test_the_state_pool_s_scratch_is_made_in_host_memory() -> None:
    class Pool:
        def __init__(self, size: int, *, device: str) -> None:
            self.scratch = torch.zeros(size=(size, 2), dtype=torch.bfloat16, device="cuda")
            self.state = torch.zeros(size, device=device)

    pool = Pool.__new__(Pool)
    hook_bodies.state_pool_on_cpu(Pool.__init__, pool, 3, device="cpu")
    assert pool.scratch.device.type == pool.state.device.type == "cpu"
    assert pool.scratch.shape == (3, 2)
    assert pool.scratch.dtype == torch.bfloat16
    with pytest.raises((AssertionError, RuntimeError)):  # the change ends with the body
        torch.zeros(1, device="cuda")


@dataclass
class Batch:
    """As much of a forward batch as the bodies touch."""

    seq_lens: torch.Tensor
    spec_info: object


def _seen_by(body: Any, backend: SimpleNamespace, batch: Batch) -> tuple[Batch, tuple[Any, ...]]:
    seen: list[Any] = []

    def original(self: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, *more: Any) -> str:
        seen.extend((batch, (self, q, k, v, layer, *more)))
        return "attended"

    assert body(original, backend, "q", "k", "v", "layer", batch, True) == "attended"
    return seen[0], seen[1]


def test_an_extend_pass_attends_with_the_lengths_of_its_metadata() -> None:
    planned, spec_info = torch.tensor([7, 9]), object()
    backend = SimpleNamespace(extend_metadata=(planned, "extend lens", "starts", None))
    batch = Batch(torch.tensor([3, 5]), spec_info)
    seen, rest = _seen_by(hook_bodies.extend_with_planned_lengths, backend, batch)
    assert seen.seq_lens is planned
    assert seen.spec_info is spec_info
    assert rest == (backend, "q", "k", "v", "layer", True)
    assert batch.seq_lens.tolist() == [3, 5]  # the batch itself is left alone


def test_a_draft_step_attends_with_the_lengths_of_its_metadata() -> None:
    planned = torch.tensor([4, 4])
    backend = SimpleNamespace(draft_decode_metadata=("slots", planned, "rows"))
    batch = Batch(torch.tensor([3]), None)
    seen, _ = _seen_by(hook_bodies.decode_with_planned_lengths, backend, batch)
    assert seen.seq_lens is planned
    assert batch.seq_lens.tolist() == [3]


def test_a_plain_decode_keeps_its_own_lengths() -> None:
    batch = Batch(torch.tensor([3]), None)
    backend = SimpleNamespace(draft_decode_metadata=None)
    seen, _ = _seen_by(hook_bodies.decode_with_planned_lengths, backend, batch)
    assert seen is batch


def test_embedding_and_head_are_shared_without_an_accelerator_to_wait_for() -> None:
    def set_embed_and_head(self: Any, embed: Any, head: Any) -> None:
        self.shared = (embed, head)
        torch.cuda.synchronize()

    draft, synchronize = SimpleNamespace(), torch.cuda.synchronize
    hook_bodies.share_embedding_and_head(set_embed_and_head, draft, "embed", "head")
    assert draft.shared == ("embed", "head")
    assert torch.cuda.synchronize is synchronize


def test_waiting_is_restored_when_sharing_fails() -> None:
    def fails(self: Any, embed: Any, head: Any) -> None:
        raise KeyError("weight")

    synchronize = torch.cuda.synchronize
    with pytest.raises(KeyError, match="weight"):
        hook_bodies.share_embedding_and_head(fails, SimpleNamespace(), None, None)
    assert torch.cuda.synchronize is synchronize


def test_float32_joins_the_allowed_types() -> None:
    stock = [torch.float16, torch.bfloat16]
    allowed = hook_bodies.allow_float32(stock, object)
    assert allowed == [torch.float16, torch.bfloat16, torch.float32]
    assert stock == [torch.float16, torch.bfloat16]


class TopK(NamedTuple):
    """As SGLang's routing result."""

    topk_weights: torch.Tensor
    topk_ids: torch.Tensor


def _experts(ids: list[list[int]], activation: str = "silu", **layer: Any) -> Any:
    held = SimpleNamespace(w13_weight=torch.ones(2, 4, 3), w2_weight=torch.ones(2, 3, 2), **layer)
    routed = TopK(torch.ones(len(ids), 2), torch.tensor(ids))
    return hook_bodies.experts_of_this_rank(
        lambda *_: "stock",
        held,
        torch.ones(len(ids), 3),
        routed,
        SimpleNamespace(activation=activation),
    )


def test_where_a_rank_holds_all_experts_stock_runs_them() -> None:
    assert _experts([[0, 1]]) == "stock"
    assert _experts([[0, 1]], "gelu") == "stock"


def test_experts_of_other_ranks_add_nothing() -> None:
    one, none = _experts([[0, -1]]), _experts([[-1, -1]])
    assert one.all()
    assert not none.any()


@pytest.mark.parametrize("other", [{"activation": "gelu"}, {"w13_weight_bias": torch.zeros(4)}])
def test_other_kinds_of_shared_out_experts_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="expert parallelism"):
        _experts([[0, -1]], **other)
