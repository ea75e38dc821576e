"""Read layer by layer, a checkpoint gives the logits that it gives when it is read whole."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_mi300a import whole_files
from sglang_mi300a.accuracy.stored_tensors import StoredTensors
from sglang_mi300a.accuracy.streamed_reference import StreamedReference
from sglang_mi300a.accuracy.transformers_reference import TransformersReference
from sglang_mi300a.errors import UserError
from sglang_mi300a.tiny_model import MOE_BF16, MOE_MXFP4
from tests.weights.residency import resident_bytes

ROWS = [[(37 * at + 11 * row) % 1200 for at in range(24)] for row in range(3)]
POSITIONS = [0, 15, 23]


def changed(checkpoint, folder, change):
    """A copy of a checkpoint with its one weight file's tensors changed."""
    copy = folder / "changed"
    shutil.copytree(checkpoint, copy)
    for path in copy.glob("*.safetensors"):
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})
    index = copy / "model.safetensors.index.json"
    if index.is_file():
        names = {name for path in copy.glob("*.safetensors") for name in load_file(path)}
        data = json.loads(index.read_text())
        data["weight_map"] = {k: v for k, v in data["weight_map"].items() if k in names}
        index.write_text(json.dumps(data))
    return copy


@pytest.mark.parametrize("kind", [MOE_MXFP4, MOE_BF16])
def test_it_gives_the_logits_of_the_whole_model(checkpoints, kind):
    whole = TransformersReference(checkpoints[kind])
    expected = torch.stack([whole.logits(row)[POSITIONS] for row in ROWS])
    done = []
    found = StreamedReference(checkpoints[kind]).logits(ROWS, POSITIONS, done.append)
    assert found.shape == expected.shape
    assert sum(done) == len(done) > 1
    # The same float32 products, of a batch instead of one row.
    assert torch.allclose(found, expected, atol=2e-4, rtol=0)
    assert (expected.max() - expected.min()) > 1


def test_a_second_pass_gives_the_same_and_no_weights_stay(checkpoints):
    reference = StreamedReference(checkpoints[MOE_MXFP4])
    first = reference.logits(ROWS, POSITIONS)
    kept = {p.device.type for layer in reference._model.model.layers for p in layer.parameters()}
    assert kept == {"meta"}
    assert torch.equal(first, reference.logits(ROWS, POSITIONS))


def test_what_was_read_is_forgotten_and_leaves_the_page_cache(checkpoints):
    files = sorted(checkpoints[MOE_MXFP4].glob("*.safetensors"))
    for path in files:
        whole_files.sync(path)  # what is not on disk yet stays in the cache
    stored = StoredTensors(checkpoints[MOE_MXFP4])
    for name in stored.names():
        if not name.endswith("_scale"):
            stored.rows(name)
    size = sum(path.stat().st_size for path in files)
    assert sum(map(resident_bytes, files)) > size / 2
    stored.forget()
    mapped = {os.path.realpath(link) for link in Path("/proc/self/map_files").glob("*")}
    assert not mapped & {os.path.realpath(path) for path in files}
    assert sum(map(resident_bytes, files)) == 0


def test_every_layer_is_forgotten_once_it_has_run(checkpoints, monkeypatch):
    forgotten, reference = [], StreamedReference(checkpoints[MOE_MXFP4])
    monkeypatch.setattr(reference._stored, "forget", lambda: forgotten.append(1))
    reference.logits(ROWS, POSITIONS)
    assert len(forgotten) == reference.num_layers + 1


def test_one_changed_expert_weight_changes_the_logits(checkpoints, tmp_path):
    def flip(tensors):
        for name, tensor in tensors.items():
            if tensor.dtype == torch.uint8 and name.endswith(".experts.0.down_proj.weight"):
                tensor ^= 8  # the sign of every second element

    other = changed(checkpoints[MOE_MXFP4], tmp_path, flip)
    found = StreamedReference(other).logits(ROWS, POSITIONS)
    assert not torch.allclose(
        found, StreamedReference(checkpoints[MOE_MXFP4]).logits(ROWS, POSITIONS)
    )


def test_a_missing_expert_is_named(checkpoints, tmp_path):
    def drop(tensors):
        for name in [name for name in tensors if ".layers.1.mlp.experts.3.up_proj" in name]:
            del tensors[name]

    other = changed(checkpoints[MOE_MXFP4], tmp_path, drop)
    with pytest.raises(UserError, match=r"1 tensors missing, first .*experts\.3\.up_proj\.weight"):
        StreamedReference(other)


def test_weights_of_another_config_are_refused(checkpoints, tmp_path):
    def narrow(tensors):
        for name in [name for name in tensors if name.endswith("layers.1.mlp.gate.weight")]:
            tensors[name] = tensors[name][:, :-1].contiguous()

    other = changed(checkpoints[MOE_MXFP4], tmp_path, narrow)
    with pytest.raises(UserError, match=r"mlp\.gate\.weight.*config\.json"):
        StreamedReference(other).logits(ROWS, POSITIONS)


def test_a_scale_that_is_no_number_is_refused(checkpoints, tmp_path):
    def spoil(tensors):
        for name in tensors:
            if name.endswith("layers.0.mlp.experts.1.gate_proj.weight_scale"):
                tensors[name][0, 0] = 0xFF

    other = changed(checkpoints[MOE_MXFP4], tmp_path, spoil)
    with pytest.raises(UserError, match="1 NaN scales"):
        StreamedReference(other).logits([list(range(200))], [0])


def test_rows_of_unequal_length_are_a_mistake(checkpoints):
    with pytest.raises(ValueError, match="not all equal"):
        StreamedReference(checkpoints[MOE_MXFP4]).logits([[1, 2], [1]], [0])


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(UserError, match="no config.json"):
        StreamedReference(tmp_path)
