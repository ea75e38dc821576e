"""Every named layout keeps what it was given."""

import numpy as np
import pytest

from sglang_mi300a import layout
from sglang_mi300a.errors import UserError
from sglang_mi300a.layout import ExpertTensor

W13 = (
    ExpertTensor("w13_weight", "U8", (64, 2048)),
    ExpertTensor("w13_weight_scale", "U8", (64, 128)),
)
W2 = (ExpertTensor("w2_weight", "U8", (4096, 64)), ExpertTensor("w2_weight_scale", "U8", (4096, 4)))


@pytest.mark.parametrize("tensors", [W13, W2], ids=["w13", "w2"])
@pytest.mark.parametrize("name", layout.names())
def test_undo_gives_back_what_was_applied(name, tensors):
    chosen = layout.named(name, where="test")
    draw = np.random.default_rng(0)
    plain = {t.name: draw.integers(0, 256, t.shape, dtype=np.uint8) for t in tensors}
    stored = chosen.apply({key: value.copy() for key, value in plain.items()})
    declared = {t.name: int(np.prod(t.shape)) for t in chosen.stored(tensors)}
    assert {key: value.nbytes for key, value in stored.items()} == declared
    back = chosen.undo(stored)
    assert back.keys() == plain.keys()
    for key, value in plain.items():
        assert np.array_equal(back[key], value)


def test_an_unknown_layout_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="layout 'stream/9'; supported: plain/1, stream/1"):
        layout.named("stream/9", where="manifest.json")


def test_a_model_gets_the_kernels_layout_where_every_expert_tensor_fits():
    for inner in (128, 256, 512, 1024):  # TP 8, 4, 2; EP 4
        assert layout.default_for(4096, inner).id == "stream/1"
    assert layout.default_for(4096, 64).id == "plain/1"
    assert layout.default_for(256, 128).id == "plain/1"
