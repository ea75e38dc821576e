"""Two writers never share a rank of an output directory."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.process_identity import myself
from sglang_mi300a.weights import output_lock
from sglang_mi300a.weights.output_lock import OutputLock
from tests import repository
from tests.weights.conftest import SMALL_PART_BYTES, content_of, shard

LOCK = ".shard-weights-rank-0.lock"


def test_the_second_is_refused_and_told_who_holds_it(tmp_path):
    with OutputLock(tmp_path, "rank-0"):
        holder = json.loads((tmp_path / LOCK).read_text())
        words = f"process {holder['pid']} on {holder['host']}"
        with pytest.raises(UserError, match=words), OutputLock(tmp_path, "rank-0"):
            pass
    with OutputLock(tmp_path, "rank-0"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_conversion_into_a_held_directory_is_refused(small, tmp_path):
    with (
        OutputLock(tmp_path, "rank-0"),
        pytest.raises(UserError, match="one shard-weights at a time"),
    ):
        shard(small, tmp_path, tp=1)


def test_other_ranks_may_be_written_at_the_same_time(small, small_tp2, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with OutputLock(out, "rank-1"):
        assert shard(small, out, tp=2, ranks=[0], part_bytes=SMALL_PART_BYTES).missing_ranks == (1,)
    assert shard(small, out, tp=2, ranks=[1], part_bytes=SMALL_PART_BYTES).is_complete
    assert content_of(out) == content_of(small_tp2)


WRITE = """
import sys
from sglang_mi300a.weights.shard import shard_weights
model, out, rank, part_bytes = sys.argv[1:]
shard_weights(model, out, tp=2, ranks=[int(rank)], sglang="==0.5.18", part_bytes=int(part_bytes))
"""


def test_two_processes_that_share_the_work_make_the_same_artifact(small, small_tp2, tmp_path):
    out = tmp_path / "out"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, str(small), str(out), rank, str(SMALL_PART_BYTES)],
            cwd=repository.ROOT,
        )
        for rank in ("0", "1")
    ]
    assert [process.wait() for process in running] == [0, 0]
    assert content_of(out) == content_of(small_tp2)


def test_two_processes_for_one_rank_are_one_too_many(small, small_tp2, tmp_path):
    """Whichever comes second is refused, or finds the work done; the result is one artifact."""
    out = tmp_path / "out"
    shard(small, out, tp=2, ranks=[1], part_bytes=SMALL_PART_BYTES)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, str(small), str(out), "0", str(SMALL_PART_BYTES)],
            cwd=repository.ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    errors = [process.communicate()[1] for process in running]
    assert any(process.returncode == 0 for process in running)
    for process, error in zip(running, errors, strict=True):
        assert process.returncode == 0 or "one shard-weights at a time for rank-0" in error
    assert content_of(out) == content_of(small_tp2)


LEAVE = """
import os, sys
from pathlib import Path
from sglang_mi300a.weights import output_lock
from sglang_mi300a.weights.output_lock import OutputLock
OutputLock(Path(sys.argv[1]), "rank-0").__enter__()
os.kill(os.getpid(), 9)
"""


def test_a_killed_holder_of_this_boot_is_succeeded(tmp_path):
    subprocess.run([sys.executable, "-c", LEAVE, str(tmp_path)], cwd=repository.ROOT, check=False)
    assert (tmp_path / LOCK).exists()
    with OutputLock(tmp_path, "rank-0"):
        pass
    assert not (tmp_path / LOCK).exists()


def test_a_file_left_by_another_machine_is_respected(tmp_path):
    left = {"host": "node-7", "boot_id": "other", "pid": 12, "start_ticks": 34}
    (tmp_path / LOCK).write_text(json.dumps(left))
    with (
        pytest.raises(UserError, match="process 12 on node-7.*delete"),
        OutputLock(tmp_path, "rank-0"),
    ):
        pass
    assert json.loads((tmp_path / LOCK).read_text()) == left


def test_an_empty_file_left_by_a_kill_is_taken_over(tmp_path):
    (tmp_path / LOCK).touch()
    with OutputLock(tmp_path, "rank-0"):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] > 0


# -- a file system without kernel locks -----------------------------------------------------------


@pytest.fixture
def no_kernel_locks(monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOSYS, "no locks on this mount")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    monkeypatch.setattr(output_lock, "_SETTLE_S", 0.01)


def test_without_kernel_locks_a_living_holder_is_respected(tmp_path, no_kernel_locks):
    with OutputLock(tmp_path, "rank-0"):
        words = f"held by process {os.getpid()}"
        with pytest.raises(UserError, match=words), OutputLock(tmp_path, "rank-0"):
            pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"start_ticks": 0}], ids=["gone", "reused"])
def test_without_kernel_locks_a_dead_holder_is_succeeded(tmp_path, no_kernel_locks, change):
    left = replace(myself(), **change)
    (tmp_path / LOCK).write_text(json.dumps(asdict(left)))
    with OutputLock(tmp_path, "rank-0"):
        assert json.loads((tmp_path / LOCK).read_text()) == asdict(myself())


def test_without_kernel_locks_the_later_of_two_signatures_stays(
    tmp_path, no_kernel_locks, monkeypatch
):
    other = replace(myself(), pid=1)
    monkeypatch.setattr(
        output_lock.time, "sleep", lambda s: (tmp_path / LOCK).write_text(json.dumps(asdict(other)))
    )
    with pytest.raises(UserError, match="held by process 1 "), OutputLock(tmp_path, "rank-0"):
        pass
