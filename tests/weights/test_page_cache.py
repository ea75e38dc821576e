"""After a load the page cache holds nothing of the weights, and everything of other files."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sglang_mi300a.rank_agreement import on_every_rank
from sglang_mi300a.weights import artifact, checkpoint, filling, page_cache, part_files
from sglang_mi300a.weights.loader_options import LoaderOptions
from sglang_mi300a.weights.part_files import Flusher, PartFile
from sglang_mi300a.weights.plan import Placement
from sglang_mi300a.weights.steps import Stored
from tests import repository
from tests.foundation.test_rank_agreement import Together
from tests.weights.conftest import ArraySink
from tests.weights.residency import drops_pages, resident_bytes
from tests.weights.test_filling import loaded_from_checkpoint

OPTIONS = LoaderOptions(ring_bytes=2 * (80 << 10), threads=2)


@pytest.fixture
def disk(tmp_path):
    """A fresh directory on a file system whose pages can be dropped."""
    for place in (tmp_path, Path("/var/tmp"), repository.ROOT / "build"):
        if place.is_dir() and os.access(place, os.W_OK):
            directory = Path(tempfile.mkdtemp(dir=place, prefix="page-cache-"))
            if drops_pages(directory):
                yield directory
                shutil.rmtree(directory)
                return
            shutil.rmtree(directory)
    pytest.skip("no file system here gives pages back (all tmpfs?): page cache not tested")


def copied(source, target):
    """Copy a directory so that the page cache holds all of the copy, durably written."""
    shutil.copytree(source, target)
    files = [path for path in target.rglob("*") if path.is_file()]
    for path in files:
        with path.open("r+b") as file:
            os.fdatasync(file.fileno())
    assert all(resident_bytes(path) >= path.stat().st_size for path in files)
    return target


@pytest.fixture
def bystander(disk):
    """A file of somebody else, in use."""
    path = disk / "bystander.bin"
    path.write_bytes(b"y" * 300_000)
    with path.open("r+b") as file:
        os.fdatasync(file.fileno())
    size = resident_bytes(path)
    assert size >= 300_000
    yield path
    assert resident_bytes(path) == size


def no_direct_reads(monkeypatch):
    real = os.open

    def refuse(name, flags, *rest, **more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct I/O here")
        return real(name, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)


def load(directory, rank, part="target"):
    found = artifact.read(directory)
    tensors = artifact.check_files(found, rank, part)
    filling.from_artifact(found, tensors, ArraySink(tensors), OPTIONS)
    return {found.path(tensor) for tensor in tensors}


def test_what_was_copied_here_before_is_gone_after_a_load(small_tp2, disk, bystander):
    directory = copied(small_tp2, disk / "artifact")
    files = load(directory, 0)
    page_cache.drop(files)
    assert sum(resident_bytes(path) for path in files) == 0
    of_rank_1 = directory / "rank-1" / "target-part-00000.safetensors"
    assert resident_bytes(of_rank_1) >= of_rank_1.stat().st_size  # its own rank will see to that


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "buffered"])
def test_a_load_by_itself_would_leave_something(small_tp2, disk, monkeypatch, direct):
    """The control: headers are read through the page cache, and stay there until dropped."""
    directory = copied(small_tp2, disk / "artifact")
    everything = [path for path in directory.rglob("*") if path.is_file()]
    page_cache.drop(everything)
    assert sum(resident_bytes(path) for path in everything) == 0
    if not direct:
        no_direct_reads(monkeypatch)
    files = load(directory, 0)
    if direct:
        assert sum(resident_bytes(path) for path in files) > 0
    page_cache.drop(files)
    assert sum(resident_bytes(path) for path in files) == 0


def test_ranks_that_read_the_same_files_at_their_own_pace_leave_nothing(
    small, disk, bystander, monkeypatch
):
    """Straight from a checkpoint every rank reads every file; here through the page cache."""
    model = copied(small, disk / "model")
    no_direct_reads(monkeypatch)
    together = Together(3)
    seen_by_last = threading.Event()

    def of_rank(rank):
        gather = together.of(rank)
        with on_every_rank(gather):
            files = {tensor.file for tensor in checkpoint.read(model).tensors.values()}
        with on_every_rank(gather):
            if rank == 2:
                seen_by_last.wait(10)  # starts when the others are through
            loaded_from_checkpoint(model, Placement(4, 1, rank), "target", OPTIONS)
            if rank == 0:
                seen_by_last.set()
        page_cache.drop(files)
        return files

    with ThreadPoolExecutor(3) as pool:
        files = set().union(*pool.map(of_rank, range(3)))
    assert files == set(model.glob("*.safetensors"))
    assert sum(resident_bytes(path) for path in files) == 0


def test_a_conversion_leaves_neither_its_input_nor_its_output(small, disk, bystander):
    """With fsync as it is: dirty pages could not be dropped."""
    model = copied(small, disk / "model")
    page_cache.drop(model.iterdir())
    program = (
        "import sys; from sglang_mi300a.weights.shard import shard_weights; "
        "shard_weights(sys.argv[1], sys.argv[2], tp=2, sglang='==0.5.18')"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(model), str(disk / "out")],
        cwd=repository.ROOT,
        check=True,
    )
    weights = [*model.glob("*.safetensors"), *(disk / "out").rglob("*.safetensors")]
    assert len(weights) > 3
    left = sum(resident_bytes(path) for path in weights)
    assert left <= 0.02 * sum(path.stat().st_size for path in weights)


def test_a_file_that_is_gone_is_no_reason_to_stop(disk, bystander):
    page_cache.drop([disk / "absent", disk])
    assert not (disk / "absent").exists()


def test_a_file_being_written_is_sent_to_the_disk_as_it_grows(disk, bystander, monkeypatch):
    """Its content is whole, and little of it is held in memory at any time."""
    monkeypatch.setattr(part_files, "FLUSH_BYTES", 1 << 20)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    size = 24 << 20
    content = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    held = []
    with Flusher() as flusher:
        stored = [Stored("w", "U8", (size,))]
        file = PartFile(disk / "part.safetensors", stored, lambda num_bytes: None, flusher)
        file.open()
        for at in range(0, size, 1 << 20):
            file.write("w", at, content[at : at + (1 << 20)])
            time.sleep(0.02)
            held.append(resident_bytes(file.temporary))
        [(_, offset, _)] = file.finish()
    written = np.fromfile(disk / "part.safetensors", np.uint8)
    assert np.array_equal(written[offset:], content)
    # The disk is shared: how far the flusher is behind varies, that it follows does not.
    assert min(held[8:]) < size // 3
