"""From an artifact or straight from the checkpoint, a rank gets the same bytes."""

import json
import os
import shutil

import numpy as np
import pytest

from sglang_mi300a import layout
from sglang_mi300a.errors import UserError
from sglang_mi300a.layout import PLAIN, ExpertTensor
from sglang_mi300a.weights import artifact, checkpoint, filling, model_sizes, plan
from sglang_mi300a.weights.loader_options import LoaderOptions
from sglang_mi300a.weights.plan import Placement
from sglang_mi300a.weights.steps import groups
from tests.weights.conftest import ArraySink, make_checkpoint, shard

SMALL_RING = LoaderOptions(ring_bytes=2 * (80 << 10), threads=2)


def loaded_from_artifact(directory, rank, part, options=SMALL_RING):
    found = artifact.read(directory)
    tensors = artifact.check_files(found, rank, part)
    sink = ArraySink(tensors)
    return sink.bytes, filling.from_artifact(found, tensors, sink, options)


def loaded_from_checkpoint(model, at, part, options=SMALL_RING, order=PLAIN):
    config = json.loads((model / "config.json").read_text())
    sizes = model_sizes.from_config(config, where="config.json")
    found = checkpoint.read(model)
    rank_plan = plan.make(sizes, found.sources(), at, part, text_only=True, where=str(model))
    sink = ArraySink(t for group in groups([rank_plan], order) for t in group.stored)
    return sink.bytes, filling.from_checkpoint(rank_plan, found, order, sink, options)


@pytest.mark.parametrize("heads", ["replicated", "padded"])
@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (4, 1), (4, 2), (4, 4)])
@pytest.mark.parametrize("experts", ["mxfp4", "bf16", "stacked"])
def test_both_ways_give_the_same_bytes(tmp_path, tp, ep, experts, heads):
    model = make_checkpoint(tmp_path / "m", experts=experts, mtp_experts=experts, seed=tp)
    shard(model, tmp_path / "out", tp=tp, ep=ep, heads=heads)
    for rank in range(tp):
        for part in ("target", "draft"):
            one, _ = loaded_from_artifact(tmp_path / "out", rank, part)
            at = Placement(tp, ep, rank, heads)
            other, _ = loaded_from_checkpoint(model, at, part)
            assert one.keys() == other.keys()
            for name, content in one.items():
                assert np.array_equal(content, other[name]), (rank, name)


def test_a_rank_reads_only_what_it_needs(small):
    """Rank 0 of 4: a quarter of what is cut by rows, all of what is cut by columns or shared."""
    _, whole = loaded_from_checkpoint(small, Placement(1, 1, 0), "target")
    _, quarter = loaded_from_checkpoint(small, Placement(4, 1, 0), "target")
    _, group = loaded_from_checkpoint(small, Placement(4, 4, 0), "target")
    assert quarter.num_bytes < 0.62 * whole.num_bytes
    assert group.num_bytes < 0.45 * whole.num_bytes


def test_an_artifact_is_read_to_the_byte(small_tp2):
    content, report = loaded_from_artifact(small_tp2, 1, "target")
    assert report.num_bytes == sum(data.nbytes for data in content.values())
    assert report.num_verified_bytes == report.num_bytes


@pytest.fixture
def damaged(small_tp2, tmp_path):
    """An artifact with one bit flipped in the largest tensor of rank 1."""
    copy = shutil.copytree(small_tp2, tmp_path / "damaged")
    tensors = artifact.check_files(artifact.read(copy), 1, "target")
    largest = max(tensors, key=lambda t: t.size)
    content = bytearray((copy / largest.file).read_bytes())
    content[largest.offset + largest.size - 1] ^= 128
    (copy / largest.file).write_bytes(content)
    return copy, largest


@pytest.mark.parametrize("verify", ["full", "sample"])
def test_a_flipped_bit_is_found_while_loading(damaged, verify):
    copy, tensor = damaged
    options = LoaderOptions(verify=verify)  # a sample holds every tensor of at most 1 MiB
    with pytest.raises(UserError, match=f"{tensor.name}: found checksum"):
        loaded_from_artifact(copy, 1, "target", options)


