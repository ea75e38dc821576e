"""Small files are absent or whole."""

import errno
import os
import stat

import pytest

from sglang_mi300a import whole_files


def test_a_file_is_replaced_whole_and_readable_by_all(tmp_path):
    path = tmp_path / "a.json"
    whole_files.write(path, b"long before")
    whole_files.write(path, b"after")
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("call", ["pwrite", "fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, call):
    path = tmp_path / "a.json"
    whole_files.write(path, b"before")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as broken:
        broken.setattr(os, call, full)
        with pytest.raises(OSError, match="no space"):
            whole_files.write(path, b"after")
    assert path.read_bytes() == b"before"
    whole_files.write(path, b"later")  # over what the failed one left beside it
    assert path.read_bytes() == b"later"
    assert os.listdir(tmp_path) == ["a.json"]


def test_short_writes_are_put_together(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda to, data, at: real(to, data[:3], at))
    whole_files.write(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_the_first_of_several_writers_wins(tmp_path):
    whole_files.write_if_absent(tmp_path / "a", b"first")
    whole_files.write_if_absent(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


def test_a_directory_that_cannot_be_synced_is_no_error_and_a_failing_disk_is(tmp_path, monkeypatch):
    def fails_with(number):
        def fsync(_):
            raise OSError(number, os.strerror(number))

        return fsync

    monkeypatch.setattr(os, "fsync", fails_with(errno.EINVAL))
    whole_files.sync(tmp_path)
    monkeypatch.setattr(os, "fsync", fails_with(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        whole_files.sync(tmp_path)
