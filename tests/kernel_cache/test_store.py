"""A store shows only whole modules, whatever file systems and other processes do."""

import errno
import json
import os
import shutil
import stat

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache import store as stores
from sglang_mi300a.kernel_cache.store import Store, StoredFile, StoredModule
from tests.kernel_cache import standin_aiter
from tests.kernel_cache.conftest import everything, make_key, stored

CONTENT = standin_aiter.shared_object(b"a module")


def file_of(store, module):
    return store.object_path(module.files[0].sha256)


def test_what_is_stored_comes_back(store, key, tmp_path):
    module = stored(store, key, "a", CONTENT)
    assert store.key(key.digest) == key
    assert store.modules(key.digest) == {"a": module}
    assert store.copy_out(module.files[0], tmp_path / "out/a.so")
    assert (tmp_path / "out/a.so").read_bytes() == CONTENT
    assert stat.S_IMODE((tmp_path / "out/a.so").stat().st_mode) == 0o755


def test_equal_bytes_are_stored_once_and_modules_of_two_keys_stay_apart(store):
    one, two = make_key(), make_key(rocm="6.4")
    first, second = stored(store, one, "a", CONTENT), stored(store, two, "b", CONTENT)
    assert file_of(store, first) == file_of(store, second)
    assert len(list(store.root.glob("objects/*/*"))) == 1
    assert (set(store.modules(one.digest)), set(store.modules(two.digest))) == ({"a"}, {"b"})


def test_a_store_that_does_not_exist_is_empty(tmp_path):
    assert list(Store(tmp_path / "none").digests()) == []
    assert Store(tmp_path / "none").modules("0" * 32) == {}


# -- what file systems do --------------------------------------------------------------------------


def test_a_rename_that_was_done_and_then_reported_as_failed_counts(store, key, monkeypatch):
    """An NFS server that answers a repeated request says that the source is gone."""
    replace = os.replace

    def answered_twice(source, target):
        replace(source, target)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)

    monkeypatch.setattr(stores.os, "replace", answered_twice)
    module = stored(store, key, "a", CONTENT)
    assert store.modules(key.digest) == {"a": module}
    assert store.problems(key.digest) == []
    assert list((store.root / "tmp").iterdir()) == []


def test_a_rename_that_failed_is_no_success(store, key, monkeypatch):
    def fails(source, target):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(stores.os, "replace", fails)
    with pytest.raises(UserError, match="Input/output error"):
        stored(store, key, "a", CONTENT)
    assert store.modules(key.digest) == {}
    assert list((store.root / "tmp").iterdir()) == []


def test_a_stale_handle_is_asked_for_again(store, key, monkeypatch, tmp_path):
    module = stored(store, key, "a", CONTENT)
    answers = iter([errno.ESTALE, errno.ESTALE, None])
    real_open = type(store.root).open

    def stale_twice(path, *args, **kwargs):
        if path == file_of(store, module) and (code := next(answers)):
            raise OSError(code, os.strerror(code))
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(type(store.root), "open", stale_twice)
    monkeypatch.setattr(stores, "_STALE_PAUSE_S", 0)
    assert store.copy_out(module.files[0], tmp_path / "a.so")


def test_hidden_leftovers_of_a_network_file_system_are_overlooked(store, key):
    module = stored(store, key, "a", CONTENT)
    (store.root / "entries/.nfs000000").touch()
    (store.root / "entries" / key.digest / "modules/.nfs000001.json").write_text("{")
    assert list(store.digests()) == [key.digest]
    assert store.modules(key.digest) == {"a": module}


@pytest.mark.parametrize("torn", [CONTENT[:-1], CONTENT + b"x", b"", b"X" + CONTENT[1:]])
def test_a_torn_object_is_missing_and_leaves_nothing_at_its_target(store, key, tmp_path, torn):
    module = stored(store, key, "a", CONTENT)
    path = file_of(store, module)
    path.chmod(0o644)
    path.write_bytes(torn)
    assert not store.copy_out(module.files[0], tmp_path / "a.so")
    assert not (tmp_path / "a.so").exists()
    (problem,) = store.problems(key.digest)
    assert "a: a.so: other bytes than were stored" in problem
    assert stored(store, key, "a", CONTENT) == module  # storing it again mends it
    assert store.problems(key.digest) == []