def test_nothing_is_found_when_verification_is_off(damaged):
    _, report = loaded_from_artifact(damaged[0], 1, "target", LoaderOptions(verify="off"))
    assert report.num_verified_bytes == 0


def test_a_part_that_shrinks_while_it_is_read_is_an_error(small_tp2, tmp_path):
    copy = shutil.copytree(small_tp2, tmp_path / "shrinking")
    found = artifact.read(copy)
    tensors = artifact.check_files(found, 0, "target")
    os.truncate(copy / tensors[-1].file, 5000)
    with pytest.raises(UserError, match="found its end at byte 5000"):
        filling.from_artifact(found, tensors, ArraySink(tensors), SMALL_RING)


def test_a_bad_scale_in_a_checkpoint_is_found_by_the_rank_that_loads_it(tmp_path):
    model = make_checkpoint(tmp_path / "m")
    name = "model.language_model.layers.1.mlp.experts.3.down_proj.weight_scale"
    stored = checkpoint.read(model).tensors[name]
    content = bytearray(stored.file.read_bytes())
    content[stored.offset + 6] = 0xFF
    stored.file.write_bytes(content)
    with pytest.raises(UserError, match="experts.3.down_proj.weight: found 1 blocks.*block 6 "):
        loaded_from_checkpoint(model, Placement(2, 1, 1), "target")


def test_a_buffer_too_small_for_one_expert_is_refused_with_the_number(small):
    with pytest.raises(UserError, match="ring_bytes: found 65536 bytes for one read"):
        options = LoaderOptions(ring_bytes=64 << 10, threads=1)
        loaded_from_checkpoint(small, Placement(1, 1, 0), "draft", options)


def test_each_thread_is_announced_to_the_sink(small_tp2):
    found = artifact.read(small_tp2)
    tensors = artifact.check_files(found, 0, "target")
    started = []
    sink = ArraySink(tensors)
    sink.start_thread = lambda: started.append(1)
    filling.from_artifact(found, tensors, sink, LoaderOptions(threads=3))
    assert 1 <= len(started) <= 3


class Shuffled:
    """A layout for this test: weight and scales of an expert in one stream, rows reversed."""

    id = "shuffled/1"

    def stored(self, plain):
        if len(plain) == 1:
            return tuple(plain)
        size = sum(int(np.prod(tensor.shape)) for tensor in plain)
        return (ExpertTensor(plain[0].name.replace("weight", "stream"), "U8", (size,)),)

    def apply(self, plain):
        if len(plain) == 1:
            return dict(plain)
        (name, weight), (_, scale) = plain.items()
        stream = np.concatenate([weight[::-1].reshape(-1), scale[::-1].reshape(-1)])
        return {name.replace("weight", "stream"): stream}


def test_a_layout_is_applied_on_both_ways(small, tmp_path, monkeypatch):
    monkeypatch.setitem(layout._LAYOUTS, Shuffled.id, Shuffled())
    shard(small, tmp_path / "out", tp=2, layout=Shuffled.id)
    assert artifact.read(tmp_path / "out").manifest.layout == Shuffled.id
    at = Placement(2, 1, 1)
    plain, _ = loaded_from_checkpoint(small, at, "target")
    one, _ = loaded_from_artifact(tmp_path / "out", 1, "target")
    other, _ = loaded_from_checkpoint(small, at, "target", order=Shuffled())
    assert one.keys() == other.keys()
    assert all(np.array_equal(content, other[name]) for name, content in one.items())
    name = "model.layers.2.mlp.experts.w13_"
    assert f"{name}weight" not in one
    # Eight experts, each 128 rows of 64 weight bytes, then 128 rows of 4 scales, rows reversed.
    streams = one[f"{name}stream"].reshape(8, 128 * 68)
    weights = streams[:, : 128 * 64].reshape(8, 128, 64)[:, ::-1]
    scales = streams[:, 128 * 64 :].reshape(8, 128, 4)[:, ::-1]
    assert np.array_equal(weights.reshape(-1), plain[f"{name}weight"])
    assert np.array_equal(scales.reshape(-1), plain[f"{name}weight_scale"])
    draft, _ = loaded_from_artifact(tmp_path / "out", 1, "draft")
    assert "model.layers.0.mlp.experts.w13_weight" in draft
