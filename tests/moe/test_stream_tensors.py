"""Streams as torch reads them, against the layout's own inverse."""

import numpy as np
import pytest
import torch

from sglang_mi300a import stream_layout
from sglang_mi300a.moe import stream_tensors

SHAPES = [("w13", 64, 4096), ("w13", 32, 512), ("w2", 4096, 128), ("w2", 64, 1024)]
EXPERTS = 3


def experts(num_rows, k):
    draw = np.random.default_rng([num_rows, k])
    packed = draw.integers(0, 256, (EXPERTS, num_rows, k // 2), dtype=np.uint8)
    return packed, draw.integers(0, 256, (EXPERTS, num_rows, k // 32), dtype=np.uint8)


def streams(projection, packed, scales):
    pairs = zip(packed, scales, strict=True)
    parts = [stream_layout.split_mxfp4(projection, *pair) for pair in pairs]
    return torch.from_numpy(np.stack(parts))


@pytest.mark.parametrize(("projection", "num_rows", "k"), SHAPES)
def test_every_code_and_scale_comes_back(projection, num_rows, k):
    packed, scales = experts(num_rows, k)
    stored = streams(projection, packed, scales)
    for expert in range(EXPERTS):
        found = stream_tensors.joined(projection, stored[expert], num_rows, k)
        assert np.array_equal(found[0].numpy(), packed[expert])
        assert np.array_equal(found[1].numpy(), scales[expert])


@pytest.mark.parametrize(("projection", "num_rows", "k"), SHAPES)
def test_streams_become_plain_in_place(projection, num_rows, k):
    packed, scales = experts(num_rows, k)
    stored = streams(projection, packed, scales)
    address = stored.data_ptr()
    weight, scale = stream_tensors.make_plain(projection, stored, num_rows, k)
    assert np.array_equal(weight.numpy(), packed)
    assert np.array_equal(scale.numpy(), scales)
    assert weight.data_ptr() == address
    assert weight.untyped_storage().nbytes() == packed.nbytes + scales.nbytes


@pytest.mark.parametrize(("projection", "num_rows", "k"), SHAPES)
def test_bf16_weights_become_streams_in_place(projection, num_rows, k):
    draw = torch.Generator().manual_seed(k)
    weights = torch.randn(EXPERTS, num_rows, k, generator=draw).bfloat16()
    plain = weights.view(torch.uint8).numpy().copy()
    address = weights.data_ptr()
    streams = stream_tensors.make_bf16_streams(projection, weights)
    for expert in range(EXPERTS):
        want = stream_layout.split_bf16(projection, plain[expert])
        assert np.array_equal(streams[expert].numpy(), want)
    assert streams.data_ptr() == address
