"""Damage to an artifact is found, and named by file and tensor."""

import re
import shutil

import pytest

from sglang_mi300a import artifact_manifest
from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import artifact
from tests.weights.conftest import shard


@pytest.fixture
def copy(small_tp2, tmp_path):
    """A copy in a path with blanks and brackets."""
    return shutil.copytree(small_tp2, tmp_path / "an artifact [v 1]")


@pytest.fixture
def part(copy):
    return copy / "rank-1" / "target-part-00000.safetensors"


def check(directory, rank=1):
    return artifact.check_files(artifact.read(directory), rank, "target")


def verify(directory, **options):
    return artifact.verify(artifact.read(directory), **options)


def problems(directory, **options):
    return [str(problem) for problem in verify(directory, **options).problems]


def test_an_intact_artifact_passes(copy):
    tensors = artifact_manifest.read(copy).tensors
    told = []
    found = verify(copy, advance=told.append)
    assert found.problems == ()
    assert found.num_bytes == sum(told) == sum(t.size for t in tensors)
    assert found.num_tensors == len(tensors)
    assert verify(copy, ranks=[0]).num_bytes == artifact.num_bytes(artifact.read(copy), [0])
    assert {t.rank for t in check(copy)} == {1}


def test_one_flipped_bit_is_found_in_its_tensor(copy, part):
    tensor = next(t for t in check(copy) if t.file.endswith("target-part-00001.safetensors"))
    path = copy / tensor.file
    content = bytearray(path.read_bytes())
    content[tensor.offset + tensor.size // 2] ^= 4
    path.write_bytes(content)
    (problem,) = problems(copy)
    assert re.search(f"{tensor.name}: found checksum .* by the manifest", problem)
    assert problems(copy, ranks=[0]) == []


def test_every_problem_is_told_not_only_the_first(copy, part):
    tensors = [t for t in check(copy) if t.file.endswith("target-part-00001.safetensors")]
    path = copy / tensors[0].file
    content = bytearray(path.read_bytes())
    for tensor in tensors[:3]:
        content[tensor.offset] ^= 1
    path.write_bytes(content)
    part.write_bytes(part.read_bytes()[:-1])
    (copy / "tokenizer.json").unlink()
    found = verify(copy)
    named = [problem.where for problem in found.problems]
    assert named == [
        str(copy / "tokenizer.json"),
        str(part),
        *(f"{path}: {tensor.name}" for tensor in tensors[:3]),
    ]
    assert found.num_tensors < len(artifact_manifest.read(copy).tensors)


def test_a_truncated_part_is_found(copy, part):
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(UserError, match="target-part-00000.safetensors: found .* bytes; supported"):
        check(copy)


def test_trailing_bytes_are_found(copy, part):
    part.write_bytes(part.read_bytes() + b"x")
    with pytest.raises(UserError, match="bytes by the manifest"):
        check(copy)


def test_a_missing_part_is_found(copy, part):
    part.unlink()
    with pytest.raises(UserError, match="target-part-00000.safetensors: found not readable"):
        check(copy)


def test_a_damaged_header_is_found(copy, part):
    content = bytearray(part.read_bytes())
    content[9] ^= 1
    part.write_bytes(content)
    with pytest.raises(UserError, match="target-part-00000.safetensors"):
        check(copy)


def test_a_tensor_under_another_name_is_found(copy, part):
    part.write_bytes(part.read_bytes().replace(b"embed_tokens", b"embed_tokenz", 1))
    with pytest.raises(UserError, match="found no tensor model.embed_tokens.weight"):
        check(copy)


def test_a_tensor_of_another_type_is_found(copy, part):
    part.write_bytes(part.read_bytes().replace(b'"BF16"', b'"F16" ', 1))
    with pytest.raises(UserError, match="embed_tokens.weight as F16 .* BF16 .* by the manifest"):
        check(copy)


def test_a_stray_weight_file_is_found(copy, part):
    shutil.copy(part, part.with_name("target-part-00099.safetensors"))
    with pytest.raises(UserError, match="target-part-00099.safetensors: found a weight file that"):
        check(copy)


@pytest.mark.parametrize("place", ["model.safetensors", "rank-1/notes.safetensors"])
def test_a_stray_weight_file_is_found_wherever_it_lies(copy, part, place):
    shutil.copy(part, copy / place)
    with pytest.raises(UserError, match=f"{place}: found a weight file that the manifest"):
        check(copy)
    assert f"{place}: found a weight file" in problems(copy)[0]


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "tokenizer.json"])
def test_a_link_out_of_the_artifact_is_refused_for_small_files_too(copy, name, tmp_path):
    shutil.move(copy / name, tmp_path / "elsewhere")
    (copy / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{name}: found a link to .*elsewhere"):
        check(copy)
    assert any(f"{name}: found a link to" in problem for problem in problems(copy))


def test_a_link_inside_the_artifact_is_followed(copy, part):
    part.rename(copy / "rank-1" / "elsewhere")
    part.symlink_to("elsewhere")
    assert check(copy)
    assert problems(copy) == []


def test_a_link_to_itself_is_refused(copy, part):
    part.unlink()
    part.symlink_to(part.name)
    with pytest.raises(UserError, match="target-part-00000.safetensors: found "):
        check(copy)


def test_a_link_out_of_the_artifact_is_refused(copy, part, tmp_path):
    shutil.move(part, tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="found a link to .*elsewhere"):
        check(copy)


def test_a_directory_in_place_of_a_file_is_refused(copy, part):
    part.unlink()
    part.mkdir()
    with pytest.raises(UserError, match="no regular file"):
        check(copy)


def test_a_changed_copy_is_found(copy):
    text = (copy / "config.json").read_text()
    (copy / "config.json").write_text(text.replace("128", "129", 1))
    (problem,) = problems(copy)
    assert "config.json: found other content than was copied" in problem


def test_an_edited_manifest_is_refused(copy):
    path = copy / "manifest.json"
    path.write_text(path.read_text().replace('"tp": 2', '"tp": 1'))
    with pytest.raises(UserError, match="checksum that does not match the rest"):
        artifact.read(copy)


def test_an_artifact_may_be_moved(small, copy, tmp_path):
    moved = shutil.move(copy, tmp_path / "moved")
    assert problems(moved) == []
    assert shard(small, moved, tp=2).num_bytes_written == 0
