"""What an expert layer refuses once it is loaded."""

from types import SimpleNamespace

import pytest
import torch

from sglang_mi300a.errors import UserError
from sglang_mi300a.moe import loaded
from sglang_mi300a.stream_layout import RECORD_BYTES

NAME = "model.layers.3.mlp.experts"


def plain():
    """Two experts in SGLang's order; 0xFF in the codes is nothing special."""
    return {
        "w13_weight": torch.full((2, 4, 64), 0xFF, dtype=torch.uint8),
        "w13_weight_scale": torch.zeros(2, 4, 4, dtype=torch.uint8),
        "w2_weight": torch.full((2, 8, 16), 0xFF, dtype=torch.uint8),
        "w2_weight_scale": torch.full((2, 8, 1), 0xFE, dtype=torch.uint8),
    }


def streams():
    """Two experts of three records."""
    records = torch.full((2, 3, RECORD_BYTES), 0xFF, dtype=torch.uint8)
    records[:, :, :64] = 120
    return {"w13_stream": records.view(2, -1), "w2_stream": records.clone().view(2, -1)}


@pytest.mark.parametrize("tensors", [plain(), streams()], ids=["plain", "streams"])
def test_scales_up_to_the_largest_pass_whatever_the_codes_are(tensors):
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    loaded.check_scales(NAME, tensors)
    assert all(torch.equal(tensors[name], was) for name, was in before.items())


@pytest.mark.parametrize("name", ["w13_weight_scale", "w2_weight_scale"])
def test_a_nan_scale_is_refused_with_tensor_place_and_count(name):
    tensors = plain()
    tensors[name][1, 2, 0] = 0xFF
    tensors[name][1, 3, 0] = 0xFF
    with pytest.raises(UserError) as refused:
        loaded.check_scales(NAME, tensors)
    assert refused.value.where == f"{NAME}.{name}"
    assert refused.value.found == "scale 0xFF (NaN) at expert 1, row 2, block 0; 2 in this expert"


@pytest.mark.parametrize("name", ["w13_stream", "w2_stream"])
def test_a_nan_scale_in_a_stream_is_refused_too(name):
    tensors = streams()
    tensors[name].view(2, 3, RECORD_BYTES)[0, 2, 63] = 0xFF
    with pytest.raises(UserError) as refused:
        loaded.check_scales(NAME, tensors)
    assert refused.value.where == f"{NAME}.{name}"
    assert "expert 0, record 2, byte 63; 1 in this expert" in refused.value.found


@pytest.mark.parametrize(
    ("ep", "aiter", "skips", "is_refused"),
    [
        (1, True, True, False),
        (4, False, False, False),
        (4, True, False, True),
        (4, False, True, True),
    ],
)
def test_global_expert_ids_are_refused_with_expert_parallelism_only(ep, aiter, skips, is_refused):
    dispatcher = SimpleNamespace(
        moe_ep_size=ep, use_aiter_moe_runner=aiter, skip_local_expert_mapping=skips
    )
    assert bool(loaded.global_ids(dispatcher)) is is_refused
