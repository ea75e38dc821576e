"""From an artifact or straight from the checkpoint, a rank gets the same bytes."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from sglang_mi300a import artifact_manifest, layout
from sglang_mi300a.artifact_manifest import (
    CHECKSUM_BLOCK_BYTES,
    FileFacts,
    TensorFacts,
    checksum,
    of_blocks,
)
from sglang_mi300a.errors import UserError
from sglang_mi300a.layout import PLAIN, ExpertTensor
from sglang_mi300a.weights import artifact, checkpoint, filling, model_sizes, plan
from sglang_mi300a.weights.loader_options import LoaderOptions
from sglang_mi300a.weights.part_files import PartFile
from sglang_mi300a.weights.plan import Placement
from sglang_mi300a.weights.steps import Stored, groups
from tests.weights.checkpoints import SMALL_TEXT
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


def straight_into_memory(directory, rank, part, options=SMALL_RING):
    found = artifact.read(directory)
    tensors = artifact.check_files(found, rank, part)
    sink = ArraySink(tensors, is_straight=True)
    return sink.bytes, filling.from_artifact(found, tensors, sink, options)


@pytest.mark.parametrize("part", ["target", "draft"])
def test_reading_straight_into_memory_gives_the_same_bytes(small_tp2, part):
    through_buffers, report = loaded_from_artifact(small_tp2, 1, part)
    straight, other = straight_into_memory(small_tp2, 1, part)
    assert all(np.array_equal(data, straight[name]) for name, data in through_buffers.items())
    assert (report.is_straight, other.is_straight) == (False, True)
    assert other.num_bytes == other.num_verified_bytes == report.num_bytes
    assert other.num_direct_files == 0


def test_progress_is_told_to_the_byte(small, small_tp2):
    found = artifact.read(small_tp2)
    tensors = artifact.check_files(found, 0, "target")
    told = []
    filling.from_artifact(found, tensors, ArraySink(tensors), SMALL_RING, told.append)
    assert sum(told) == sum(tensor.size for tensor in tensors)
    assert len(told) >= len(tensors)


def test_the_report_in_words_has_bytes_seconds_rate_and_memory(small_tp2):
    _, report = loaded_from_artifact(small_tp2, 0, "target")
    words = replace(report, num_bytes=4_000_000_000, seconds=2.0, peak_extra_bytes=3 << 20)
    assert "4.000 GB in 2.0 s (2.00 GB/s), 3 MiB of buffers at most" in words.in_words()
    assert "\n" not in words.in_words()


def test_buffers_are_what_a_load_needs_beyond_what_it_fills(tmp_path):
    """16 MiB of ring at most; the 60 MB that are filled do not count, nor what was there before."""
    text = {**SMALL_TEXT, "hidden_size": 512, "vocab_size": 30_000, "num_experts": 2}
    shard(make_checkpoint(tmp_path / "m", text=text, mtp=False), tmp_path / "out", tp=1)
    options = LoaderOptions(ring_bytes=16 << 20, threads=2)
    _, report = loaded_from_artifact(tmp_path / "out", 0, "target", options)
    assert report.num_bytes > 55 << 20
    # Less where a read is shorter than its buffer; more by what threads allocate for themselves.
    assert 4 << 20 < report.peak_extra_bytes < 24 << 20


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


def test_a_flipped_bit_is_found_in_the_memory_it_was_read_into(damaged):
    copy, tensor = damaged
    with pytest.raises(UserError, match=f"{tensor.name}: found checksum"):
        straight_into_memory(copy, 1, "target")


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


def artifact_with_empty_tensors(directory, small_tp2):
    """An artifact of one rank whose file begins, continues and ends with tensors of no bytes."""
    manifest = artifact_manifest.read(small_tp2)
    shapes = {"a": (0, 32), "b": (3, 5), "c": (7, 0), "d": (2,), "e": (0,)}
    (directory / "rank-0").mkdir(parents=True)
    name = "rank-0/target-part-00000.safetensors"
    stored = [Stored(key, "U8", shape) for key, shape in shapes.items()]
    file = PartFile(directory / name, stored, lambda num_bytes: None)
    file.open()
    for tensor in stored:
        file.write(tensor.name, 0, np.arange(tensor.size, dtype=np.uint8))
    tensors = tuple(
        TensorFacts(0, "target", key, name, offset, "U8", shapes[key], digest)
        for key, offset, digest in file.finish()
    )
    made = replace(
        manifest, tp=1, has_draft=False, copied=(), tensors=tensors,
        files=(FileFacts(name, file.size),),
    )  # fmt: skip
    (directory / artifact_manifest.NAME).write_text(made.render())
    return directory


def test_tensors_without_elements_are_loaded_and_verified(small_tp2, tmp_path):
    directory = artifact_with_empty_tensors(tmp_path / "out", small_tp2)
    content, report = loaded_from_artifact(directory, 0, "target")
    assert {name: data.tolist() for name, data in content.items()} == {
        "a": [], "b": list(range(15)), "c": [], "d": [0, 1], "e": [],
    }  # fmt: skip
    assert report.num_bytes == report.num_verified_bytes == 17
    assert straight_into_memory(directory, 0, "target")[1].num_bytes == 17
    assert artifact.verify(artifact.read(directory)).problems == ()


def test_fewer_reads_are_in_flight_where_an_expert_needs_a_larger_buffer(small):
    """An expert of the draft has 2 * 128 * 128 values of two bytes, and 64 KiB are two buffers."""
    tight = LoaderOptions(ring_bytes=128 << 10, threads=2)
    one, _ = loaded_from_checkpoint(small, Placement(1, 1, 0), "draft", tight)
    other, _ = loaded_from_checkpoint(small, Placement(1, 1, 0), "draft", LoaderOptions())
    assert all(np.array_equal(content, other[name]) for name, content in one.items())


def big_tensor_artifact(directory, small_tp2, size):
    """An artifact of one rank with one tensor of that many bytes, and its content."""
    content = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    (directory / "rank-0").mkdir(parents=True)
    name = "rank-0/target-part-00000.safetensors"
    file = PartFile(directory / name, [Stored("big", "U8", (size,))], lambda num_bytes: None)
    file.open()
    for at in range(0, size, 10_000_000):  # pieces that no block boundary falls together with
        file.write("big", at, content[at : at + 10_000_000])
    [(_, offset, digest)] = file.finish()
    made = replace(
        artifact_manifest.read(small_tp2), tp=1, has_draft=False, copied=(),
        files=(FileFacts(name, file.size),),
        tensors=(TensorFacts(0, "target", "big", name, offset, "U8", (size,), digest),),
    )  # fmt: skip
    (directory / artifact_manifest.NAME).write_text(made.render())
    return content


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_large_tensor_is_summed_by_blocks(small_tp2, tmp_path, extra):
    size = 2 * CHECKSUM_BLOCK_BYTES + extra
    content = big_tensor_artifact(tmp_path, small_tp2, size)
    block_sums = [
        checksum(content[at : at + CHECKSUM_BLOCK_BYTES])
        for at in range(0, size, CHECKSUM_BLOCK_BYTES)
    ]
    (tensor,) = artifact.read(tmp_path).manifest.tensors
    assert tensor.xxh3_128 == checksum("".join(block_sums).encode())
    for options in (SMALL_RING, LoaderOptions()):
        found, report = loaded_from_artifact(tmp_path, 0, "target", options)
        assert np.array_equal(found["big"], content)
        assert report.num_verified_bytes == size
    assert artifact.verify(artifact.read(tmp_path)).problems == ()


@pytest.mark.parametrize("place", [0, CHECKSUM_BLOCK_BYTES - 1, CHECKSUM_BLOCK_BYTES, -1])
def test_a_flipped_bit_is_found_in_every_block_of_a_large_tensor(small_tp2, tmp_path, place):
    big_tensor_artifact(tmp_path, small_tp2, 2 * CHECKSUM_BLOCK_BYTES + 5)
    (tensor,) = artifact.read(tmp_path).manifest.tensors
    with (tmp_path / tensor.file).open("r+b") as file:
        file.seek(tensor.offset + place % tensor.size)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(UserError, match="big: found checksum"):
        loaded_from_artifact(tmp_path, 0, "target")
    (problem,) = artifact.verify(artifact.read(tmp_path)).problems
    assert "big" in problem.where


def test_swapped_blocks_are_not_the_same_tensor():
    """Blocks are summed in order: two exchanged ones do not go unnoticed."""
    assert of_blocks(["a" * 32, "b" * 32]) != of_blocks(["b" * 32, "a" * 32])
    assert of_blocks(["a" * 32]) == "a" * 32


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
    monkeypatch.setitem(layout._LAYOUTS, Shuffled.id, Shuffled)
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