def test_a_full_disk_is_said_and_nothing_is_published(store, key, monkeypatch):
    def full(source, target, length):
        target.write(source.read(100))
        raise OSError(errno.ENOSPC, "No space left on device")

    (store.root.parent / "a.so").write_bytes(CONTENT)
    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(UserError, match="No space left.*room for the compiled modules.*make room"):
        store.put(store.root.parent / "a.so", "a.so")
    assert everything(store.root) == {}


def test_a_store_that_cannot_be_written_names_owner_and_mode(tmp_path, monkeypatch):
    def read_only(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path))

    monkeypatch.setattr(type(tmp_path), "mkdir", read_only)
    with pytest.raises(UserError, match=r"Read-only file system .*is of user \d+, mode 0\d\d\d;"):
        Store(tmp_path / "s").check_writable()


def test_a_store_of_another_user_mode_0700_is_refused_with_owner_and_mode(
    store, key, not_root, tmp_path
):
    stored(store, key, "a", CONTENT)
    store.root.chmod(0o000)
    try:
        with pytest.raises(UserError, match="Permission denied .*mode 0000"):
            list(store.digests())
    finally:
        store.root.chmod(0o755)


def test_a_store_that_may_not_be_read_is_refused_with_owner_and_mode(store, key, monkeypatch):
    stored(store, key, "a", CONTENT)

    def denied(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(type(store.root), "iterdir", denied)
    with pytest.raises(UserError, match="Permission denied.*ask its owner"):
        list(store.digests())
    with pytest.raises(UserError, match="Permission denied.*ask its owner"):
        store.modules(key.digest)


# -- records that lie ------------------------------------------------------------------------------

GOOD = {"schema": 1, "name": "a", "files": [{"path": "a.so", "sha256": "0" * 64, "num_bytes": 1}]}


def changed(**file):
    return {**GOOD, "files": [{**GOOD["files"][0], **file}]}


@pytest.mark.parametrize(
    "data",
    [
        [],
        {},
        {**GOOD, "schema": 2},
        {**GOOD, "name": "../a"},
        {**GOOD, "name": ".a"},
        {**GOOD, "files": []},
        {**GOOD, "files": [1]},
        changed(path="/etc/passwd"),
        changed(path="../a.so"),
        changed(path="a/../../b.so"),
        changed(path="a//b.so"),
        changed(path=""),
        changed(path="a\0b"),
        changed(path="-rf/.."),
        changed(sha256="../" + "0" * 61),
        changed(sha256="0" * 63),
        changed(num_bytes=-1),
        changed(num_bytes=True),
        changed(num_bytes="1"),
    ],
    ids=str,
)
def test_a_record_that_is_not_one_is_refused(data):
    with pytest.raises(UserError, match="supported: a record as `kernel-cache build` writes it"):
        StoredModule.from_data(data, "somewhere")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"arch": 1}', "\xff"])
def test_a_key_that_is_garbage_is_refused_by_its_file(store, key, text):
    stored(store, key, "a", CONTENT)
    path = store.root / "entries" / key.digest / "key.json"
    path.chmod(0o644)
    path.write_text(text)
    with pytest.raises(UserError, match="key.json"):
        store.key(key.digest)
    assert any("key.json" in problem for problem in store.problems(key.digest))


def test_a_key_under_another_keys_name_is_refused(store, key):
    stored(store, key, "a", CONTENT)
    path = store.root / "entries" / key.digest / "key.json"
    path.chmod(0o644)
    path.write_text(json.dumps(make_key(rocm="6.4").to_data()))
    with pytest.raises(UserError, match="the record of key"):
        store.key(key.digest)


def test_nothing_is_published_whose_bytes_are_not_stored(store, key):
    missing = StoredModule("a", (StoredFile("a.so", "0" * 64, 5),))
    with pytest.raises(UserError, match="no object of a: a.so"):
        store.publish(key, [missing])
    assert store.modules(key.digest) == {}


# -- tidying ---------------------------------------------------------------------------------------


def test_only_old_unreferenced_bytes_are_to_be_removed(store, key):
    kept = stored(store, key, "a", CONTENT)
    other = make_key(rocm="6.4")
    gone = stored(store, other, "b", CONTENT + b"other")
    store.remove(other.digest)
    assert store.unreferenced() == []  # somebody may be about to publish them
    tomorrow = file_of(store, gone).stat().st_mtime + 25 * 3600
    assert store.unreferenced(now=tomorrow) == [file_of(store, gone)]
    assert file_of(store, kept).exists()
