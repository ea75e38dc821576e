"""``shard-weights`` writes the same bytes however it is run, and nothing that is not servable."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict

import numpy as np
import pytest

from sglang_mi300a import artifact_manifest, mxfp4
from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import part_files, reading
from sglang_mi300a.weights import shard as sharding
from sglang_mi300a.weights.progress_bar import ProgressBar
from tests import repository
from tests.weights import checkpoints
from tests.weights.checkpoints import SMALL_TEXT
from tests.weights.conftest import SMALL_PART_BYTES, content_of, make_checkpoint
from tests.weights.conftest import shard as shard_whole


def shard(model, out, **options):
    return shard_whole(model, out, **{"part_bytes": SMALL_PART_BYTES, **options})


def test_two_runs_write_the_same_bytes(small, small_tp2, tmp_path):
    """Also with other numbers of jobs, and nothing of time, host or path in the manifest."""
    shard(small, tmp_path / "again", tp=2, jobs=1)
    assert content_of(tmp_path / "again") == content_of(small_tp2)


def test_ranks_may_be_written_one_after_another(small, small_tp2, tmp_path):
    first = shard(small, tmp_path / "out", tp=2, ranks=[1])
    assert (first.missing_ranks, first.is_complete) == ((0,), False)
    assert not artifact_manifest.is_artifact(tmp_path / "out")
    second = shard(small, tmp_path / "out", tp=2, ranks=[0])
    assert second.is_complete
    assert content_of(tmp_path / "out") == content_of(small_tp2)


def test_a_finished_artifact_is_recognised(small, small_tp2, tmp_path):
    before = content_of(small_tp2)
    report = shard(small, small_tp2, tp=2)
    assert report.is_complete
    assert report.num_bytes_written == report.num_bytes_read == 0
    assert content_of(small_tp2) == before


def test_each_source_byte_is_read_once(small, tmp_path, monkeypatch):
    ranges = defaultdict(list)
    real = reading.Files.read

    def noting(self, path, offset, size, buffer):
        ranges[path].append((offset, offset + size))
        return real(self, path, offset, size, buffer)

    monkeypatch.setattr(reading.Files, "read", noting)
    report = shard(small, tmp_path / "out", tp=4, ep=2)
    assert set(ranges) == set(small.glob("*.safetensors"))
    for path, of_file in ranges.items():
        at = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        for start, stop in sorted(of_file):
            assert start == at, f"{path.name}: bytes {at} to {start} not once"
            at = stop
        assert at == path.stat().st_size
    all_bytes = sum(stop - start for of_file in ranges.values() for start, stop in of_file)
    assert report.num_bytes_read == all_bytes


def test_files_are_safetensors_with_aligned_data_and_bounded(small_tp2):
    from safetensors import safe_open

    manifest = artifact_manifest.read(small_tp2)
    weights = [file for file in manifest.files if file.name.endswith(".safetensors")]
    assert len(weights) > 4
    for file in weights:
        tensors = [t for t in manifest.tensors if t.file == file.name]
        with safe_open(small_tp2 / file.name, framework="pt") as opened:
            assert list(opened.keys()) == sorted(t.name for t in tensors)
        start = min(t.offset for t in tensors)
        assert start % 4096 == 0
        data = file.size - start
        assert data == sum(t.size for t in tensors)
        # Only a group that cannot be divided may exceed the bound.
        groups = {t.name.rpartition("_weight")[0] for t in tensors}
        assert data <= SMALL_PART_BYTES or len(groups) == 1


def test_checksums_are_those_of_the_bytes(small_tp2):
    for tensor in artifact_manifest.read(small_tp2).tensors:
        content = (small_tp2 / tensor.file).read_bytes()
        found = content[tensor.offset : tensor.offset + tensor.size]
        assert artifact_manifest.checksum(found) == tensor.xxh3_128


def test_the_source_is_identified_whatever_the_cut(small, small_tp2, tmp_path):
    shard(small, tmp_path / "ep", tp=4, ep=4)
    one, other = (artifact_manifest.read(d) for d in (small_tp2, tmp_path / "ep"))
    assert one.source_data_xxh3_128 == other.source_data_xxh3_128
    assert one.source_num_tensors == len(checkpoints.shapes(SMALL_TEXT))
    changed = make_checkpoint(tmp_path / "changed", seed=1)
    shard(changed, tmp_path / "changed-out", tp=1)
    third = artifact_manifest.read(tmp_path / "changed-out")
    assert third.source_data_xxh3_128 != one.source_data_xxh3_128


def test_the_draft_can_be_left_out(small, tmp_path):
    report = shard(small, tmp_path / "out", tp=1, draft=False)
    assert not report.has_draft
    manifest = artifact_manifest.read(tmp_path / "out")
    assert (manifest.has_draft, {t.part for t in manifest.tensors}) == (False, {"target"})


def test_a_checkpoint_without_mtp_makes_an_artifact_without_draft(tmp_path):
    model = make_checkpoint(tmp_path / "m", mtp=False)
    assert not shard(model, tmp_path / "out", tp=1).has_draft


VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 4,
    "patch_size": 2,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 128,
    "num_position_embeddings": 16,
}


def test_text_only_leaves_the_tower_out_and_says_so(tmp_path):
    tensors = checkpoints.shapes(SMALL_TEXT)
    tensors["model.visual.pos_embed.weight"] = ("BF16", (16, 32))
    config = checkpoints.config(SMALL_TEXT, vision=VISION)
    model = checkpoints.write(tmp_path / "m", config, tensors)
    shard(model, tmp_path / "out", tp=1, text_only=True)
    copied = json.loads((tmp_path / "out" / "config.json").read_text())
    assert copied == {**config, "language_model_only": True}
    assert artifact_manifest.read(tmp_path / "out").text_only
    with pytest.raises(UserError, match="no tensor model.visual.patch_embed|visual.patch_embed"):
        shard(model, tmp_path / "other", tp=1)


def test_small_files_are_copied_and_weights_are_not(small, small_tp2):
    names = {path.name for path in small_tp2.iterdir()}
    assert names == {"config.json", "manifest.json", "rank-0", "rank-1", "tokenizer.json"}
    assert (small_tp2 / "config.json").read_bytes() == (small / "config.json").read_bytes()


# -- scales ---------------------------------------------------------------------------------------

TOO_LARGE = mxfp4.EXACT_SCALE_MAX + 1
WEIGHT = "model.language_model.layers.1.mlp.experts.3.up_proj.weight"


def with_block(directory, scale, codes):
    """Write a checkpoint of which one block has this scale byte and these code bytes."""
    real = checkpoints.values

    def values(name, dtype, shape, seed):
        content = real(name, dtype, shape, seed)
        if name == f"{WEIGHT}_scale":
            content[9] = scale  # row 2, block 1 of 4
        if name == WEIGHT:
            content[9 * 16 : 10 * 16] = codes
        return content

    checkpoints.values = values
    try:
        return make_checkpoint(directory)
    finally:
        checkpoints.values = real


@pytest.mark.parametrize(
    ("scale", "codes", "words"),
    [
        (0xFF, 0x00, "1 blocks whose scale is NaN and 0 non-zero"),
        (0xFF, 0x11, "1 blocks whose scale is NaN"),
        (TOO_LARGE, 0x10, "0 blocks whose scale is NaN and 1 non-zero"),
        (TOO_LARGE, 0x01, f"with scale byte {TOO_LARGE}"),
    ],
)
def test_a_scale_that_cannot_be_decoded_exactly_is_refused(tmp_path, scale, codes, words):
    model = with_block(tmp_path / "m", scale, codes)
    with pytest.raises(UserError, match=words) as caught:
        shard(model, tmp_path / "out", tp=2)
    assert WEIGHT in str(caught.value)
    assert "first block 9 " in str(caught.value)
    assert not artifact_manifest.is_artifact(tmp_path / "out")


@pytest.mark.parametrize("zero", [0x00, 0x88])
def test_the_scale_of_an_all_zero_block_is_made_neutral_and_counted(tmp_path, zero):
    model = with_block(tmp_path / "m", TOO_LARGE, zero)
    report = shard(model, tmp_path / "out", tp=2)
    assert report.neutralised_blocks == 1
    manifest = artifact_manifest.read(tmp_path / "out")
    assert manifest.neutralised_blocks == 1
    stored = next(
        t for t in manifest.tensors if t.name == "model.layers.1.mlp.experts.w13_weight_scale"
    )
    content = np.fromfile(tmp_path / "out" / stored.file, np.uint8)[stored.offset :]
    # Expert 3 of rank 0: 64 gate rows, then up row 2, block 1, of 4 blocks a row.
    assert content[: stored.size].reshape(8, 128, 4)[3, 64 + 2, 1] == mxfp4.SCALE_ONE


# -- interruption ---------------------------------------------------------------------------------


def kill_points(model, reference, cases):
    """Return ``(calls made by the last attempt, what is wrong)`` for each case."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a kill loses no writes
    with tempfile.TemporaryDirectory(prefix="kill-points-", dir=in_memory) as scratch:
        there = shutil.copytree(model, f"{scratch}/model")
        ran = subprocess.run(
            [
                sys.executable,
                str(repository.ROOT / "tests/weights/kill_points.py"),
                *map(str, (there, reference, scratch)),
            ],
            input=json.dumps(cases),
            cwd=repository.ROOT,
            env={**os.environ, "PYTHONPATH": str(repository.ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    return [tuple(row) for row in json.loads(ran.stdout)]


@pytest.fixture(scope="module")
def num_calls(small, small_tp2):
    """System calls of a conversion that nothing interrupts."""
    [(calls, wrong)] = kill_points(small, small_tp2, [[]])
    assert wrong == ""
    assert calls > 200
    return calls


def test_a_run_killed_at_any_stage_is_taken_up_again(small, small_tp2, num_calls):
    """Each of the first and last calls, and calls all over the middle; the slow tests do all."""
    edges = [*range(1, 12), *range(num_calls - 17, num_calls + 1)]
    middle = [num_calls * n // 15 for n in range(1, 14)]
    cases = [[at] for at in (*edges, *middle)]
    rows = kill_points(small, small_tp2, cases)
    assert [wrong for _, wrong in rows if wrong] == []
    assert len(rows) == len(cases)
    # Later kills leave less to do: what was finished is kept.
    assert rows[cases.index([middle[-1]])][0] < rows[cases.index([middle[0]])][0]


@pytest.mark.slow
def test_a_run_killed_at_every_single_call_is_taken_up_again(small, small_tp2, num_calls):
    cases = [[at] for at in range(1, num_calls + 1)]
    rows = kill_points(small, small_tp2, cases)
    assert [wrong for _, wrong in rows if wrong] == []


@pytest.mark.slow
def test_a_run_killed_again_and_again_is_taken_up_again(small, small_tp2, num_calls):
    draw = random.Random(0)
    cases = [[draw.randint(1, num_calls) for _ in range(draw.randint(2, 5))] for _ in range(100)]
    rows = kill_points(small, small_tp2, cases)
    assert [wrong for _, wrong in rows if wrong] == []


def test_what_was_finished_is_not_made_again(small, tmp_path):
    out = tmp_path / "out"
    interrupt_after(small, out, 700_000)
    report = shard(small, out, tp=2)
    assert report.num_files_kept >= 2
    total = sum(file.size for file in artifact_manifest.read(out).files)
    assert report.num_bytes_written < 0.8 * total


def interrupt_after(model, out, num_bytes):
    """Run a conversion until that many bytes of weights are written, then fail it."""
    left = num_bytes

    def count(self, written):
        nonlocal left
        left -= written
        if left < 0:
            raise KeyboardInterrupt

    real, ProgressBar.advance = ProgressBar.advance, count
    try:
        with pytest.raises(KeyboardInterrupt):
            shard(model, out, tp=2, jobs=1)
    finally:
        ProgressBar.advance = real


def test_an_unfinished_run_of_another_cut_is_not_mixed_in(small, tmp_path):
    shard(small, tmp_path / "out", tp=2, ranks=[0])
    with pytest.raises(UserError, match="unfinished conversion that differs in tp"):
        shard(small, tmp_path / "out", tp=1)
    with pytest.raises(UserError, match="differs in ep, part_bytes"):
        shard(small, tmp_path / "out", tp=2, ep=2, part_bytes=1)


def test_a_failure_leaves_nothing_that_looks_finished(small, tmp_path, monkeypatch):
    real, calls = os.pwrite, []

    def full(descriptor, data, at):
        calls.append(at)
        if len(calls) > 50:
            raise OSError(28, "No space left on device")
        return real(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UserError, match="a write that failed .No space left"):
        shard(small, tmp_path / "out", tp=2)
    monkeypatch.undo()
    names = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert not [name for name in names if name.endswith(".tmp")]
    assert "manifest.json" not in names


def test_a_write_that_fails_in_the_background_is_not_lost(small, tmp_path, monkeypatch):
    """The kernel tells a failed write once; it may be the flusher who is told."""

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(part_files, "FLUSH_BYTES", 50_000)
    with pytest.raises(UserError, match="a write that failed .Input/output error"):
        shard(small, tmp_path / "out", tp=2)
    assert not artifact_manifest.is_artifact(tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.tmp"))
    monkeypatch.undo()
    assert shard(small, tmp_path / "out", tp=2).is_complete


def test_flushing_in_the_background_changes_nothing(small, small_tp2, tmp_path, monkeypatch):
    monkeypatch.setattr(part_files, "FLUSH_BYTES", 1)
    shard(small, tmp_path / "out", tp=2)
    assert content_of(tmp_path / "out") == content_of(small_tp2)


SHARD_WITH_A_LIMIT = """
import resource, sys
from sglang_mi300a.errors import UserError
from sglang_mi300a.weights.shard import shard_weights
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    shard_weights(sys.argv[1], sys.argv[2], tp=2, part_bytes=200_000, sglang="==0.5.18")
except UserError as error:
    print(error)
"""


def test_writes_that_really_fail_are_told_and_the_run_can_be_repeated(small, small_tp2, tmp_path):
    """A limit on the size of files stands in for a full disk: the kernel refuses the write."""
    out = tmp_path / "out"
    ran = subprocess.run(
        [sys.executable, "-c", SHARD_WITH_A_LIMIT, str(small), str(out)],
        cwd=repository.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{out}: found a write that failed (File too large)" in ran.stdout
    assert "repeating the command goes on from here" in ran.stdout
    assert not artifact_manifest.is_artifact(out)
    assert not list(out.rglob("*.tmp"))
    shard(small, out, tp=2)
    assert content_of(out) == content_of(small_tp2)


@pytest.mark.parametrize("out", ["/proc/self", "/proc/self/artifact"])
def test_a_directory_that_takes_no_files_is_refused(small, out):
    """Not even root can write there."""
    with pytest.raises(UserError, match=f"{out}: found (a write that failed|no directory can be)"):
        shard(small, out, tp=1)


# -- refusals -------------------------------------------------------------------------------------


def test_another_artifact_is_not_overwritten(small, small_tp2):
    with pytest.raises(UserError, match="complete artifact that differs in heads, layout|tp"):
        shard(small, small_tp2, tp=1)


def test_a_directory_with_other_files_is_refused(small, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="1 other files, first notes.txt"):
        shard(small, tmp_path, tp=1)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_checkpoint_itself_is_no_output(small):
    with pytest.raises(UserError, match="the checkpoint's own directory"):
        shard(small, small, tp=1)


def test_an_artifact_is_no_checkpoint(small_tp2, tmp_path):
    with pytest.raises(UserError, match="found an artifact of shard-weights"):
        shard(small_tp2, tmp_path / "out", tp=2)


def test_a_full_disk_is_noticed_before_anything_is_written(small, tmp_path, monkeypatch):
    usage = sharding.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(sharding.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="0.0 GB free"):
        shard(small, tmp_path / "out", tp=1)
    assert not list((tmp_path / "out").glob("rank-*"))


@pytest.mark.parametrize("ranks", [[], [2], [-1, 0]])
def test_ranks_that_do_not_exist_are_refused(small, tmp_path, ranks):
    with pytest.raises(UserError, match="--ranks"):
        shard(small, tmp_path / "out", tp=2, ranks=ranks)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tp": 0}, "TP 0, EP 1"),
        ({"tp": 3}, "sizes that do not divide: .*num_attention_heads = 4 over 3"),
        ({"tp": 2, "jobs": 0}, "jobs: found 0"),
        ({"tp": 2, "part_bytes": 0}, "part_bytes: found 0"),
        ({"tp": 2, "layout": "stream/9"}, "layout 'stream/9'"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(small, tmp_path, options, words):
    with pytest.raises(UserError, match=words):
        shard(small, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_an_unused_tensor_stops_the_conversion_unless_ignored(tmp_path):
    tensors = {**checkpoints.shapes(SMALL_TEXT), "model.extra.bias": ("BF16", (4,))}
    model = checkpoints.write(tmp_path / "m", checkpoints.config(SMALL_TEXT), tensors)
    with pytest.raises(UserError, match="1 tensors that the model has no place for.*extra.bias"):
        shard(model, tmp_path / "out", tp=1)
    assert shard(model, tmp_path / "out", tp=1, ignore=["*.bias"]).is_complete


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda content: content[:-3], "found .* bytes; supported: .* bytes, where .* ends"),
        (lambda content: content + b"xy", "found 2 bytes after the last tensor"),
        (lambda content: b"", "found 0 bytes; supported: at least the 8 bytes"),
        (lambda content: content.replace(b'"BF16"', b'"F4"  ', 1), "found .* of dtype 'F4'"),
    ],
)
def test_a_damaged_checkpoint_is_refused_before_anything_is_written(small, tmp_path, edit, words):
    model = shutil.copytree(small, tmp_path / "m")
    path = model / "model-00002-of-00003.safetensors"
    path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(UserError, match=f"model-00002-of-00003.safetensors: {words}"):
        shard(model, tmp_path / "out", tp=2)
    assert not (tmp_path / "out").exists()


def test_pickled_weights_are_not_read(small, tmp_path):
    model = shutil.copytree(small, tmp_path / "m")
    for path in model.glob("*.safetensors*"):
        path.unlink()
    (model / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(UserError, match="no .*.safetensors file"):
        shard(model, tmp_path / "out", tp=1)


# -- what must work -------------------------------------------------------------------------------


def test_a_download_made_of_links_is_a_checkpoint(small, small_tp2, tmp_path):
    """As a hub's cache lays it out: names that link into a folder of blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "a1b2 [main]"
    shutil.copytree(small, blobs)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(blobs.iterdir())):
        blob = path.rename(blobs / f"blob-{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")
    shard(snapshot, tmp_path / "out", tp=2)
    assert content_of(tmp_path / "out") == content_of(small_tp2)
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


def test_an_empty_tensor_in_a_checkpoint_is_no_obstacle(small_tp2, tmp_path):
    tensors = {"model.empty": ("U8", (0, 32)), **checkpoints.shapes(SMALL_TEXT)}
    tensors["model.also_empty"] = ("BF16", (3, 0))
    model = checkpoints.write(tmp_path / "m", checkpoints.config(SMALL_TEXT), tensors)
    shard(model, tmp_path / "out", tp=2)
    found, other = (artifact_manifest.read(d) for d in (tmp_path / "out", small_tp2))
    assert found.tensors == other.tensors


# -- refusals of configurations -------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_an_unreadable_config_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match="config.json: found no JSON"):
        shard(tmp_path, tmp_path / "out", tp=1)


# -- looks -----------------------------------------------------------------------------


def test_the_bar_shows_on_stderr_only_when_asked_or_at_a_terminal(small, tmp_path, capsys):
    shard(small, tmp_path / "quiet", tp=1)
    assert capsys.readouterr() == ("", "")
    shard(small, tmp_path / "asked", tp=1, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "shard-weights: 100%" in shown.err
