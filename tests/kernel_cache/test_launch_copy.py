"""A server's AITER works in a directory of its own; what it builds there outlives it, whole."""

import os
import shutil
import subprocess
import sys

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache import aiter_locks, launch_copy, local_disk, needed, recording
from sglang_mi300a.kernel_cache.store import Store
from tests import repository
from tests.kernel_cache import standin_aiter
from tests.kernel_cache.conftest import everything, make_key, stored

MODULE = standin_aiter.shared_object(b"one")
LAZY = standin_aiter.shared_object(b"lazy")


@pytest.fixture
def said():
    return []


@pytest.fixture
def prebuilt(tmp_path):
    folder = tmp_path / "came-with-aiter"
    folder.mkdir()
    (folder / "module_rope.so").write_bytes(standin_aiter.shared_object(b"rope"))
    return folder


@pytest.fixture
def launch(key, store, tmp_path, prebuilt, said):
    """Return a function that starts a launch, and end those that a test leaves."""
    made = []

    def make(*stores):
        local = tmp_path / "local"
        sources = [*(stores or [store]), launch_copy.kept_store(local)]
        made.append(launch_copy.make(key, sources, local, prebuilt, said.append))
        return made[-1]

    yield make
    for copy in made:
        copy.close(said.append)


def builds_lazily(directory, name, content=LAZY):
    """Do what AITER does when a module is missing."""
    linked = directory / "build" / name / "build"
    linked.mkdir(parents=True)
    (linked / f"{name}.so").write_bytes(content)
    shutil.copy(linked / f"{name}.so", directory)


def test_a_launch_reads_copies_and_changes_nothing_of_the_store(launch, store, key):
    stored(store, key, "core", MODULE, "module_core.so")
    before = everything(store.root)
    for path in [*store.root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)  # a store that is mounted read-only
    copy = launch()
    directory = copy.directory
    assert (directory / "module_core.so").read_bytes() == MODULE
    (directory / "module_core.so").write_bytes(LAZY)  # AITER rebuilds in place
    builds_lazily(directory, "module_more")
    copy.close(print)
    assert not directory.exists()
    assert everything(store.root) == before


def test_environment_names_the_copy_and_caches_keyed_and_on_this_node(launch, key, tmp_path):
    copy = launch()
    environment = copy.environment()
    assert environment["AITER_JIT_DIR"] == environment["AITER_ROOT_DIR"] == str(copy.directory)
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert environment[name].startswith(str(tmp_path / "local"))
        assert environment[name].endswith(key.digest)


def test_two_launches_share_nothing(launch):
    first, second = launch(), launch()
    assert first.directory != second.directory
    assert first.directory.is_dir()


def test_what_is_missing_and_what_is_damaged_is_named(launch, store, key):
    stored(store, key, "core", MODULE)
    damaged = stored(store, key, "topk", standin_aiter.shared_object(b"two"))
    path = store.object_path(damaged.files[0].sha256)
    path.chmod(0o644)
    path.write_bytes(b"torn")
    copy = launch()
    assert copy.missing == tuple(name for name in needed.names() if name != "core")
    assert copy.damaged == (f"topk of {store.root}",)
    assert not (copy.directory / "topk.so").exists()


def test_modules_of_another_key_are_not_used(launch, store):
    stored(store, make_key(rocm="6.4"), "core", MODULE)
    assert "core" in launch().missing


def test_modules_that_came_with_aiter_are_linked_where_no_store_has_them(launch, store, key):
    stored(store, key, "rope", LAZY, "module_rope.so")
    linked = launch(Store(store.root / "none")).directory / "module_rope.so"
    assert linked.is_symlink()
    copied = launch().directory / "module_rope.so"
    assert not copied.is_symlink()
    assert copied.read_bytes() == LAZY


def test_what_a_server_built_is_there_at_its_next_start(launch, said):
    copy = launch()
    builds_lazily(copy.directory, "module_more")
    template = copy.directory / "build/pa_ragged_0f/lib.so"
    template.parent.mkdir()
    template.write_bytes(LAZY)
    copy.close(said.append)
    assert sorted(line.split(": ")[1] for line in said) == [
        "module_more, built by this server",
        "pa_ragged_0f, built by this server",
    ]
    again = launch().directory
    assert (again / "module_more.so").read_bytes() == LAZY
    assert (again / "build/pa_ragged_0f/lib.so").read_bytes() == LAZY


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda d: (d / "module_more.so").write_bytes(LAZY[:-1]), "cut short"),
        (lambda d: (d / "module_more.so").unlink(), "linked, but not copied"),
        (lambda d: (d / "module_more.so").write_bytes(MODULE), "differs from what was linked"),
        (lambda d: (d / "build/lock_module_more").touch(), "being built"),
        (lambda d: (d / "build/module_more/build/lock").touch(), "being built"),
        (lambda d: (d / "build/module_more/build/.ninja_lock").touch(), "being built"),
    ],
    ids=["torn", "no copy", "other bytes", "baton", "build lock", "ninja lock"],
)
def test_a_module_that_is_not_whole_is_not_kept(launch, said, spoil, why):
    copy = launch()
    builds_lazily(copy.directory, "module_more")
    spoil(copy.directory)
    copy.close(said.append)
    (line,) = said
    assert f"not recorded: module_more: {why}" in line
    assert not (launch().directory / "module_more.so").exists()


def test_a_module_for_another_arch_is_not_kept(tmp_path):
    builds_lazily(tmp_path, "module_more", standin_aiter.shared_object(arch=b"gfx90a"))
    (found,) = recording.find(tmp_path, "gfx942")
    assert found.flaw == "device code for gfx90a"


LEAVE = """
import os, sys
from pathlib import Path
from sglang_mi300a.kernel_cache import launch_copy
from tests.kernel_cache.conftest import make_key
from tests.kernel_cache.test_launch_copy import builds_lazily
copy = launch_copy.make(make_key(), [], Path(sys.argv[1]), Path(sys.argv[1]), print)
builds_lazily(copy.directory, "module_more")
print(copy.directory, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_killed_servers_modules_are_kept_and_its_directory_is_removed(launch, tmp_path):
    left = subprocess.run(
        [sys.executable, "-c", LEAVE, str(tmp_path / "local")],
        cwd=repository.ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout.strip()
    assert os.path.isdir(left)
    assert (launch().directory / "module_more.so").read_bytes() == LAZY
    assert not os.path.exists(left)


def test_a_new_copy_holds_none_of_aiters_locks(launch, store, key):
    stored(store, key, "core", MODULE)
    assert aiter_locks.find(launch().directory, store.root / "none") == []


def test_a_disk_that_runs_full_is_refused_and_leaves_nothing(launch, store, key, monkeypatch):
    stored(store, key, "core", MODULE)

    def full(source, target, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(UserError, match="No space left on device"):
        launch()
    assert list((store.root.parent / "local/launches").iterdir()) == []


def test_a_disk_mounted_noexec_is_refused(launch, monkeypatch):
    found = os.statvfs("/tmp")

    class NoExec:
        f_flag = found.f_flag | os.ST_NOEXEC

    monkeypatch.setattr(local_disk.os, "statvfs", lambda path: NoExec)
    with pytest.raises(UserError, match="mounted noexec.*SGLANG_MI300A_LOCAL_DIR"):
        launch()
