"""The last rung reads either layout."""

import numpy as np
import pytest
import torch

from sglang_mi300a import layout as layouts
from sglang_mi300a.moe.reference import expert_layer
from sglang_mi300a.moe.rungs import Experts, ExpertSizes
from sglang_mi300a.moe.torch_rung import TorchRung

EXPERTS, HIDDEN, INNER, TOP_K, TOKENS = 3, 4096, 128, 2, 5


@pytest.fixture(scope="module")
def plain():
    draw = np.random.default_rng(0)

    def stack(rows, k):
        codes = draw.integers(0, 256, (EXPERTS, rows, k // 2), dtype=np.uint8)
        return codes, draw.integers(114, 121, (EXPERTS, rows, k // 32), dtype=np.uint8)

    w13, w13_scale = stack(2 * INNER, HIDDEN)
    w2, w2_scale = stack(HIDDEN, INNER)
    return {
        "w13_weight": w13,
        "w13_weight_scale": w13_scale,
        "w2_weight": w2,
        "w2_weight_scale": w2_scale,
    }


def experts_in(layout_id, plain):
    layout = layouts.named(layout_id, where="test")
    stored: dict[str, list[np.ndarray]] = {}
    for expert in range(EXPERTS):
        for projection in ("w13", "w2"):
            names = [f"{projection}_weight", f"{projection}_weight_scale"]
            for name, data in layout.apply({n: plain[n][expert] for n in names}).items():
                stored.setdefault(name, []).append(data)
    sizes = ExpertSizes(EXPERTS, HIDDEN, INNER, TOP_K, layout_id)
    tensors = {name: torch.from_numpy(np.stack(parts)) for name, parts in stored.items()}
    return Experts("layers.0.mlp.experts", sizes, tensors)


@pytest.mark.parametrize("layout_id", layouts.names())
def test_the_layer_is_the_same_in_every_layout(layout_id, plain):
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(TOKENS, HIDDEN, generator=draw).bfloat16()
    ids = torch.randint(-1, EXPERTS, (TOKENS, TOP_K), generator=draw, dtype=torch.int32)
    weights = torch.rand(TOKENS, TOP_K, generator=draw)
    tensors = [torch.from_numpy(array) for array in plain.values()]
    want = expert_layer(hidden, *tensors, ids, weights)
    rung = TorchRung()
    prepared = rung.prepare(experts_in(layout_id, plain))
    assert torch.equal(rung.apply(prepared, hidden, ids, weights), want)


def test_what_it_does_not_run_it_says():
    rung, cpu = TorchRung(), torch.device("cpu")
    sizes = ExpertSizes(EXPERTS, HIDDEN, INNER, TOP_K, "stream/1")
    assert rung.can_run(cpu, sizes) is None
    assert "stream/9" in rung.can_run(cpu, ExpertSizes(EXPERTS, HIDDEN, INNER, TOP_K, "stream/9"))
    bf16 = ExpertSizes(EXPERTS, HIDDEN, INNER, TOP_K, "stream/1", weights="bf16")
    assert "bf16" in rung.can_run(cpu, bf16)
