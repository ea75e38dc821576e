"""A manifest says the same after a round trip, and whatever is wrong with one is named."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_mi300a import artifact_manifest
from sglang_mi300a.artifact_manifest import FileFacts, Manifest, TensorFacts
from sglang_mi300a.errors import UserError
from tests import repository

PATH = Path("out") / "manifest.json"
FILES = ("rank-0/target-part-00000.safetensors", "rank-1/target-part-00000.safetensors")


def manifest(**changes):
    tensors = tuple(
        TensorFacts(rank, "target", name, FILES[rank], offset, "BF16", (2, 3), "0" * 32)
        for rank in range(2)
        for name, offset in (("a", 4096), ("b", 4108))
    )
    whole = Manifest(
        tool_version="0.1.0",
        sglang="==0.5.18",
        architecture="Qwen3_5MoeForConditionalGeneration",
        sizes_xxh3_128="1" * 32,
        source_files=(FileFacts("model.safetensors", 100, "2" * 32),),
        source_data_xxh3_128="3" * 32,
        source_num_tensors=7,
        tp=2,
        ep=1,
        heads="replicated",
        text_only=True,
        has_draft=False,
        draft_requantised=False,
        layout="plain/1",
        neutralised_blocks=0,
        copied=(FileFacts("config.json", 2, "4" * 32),),
        files=tuple(FileFacts(name, 4120) for name in FILES),
        tensors=tensors,
    )
    return replace(whole, **changes)


def signed(data):
    """Render any data as a manifest whose own checksum is right."""
    data = {key: value for key, value in data.items() if key != "self_xxh3_128"}
    lines = [f' "{key}": {json.dumps(value)},' for key, value in data.items()]
    body = "{\n" + "\n".join(lines) + "\n"
    return f'{body} "self_xxh3_128": "{artifact_manifest.checksum(body.encode())}"\n}}\n'


def test_what_is_written_is_read_back(tmp_path):
    (tmp_path / "manifest.json").write_text(manifest().render())
    assert artifact_manifest.read(tmp_path) == manifest()
    assert artifact_manifest.is_artifact(tmp_path)


def test_its_text_is_json_with_the_keys_others_read():
    data = json.loads(manifest().render())
    assert (data["tp"], data["ep"], data["has_draft"], data["layout"]) == (2, 1, False, "plain/1")


def test_its_keys_are_those_that_are_documented():
    keys = set(json.loads(manifest().render()))
    page = (repository.ROOT / "docs" / "artifact.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {key for row in rows for key in re.findall("`(.*?)`", row)} == keys
    assert f"format version {artifact_manifest.VERSION}\n" in page
    text = artifact_manifest.__doc__.replace("self_xxh3_128``", "")
    assert all(re.search(rf"\b{key}\b", text) for key in keys - {"self_xxh3_128"})


def test_an_artifact_without_tensors_of_its_own_is_readable():
    empty = TensorFacts(0, "target", "z", FILES[0], 4120, "U8", (0, 32), "5" * 32)
    whole = manifest(tensors=(*manifest().tensors, empty))
    assert artifact_manifest.parse(whole.render(), PATH) == whole


@given(st.data())
def test_any_edit_is_refused(data):
    text = manifest().render()
    at = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.characters(codec="ascii"))
    edited = text[:at] + new + text[at + 1 :]
    if edited != text:
        with pytest.raises(UserError):
            artifact_manifest.parse(edited, PATH)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"tp": 4}, "checksum that does not match"),
        ({"version": 2}, "version 2"),
        ({"format": "else"}, "format 'else'"),
    ],
)
def test_an_edit_by_hand_is_named(edit, words):
    data = {**json.loads(manifest().render()), **edit}
    with pytest.raises(UserError, match=words):
        artifact_manifest.parse(json.dumps(data), PATH)


def row(**changes):
    names = ("rank", "part", "name", "file", "offset", "dtype", "shape", "digest")
    good = dict(zip(names, (0, "target", "a", 0, 4096, "BF16", [2, 3], "0" * 32), strict=True))
    return list({**good, **changes}.values())


def test_every_malformed_field_is_named():
    good = json.loads(manifest().render())
    rows = good["tensors"]
    cases = [
        ({"tp": 0}, "tp 0"),
        ({"tp": "2"}, "tp '2'"),
        ({"tp": True}, "tp True"),
        ({"ep": 3}, "ep a divisor"),
        ({"heads": "cut"}, "'cut'"),
        ({"text_only": 1}, "text_only 1"),
        ({"layout": None}, "layout None"),
        ({"neutralised_blocks": -1}, "neutralised_blocks -1"),
        ({"model": []}, r"model \[\]"),
        ({"source": {**good["source"], "files": {}}}, "source.files"),
        ({"files": [["a"]]}, r"files\[0\]"),
        ({"files": [["../a", 1]]}, "inside the artifact"),
        ({"files": [["/a", 1]]}, "inside the artifact"),
        ({"files": [["a\\b", 1]]}, "inside the artifact"),
        ({"files": [[FILES[0], 4120], [FILES[0], 4120]]}, "twice"),
        ({"copied": [["x/../../y", 1, ""]]}, "inside the artifact"),
        ({"tensors": [[1, 2]]}, "eight columns"),
        ({"tensors": [row(rank=2)]}, "rank 2"),
        ({"tensors": [row(part="both")]}, "'both'"),
        ({"tensors": [row(file=2)]}, "in file 2"),
        ({"tensors": [row(dtype="F4")]}, "'F4'"),
        ({"tensors": [row(shape=[2, -3])]}, "-3"),
        ({"tensors": [row(shape=6)]}, "shape 6"),
        ({"tensors": [row(offset=4109)]}, "a up to byte 4121"),
        ({"tensors": [row(digest=5)]}, "checksum 5"),
        ({"tensors": [row(), row()]}, "rank 0 target a twice"),
        ({"tensors": rows[:2]}, r"target tensors of ranks \[0\]"),
        ({"tensors": [row(), row(name="b", offset=4100)]}, "b at byte 4100 .* inside a|ranks"),
        ({"has_draft": True}, r"draft tensors of ranks \[\]"),
        ({"draft_requantised": True}, "draft_requantised without a draft"),
        ({"draft_requantised": "mxfp4"}, "draft_requantised 'mxfp4'"),
    ]
    for change, words in cases:
        with pytest.raises(UserError, match=words):
            artifact_manifest.parse(signed({**good, **change}), PATH)


def test_tensors_must_not_overlap():
    tensors = list(manifest().tensors)
    tensors[1] = replace(tensors[1], offset=4100)
    with pytest.raises(UserError, match="b at byte 4100 of rank-0/.* inside a"):
        artifact_manifest.parse(manifest(tensors=tuple(tensors)).render(), PATH)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON"),
        ("[]", "JSON of type list"),
        ('{"a": 1, "a": 2}', "key 'a' twice"),
        ("[" * 100_000, "no JSON|deeply"),
        ("{}", "format None"),
    ],
)
def test_what_is_no_manifest_is_refused(text, words):
    with pytest.raises(UserError, match=words):
        artifact_manifest.parse(text, PATH)


def test_an_unreadable_manifest_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        artifact_manifest.read(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(UserError, match="No such file"):
        artifact_manifest.read(tmp_path)
