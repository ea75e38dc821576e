"""A checkpoint is read by its index, or not at all if index and files disagree."""

import json
import shutil

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import checkpoint
from tests.weights.checkpoints import file_bytes

ONE = ("U8", (1,), b"x")


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of two files in a path with blanks and brackets."""
    directory = tmp_path / "a model [v 1]"
    directory.mkdir()
    for number, names in ((1, "ab"), (2, "c")):
        path = directory / f"model-{number:05d}-of-00002.safetensors"
        path.write_bytes(file_bytes(dict.fromkeys(names, ONE)))
    return directory


def index(folder, weight_map):
    (folder / checkpoint.INDEX).write_text(json.dumps({"weight_map": weight_map}))


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
WHOLE = {"a": FIRST, "b": FIRST, "c": SECOND}


def test_every_tensor_is_found_where_the_index_says(folder):
    index(folder, WHOLE)
    found = checkpoint.read(folder)
    assert {name: t.file.name for name, t in found.tensors.items()} == WHOLE
    for tensor in found.tensors.values():
        assert tensor.file.read_bytes()[tensor.offset : tensor.offset + 1] == b"x"
    assert [file.name for file in found.files] == [FIRST, SECOND]


def test_a_stray_file_beside_indexed_ones_is_not_read(folder):
    index(folder, WHOLE)
    (folder / "model.safetensors").write_bytes(file_bytes({"a": ONE, "stray": ONE}))
    assert set(checkpoint.read(folder).tensors) == {"a", "b", "c"}


def test_a_complete_numbered_series_needs_no_index(folder):
    (folder / "other.safetensors").write_bytes(b"junk")
    assert set(checkpoint.read(folder).tensors) == {"a", "b", "c"}


def test_a_single_file_needs_no_index(tmp_path):
    (tmp_path / "weights.safetensors").write_bytes(file_bytes({"a": ONE}))
    assert set(checkpoint.read(tmp_path).tensors) == {"a"}


def test_a_link_into_a_download_cache_is_followed(folder, tmp_path):
    shutil.move(folder / FIRST, tmp_path / "blob")
    (folder / FIRST).symlink_to(tmp_path / "blob")
    index(folder, WHOLE)
    assert set(checkpoint.read(folder).tensors) == {"a", "b", "c"}


def test_an_index_of_absent_files_is_stale_if_the_present_ones_hold_everything(folder):
    index(folder, {"a": "part-1.safetensors", "b": "part-2.safetensors", "c": "part-3.safetensors"})
    with pytest.raises(UserError, match="3 files that are not there.*stale"):
        checkpoint.read(folder)


def test_an_absent_file_is_missing_if_its_tensors_are_nowhere(folder):
    index(folder, {**WHOLE, "d": "model-00003-of-00003.safetensors"})
    with pytest.raises(UserError, match="1 tensors are nowhere, first d.*finish the download"):
        checkpoint.read(folder)


def test_a_tensor_in_another_file_than_the_index_says_is_refused(folder):
    index(folder, {**WHOLE, "a": SECOND})
    with pytest.raises(UserError, match=f"a said to be in {SECOND}; it is in {FIRST}.*stale"):
        checkpoint.read(folder)


def test_a_tensor_that_no_file_holds_is_refused(folder):
    index(folder, {**WHOLE, "d": SECOND})
    with pytest.raises(UserError, match="d said to be in .*; no file holds it"):
        checkpoint.read(folder)


def test_a_tensor_in_two_files_is_refused(folder):
    (folder / SECOND).write_bytes(file_bytes({"a": ONE, "c": ONE}))
    index(folder, WHOLE)
    with pytest.raises(UserError, match=f"{SECOND}: found tensor a, which {FIRST} holds too"):
        checkpoint.read(folder)


def test_a_half_finished_download_is_refused(folder):
    (folder / FIRST).unlink()
    (folder / "model-00003-of-00002.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="number 1 is missing.*finish the download"):
        checkpoint.read(folder)


def test_several_files_of_no_series_need_an_index(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(file_bytes({name: ONE}))
    with pytest.raises(UserError, match=r"2 \*.safetensors files and no model.safetensors.index"):
        checkpoint.read(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no \*.safetensors file"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[]", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "plain file names"),
        ('{"weight_map": {"a": 1}}', "plain file names"),
    ],
)
def test_a_malformed_index_is_refused(folder, text, words):
    (folder / checkpoint.INDEX).write_text(text)
    with pytest.raises(UserError, match=words):
        checkpoint.read(folder)
