"""Locks: held by the living, free after the dead, never judged by age; AITER's are named."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import time

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache import aiter_locks, local_disk, owner_lock
from sglang_mi300a.kernel_cache.owner_lock import OwnerLock, StillHeld
from sglang_mi300a.process_identity import myself, start_ticks
from tests import repository
from tests.kernel_cache import aiter_wheel
from tests.kernel_cache.conftest import as_record

# -- ours ------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from sglang_mi300a.kernel_cache.owner_lock import OwnerLock
with OwnerLock(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def held_by_another(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "a.lock")],
        cwd=repository.ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_who_waits_too_long_is_told_who_holds_it(tmp_path, held_by_another):
    words = f"still held by process {held_by_another.pid} on {socket.gethostname()} after 0 s"
    with pytest.raises(StillHeld, match=words), OwnerLock(tmp_path / "a.lock", "it", wait_s=0.3):
        pass
    assert owner_lock.is_held(tmp_path / "a.lock")


def test_a_killed_holder_is_succeeded_at_once(tmp_path, held_by_another):
    held_by_another.kill()
    held_by_another.wait()
    assert not owner_lock.is_held(tmp_path / "a.lock")
    with OwnerLock(tmp_path / "a.lock", "it", wait_s=0):
        assert json.loads((tmp_path / "a.lock").read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_a_living_holder_is_respected_however_old_its_file_is(tmp_path, held_by_another):
    os.utime(tmp_path / "a.lock", (0, 0))
    with pytest.raises(StillHeld), OwnerLock(tmp_path / "a.lock", "it", wait_s=0):
        pass


def test_a_wall_clock_that_jumps_back_prolongs_no_wait(tmp_path, held_by_another, monkeypatch):
    clock = iter(range(2_000_000_000, 0, -86_400))
    monkeypatch.setattr(time, "time", lambda: next(clock))
    with pytest.raises(StillHeld), OwnerLock(tmp_path / "a.lock", "it", wait_s=0.3):
        pass


@pytest.mark.parametrize(
    "left",
    [
        b"",
        b"garbage \xff\x00",
        b"[1, 2]",
        b"{}",
        as_record(pid=os.getpid(), start_ticks=7).encode(),
        as_record(host="node-7", boot_id="another", pid=1).encode(),
        as_record(host="renamed", pid=1).encode(),
    ],
    ids=["empty", "garbage", "a list", "no fields", "pid used again", "other boot", "other host"],
)
def test_a_file_that_nobody_holds_is_free_whatever_it_says(tmp_path, left):
    (tmp_path / "a.lock").write_bytes(left)
    with OwnerLock(tmp_path / "a.lock", "it", wait_s=0):
        assert owner_lock.holder_of(tmp_path / "a.lock") == myself()


def test_a_place_without_file_locks_is_refused(tmp_path, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks on this mount")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with (
        pytest.raises(UserError, match="without file locks.*SGLANG_MI300A_LOCAL_DIR"),
        OwnerLock(tmp_path / "a.lock", "it"),
    ):
        pass


# -- where they lie --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "ceph"])
def test_a_directory_that_other_machines_share_is_no_place_for_locks(tmp_path, monkeypatch, kind):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path}/far {kind} rw 0 0\n")
    assert local_disk.kind_of_filesystem(tmp_path / "far/a/b", mounts) == kind
    assert local_disk.kind_of_filesystem(tmp_path / "farther", mounts) == "ext4"
    monkeypatch.setattr(local_disk, "kind_of_filesystem", lambda path: kind)
    with pytest.raises(UserError, match=f"on {kind}; supported: a disk that no other machine"):
        local_disk.prepare(tmp_path / "far")


def test_a_directory_that_others_may_write_or_a_link_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UserError, match="mode 0777; supported: writable by its owner only"):
        local_disk.prepare(tmp_path / "open")
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(UserError, match="or a link"):
        local_disk.prepare(tmp_path / "link")


def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    mine = os.getuid()
    (tmp_path / "theirs").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    with pytest.raises(UserError, match=f"owned by user {mine}"):
        local_disk.prepare(tmp_path / "theirs")


# -- AITER's ---------------------------------------------------------------------------------------

GONE = 2**22 + 1  # no process: above the kernel's limit of process ids


def lines(*parts):
    return "".join(f"{part}\n" for part in parts)


def here(pid):
    return lines(pid, socket.gethostname())


def leave(jit_dir, place, text):
    path = jit_dir / "build" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


PLACES = {
    "lock_module_a": "baton",
    "pa_ragged_0f/lock": "baton",
    "gfx942/kernel_0f.lock": "baton",
    "module_a/build/lock": "build lock",
    "module_a/build/.ninja_lock": "ninja lock",
}


@pytest.mark.parametrize("place", PLACES)
def test_each_kind_of_lock_is_found_and_named(tmp_path, place):
    path = leave(tmp_path, place, "")
    (found,) = aiter_locks.find(tmp_path, tmp_path / "none")
    assert (found.path, found.kind, found.dialect) == (path, PLACES[place], "no owner")


def test_the_lock_of_a_merged_table_is_found(tmp_path):
    (tmp_path / "tuned_fmoe.csv.lock").touch()
    (found,) = aiter_locks.find(tmp_path / "jit", tmp_path)
    assert (found.kind, found.path.name) == ("baton", "tuned_fmoe.csv.lock")


@pytest.mark.parametrize(
    ("text", "dialect", "state"),
    [
        ("", "no owner", "not known"),
        (here(os.getpid()), "pid and host", "alive"),
        (here(GONE), "pid and host", "dead"),
        (lines(os.getpid(), "node-7"), "pid and host", "not known"),
        (lines(GONE, "node-7"), "pid and host", "not known"),
        ("garbage", "garbled", "not known"),
        ("9" * 400 + "\nhost\n", "garbled", "not known"),
        ("\0\0\n\0\n", "garbled", "not known"),
    ],
)
def test_a_holder_counts_as_dead_only_where_that_can_be_proved(tmp_path, text, dialect, state):
    leave(tmp_path, "lock_m", text)
    (found,) = aiter_locks.find(tmp_path, tmp_path / "none")
    assert (found.dialect, found.state) == (dialect, state)


@pytest.mark.parametrize(
    ("pid", "namespace", "start", "state"),
    [
        (os.getpid(), myself().pid_namespace, start_ticks(os.getpid()), "alive"),
        (os.getpid(), myself().pid_namespace, 7, "dead"),
        (GONE, myself().pid_namespace, 7, "dead"),
        (GONE, "pid:[1]", 7, "not known"),
    ],
    ids=["alive", "pid used again", "gone", "another container"],
)
def test_the_dialect_with_namespace_and_start_tells_more(tmp_path, pid, namespace, start, state):
    leave(tmp_path, "lock_m", lines(pid, socket.gethostname(), namespace, start, "flock"))
    (found,) = aiter_locks.find(tmp_path, tmp_path / "none")
    assert (found.dialect, found.state) == ("pid, host, namespace and start", state)


def test_a_lock_that_the_kernel_lists_is_alive_whatever_it_says(tmp_path):
    path = leave(tmp_path, "lock_m", lines(GONE, "node-7", "pid:[1]", 7, "flock"))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (found,) = aiter_locks.find(tmp_path, tmp_path / "none")
    assert found.state == "alive"


@pytest.mark.parametrize("text", ["", here(os.getpid()), lines(1, "node-7"), "garbage"])
def test_after_the_bounded_wait_holder_and_file_are_named_and_nothing_is_deleted(tmp_path, text):
    path = leave(tmp_path, "lock_module_a", text)
    with pytest.raises(UserError, match=f"(?s)AITER's baton, still there after.*rm {path}") as told:
        aiter_locks.wait_until_free(tmp_path, wait_s=0.1, config_dir=tmp_path / "none")
    holder = aiter_locks.find(tmp_path, tmp_path / "none")[0].holder
    assert holder in str(told.value)
    assert path.read_text() == text


def test_a_dead_holder_is_not_waited_for(tmp_path):
    path = leave(tmp_path, "module_a/build/lock", here(GONE))
    with pytest.raises(
        UserError, match=f"build lock, its holder has ended: held by process {GONE}"
    ):
        aiter_locks.wait_until_free(tmp_path, wait_s=600, config_dir=tmp_path / "none")
    assert path.exists()


def test_a_lock_that_is_released_is_waited_for(tmp_path, monkeypatch):
    path = leave(tmp_path, "lock_m", "")
    monkeypatch.setattr(aiter_locks.time, "sleep", lambda seconds: path.unlink())
    aiter_locks.wait_until_free(tmp_path, wait_s=600, config_dir=tmp_path / "none")
    assert not path.exists()


def test_a_lock_of_the_real_aiter_is_seen_while_it_is_held_and_after_its_holder_was_killed(
    tmp_path,
):
    """PyPI's AITER: its own baton, in a process that is killed while it holds it."""
    baton = aiter_wheel.extract(tmp_path / "aiter", "aiter/jit/utils/file_baton.py")
    (tmp_path / "build").mkdir()
    code = (
        f"import sys, time; sys.path.insert(0, {str(baton.parent)!r}); import file_baton\n"
        f"assert file_baton.FileBaton({str(tmp_path / 'build/lock_module_a')!r}).try_acquire()\n"
        "print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    while_held = aiter_locks.find(tmp_path, tmp_path / "none")
    process.kill()
    process.communicate()
    after = aiter_locks.find(tmp_path, tmp_path / "none")
    assert [(one.kind, one.dialect, one.state) for one in (*while_held, *after)] == [
        ("baton", "no owner", "not known")
    ] * 2
    with pytest.raises(UserError, match="a process that did not sign"):
        aiter_locks.wait_until_free(tmp_path, wait_s=0, config_dir=tmp_path / "none")
