"""Both decodes give every code under every scale exactly, through the matrix unit."""

import numpy as np
import pytest

from sglang_mi300a import mxfp4, stream_layout
from sglang_mi300a.moe.kernels import catalogue, probe, steps
from sglang_mi300a.moe.kernels.restripe import restriped
from tests.moe.kernels import running

ROWS = stream_layout.ROWS


def all_bytes_under_all_scales(num_scales):
    """Return (packed, scales) of K = 128: each byte at each of 16 places of a lane, per scale."""
    scale, part, row = np.meshgrid(
        np.arange(num_scales), np.arange(4), np.arange(ROWS), indexing="ij"
    )
    rows = scale.size
    block, group, byte = np.meshgrid(np.arange(4), np.arange(4), np.arange(4), indexing="ij")
    lane = 16 * group + row.reshape(rows, 1, 1, 1)
    # 64 lanes by 4 parts are the 256 bytes; another start at each place, so neighbours differ.
    packed = (64 * part.reshape(rows, 1, 1, 1) + lane + 37 * block + 101 * byte) % 256
    # Two records are one item: side 0 holds the even rows.
    order = np.arange(rows).reshape(-1, 2, ROWS).transpose(0, 2, 1).reshape(-1)
    scales = np.broadcast_to(scale.reshape(rows, 1), (rows, 4)).astype(np.uint8)
    return packed.reshape(rows, 64).astype(np.uint8)[order], np.ascontiguousarray(scales[order])


def read_back(stream, format_):
    num_records = stream.nbytes // stream_layout.RECORD_BYTES
    values = np.full((num_records, stream_layout.RECORD_K, ROWS), np.nan, np.float32)
    buffers = {steps.PROBE_STREAM: running.read_only(stream), steps.PROBE_VALUES: values}
    running.launch(steps.read_back(format_, num_records), buffers)
    return values


@pytest.mark.parametrize("format_", ["subnormals", "bf8"])
def test_every_byte_at_every_place_under_every_scale_is_exact(format_):
    assert catalogue.EXACT_SCALES[format_][0] == 0
    packed, scales = all_bytes_under_all_scales(len(catalogue.EXACT_SCALES[format_]))
    by_scale = packed.reshape(-1, 4 * ROWS, 4, 4, 4)  # [scale][row][block][lane group][byte]
    for block, byte in np.ndindex(4, 4):
        places = by_scale[:, :, block, :, byte].reshape(len(by_scale), -1)
        assert (np.sort(places, axis=1) == np.arange(256)).all()
    stream = stream_layout.split_mxfp4("w2", packed, scales)
    got = read_back(restriped(stream) if format_ == "bf8" else stream, format_)
    want = probe.by_record(mxfp4.dequantise(packed, scales))
    assert np.count_nonzero(got != want) == 0


def test_the_range_that_loading_accepts_is_exact_in_both_decodes():
    for exact in catalogue.EXACT_SCALES.values():
        assert exact[0] <= mxfp4.EXACT_SCALE_MIN
        assert exact[-1] >= mxfp4.EXACT_SCALE_MAX


def test_scales_beyond_a_decodes_range_are_not_exact():
    packed = np.full((32, 64), 0x22, np.uint8)  # 1.0
    scales = np.full((32, 4), 193, np.uint8)
    stream = stream_layout.split_mxfp4("w2", packed, scales)
    assert not (read_back(stream, "subnormals") == 2.0 ** (193 - 127)).any()


@pytest.mark.parametrize("num_records", [1, 7, 37, 64])
def test_the_device_rewrites_a_stream_in_place_as_the_reference_does(num_records):
    rng = np.random.default_rng(num_records)
    stream = rng.integers(0, 256, num_records * stream_layout.RECORD_BYTES, dtype=np.uint8)
    records = stream.reshape(num_records, -1)
    records[:, : stream_layout.SCALE_BYTES] %= len(catalogue.EXACT_SCALES["bf8"])
    want = restriped(stream)
    step = steps.restripe(steps.W13_STREAM, stream.nbytes, 1)
    running.launch(step, {steps.W13_STREAM: stream})
    assert np.array_equal(stream, want)


@pytest.mark.parametrize("format_", ["subnormals", "bf8"])
def test_the_probe_finds_the_decode_exact(format_):
    assert probe.is_exact(read_back(probe.stream(format_), format_))


def test_the_probe_notices_a_matrix_unit_that_drops_subnormals():
    values = probe.values().copy()
    codes = np.abs(values) == 0.5  # under scale 2^0
    assert codes.any()
    assert not probe.is_exact(np.where(codes, 0, values))
