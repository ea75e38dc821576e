"""Patching changes all that was asked or nothing, and is taken back byte for byte."""

import errno
import fcntl
import hashlib
import os
import signal

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.patches import change
from tests.patches import trees

SERIES = trees.SERIES
PATCHES = SERIES.patches
TWO_FILES = next(patch for patch in PATCHES if len(patch.touches) == 2)
SOME = PATCHES[-2:]
SOME_FILES = [path for patch in SOME for path in patch.touches]


@pytest.fixture
def root(tmp_path):
    return trees.small(tmp_path / "site-packages")


def test_all_patches_are_applied_and_taken_back_byte_for_byte(root):
    (root / trees.TOUCHED[0]).chmod(0o640)
    before = trees.contents(root)
    names = [patch.name for patch in PATCHES]
    assert change.apply(SERIES, PATCHES, root) == names
    assert all(trees.is_patched(root).values())
    assert trees.contents(root).keys() == before.keys()
    assert change.apply(SERIES, PATCHES, root) == []
    assert change.revert(SERIES, PATCHES, root) == names
    assert trees.contents(root) == before
    assert change.revert(SERIES, PATCHES, root) == []


def test_one_patch_leaves_the_files_of_the_others_alone(root):
    change.apply(SERIES, [TWO_FILES], root)
    patched = trees.is_patched(root)
    assert {path for path in patched if patched[path]} == set(TWO_FILES.touches)


def test_a_hard_linked_file_is_replaced_and_its_other_name_keeps_the_old_content(root, tmp_path):
    other = tmp_path / "cache of a package installer.py"
    path = root / trees.TOUCHED[0]
    os.link(path, other)
    old = other.read_bytes()
    change.apply(SERIES, PATCHES, root)
    assert other.read_bytes() == old != path.read_bytes()


def refused(root, match, act=change.apply):
    before = trees.contents(root)
    with pytest.raises(UserError, match=match) as caught:
        act(SERIES, PATCHES, root)
    assert trees.contents(root) == before
    return str(caught.value)


@pytest.mark.parametrize("act", [change.apply, change.revert])
def test_another_digest_is_refused_with_the_file_what_was_found_and_expected(root, act):
    if act is change.revert:
        change.apply(SERIES, PATCHES, root)
    last = list(PATCHES[-1].touches)[-1]
    with (root / last).open("a") as file:
        file.write("# edited\n")
    said = refused(root, "sha256", act)
    assert last in said
    assert PATCHES[-1].touches[last].before in said
    found = hashlib.sha256((root / last).read_bytes()).hexdigest()
    assert f"sha256 {found}" in said


def test_a_missing_file_is_refused(root):
    (root / trees.TOUCHED[-1]).unlink()
    assert trees.TOUCHED[-1] in refused(root, "no such file")


@pytest.mark.parametrize("part", ["file", "folder"])
def test_a_symbolic_link_is_refused(root, tmp_path, part):
    path = root / trees.TOUCHED[-1]
    linked = path if part == "file" else path.parent
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    said = refused(root, "symbolic link")
    assert str(linked.relative_to(root)) in said


def test_another_sglang_version_is_refused(root):
    version = root / "sglang/_version.py"
    version.write_text(version.read_text().replace("0.5.18", "0.5.19"))
    refused(root, "SGLang in .*found 0.5.19; supported: 0.5.18")


def test_a_read_only_sglang_is_refused(root, monkeypatch):
    # To root no directory is read-only, so the answer about one folder is put in its place.
    folder = (root / trees.TOUCHED[-1]).parent
    real = os.access
    monkeypatch.setattr(os, "access", lambda at, mode: at != folder and real(at, mode))
    assert str(folder) in refused(root, "read-only for this user")


@pytest.mark.parametrize("at", range(len(trees.TOUCHED)))
@pytest.mark.parametrize("step", ["fsync", "fchmod", "replace"])
def test_an_error_half_way_leaves_everything_as_it_was(root, monkeypatch, step, at):
    real, calls = getattr(os, step), []

    def fails(*given):
        calls.append(given)
        if len(calls) == at + 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(root))
        return real(*given)

    before = trees.contents(root)
    monkeypatch.setattr(os, step, fails)
    with pytest.raises(UserError, match="No space left on device"):
        change.apply(SERIES, PATCHES, root)
    assert trees.contents(root) == before


def killed_at(step, act, root):
    """Run in a child that kills itself before its ``step``-th call to the system.

    Return whether it came that far.
    """
    child = os.fork()
    if child == 0:
        count = iter(range(10_000))

        def counted(real):
            def call(*given, **more):
                if next(count) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*given, **more)

            return call

        for name in ("fsync", "replace", "unlink", "fchmod", "open"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            act(SERIES, SOME, root)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("act", [change.apply, change.revert])
def test_a_kill_at_any_step_leaves_whole_files_that_revert_mends(root, act):
    before = trees.contents(root)
    step, half = 0, 0
    while True:
        if act is change.revert:
            change.apply(SERIES, SOME, root)
        if not killed_at(step, act, root):
            break
        patched = [trees.is_patched(root)[path] for path in SOME_FILES]
        left = change.interrupted(root)
        assert left is not None or len(set(patched)) == 1
        half += len(set(patched)) == 2
        if left is not None:
            with pytest.raises(UserError, match="did not end.*patch revert, which mends it"):
                change.apply(SERIES, PATCHES, root)
        change.revert(SERIES, SOME[:1] if left and left.patches else SOME, root)
        assert trees.contents(root) == before, step
        step += 1
    assert step > 3 * len(SOME_FILES)
    assert half >= len(SOME_FILES) - 1


def test_a_journal_that_was_cut_while_it_was_written_is_mended(root):
    before = trees.contents(root)
    (root / "sglang" / change.JOURNAL).write_text('{"action": "app')
    assert change.interrupted(root) == change.Interrupted("", ())
    with pytest.raises(UserError, match="did not end"):
        change.apply(SERIES, PATCHES, root)
    assert change.revert(SERIES, PATCHES, root) == []
    assert trees.contents(root) == before


def test_a_file_put_back_by_hand_is_told_as_half_applied_and_mended(root):
    before = trees.contents(root)
    change.apply(SERIES, [TWO_FILES], root)
    first = next(iter(TWO_FILES.touches))
    (root / first).write_bytes(before[first][0])
    refused(root, "half applied.*patch revert")
    assert change.revert(SERIES, [TWO_FILES], root) == [TWO_FILES.name]
    assert trees.contents(root) == before


def test_a_second_process_is_refused_while_one_patches(root):
    descriptor = os.open(root / "sglang", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        refused(root, "another process that patches it")
    finally:
        os.close(descriptor)
    assert change.apply(SERIES, PATCHES, root)
