"""Reads are bounded, aligned, complete, and leave the page cache alone."""

import errno
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.weights.reading import BLOCK_BYTES, HUGE_PAGE_BYTES, Files, Ring

SIZE = 300_001
CONTENT = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data [0].bin"
    path.write_bytes(CONTENT.tobytes())
    return path


@pytest.fixture
def ring():
    return Ring(2 * (320 << 10), 2)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, SIZE),
        (0, 0),
        (0, 1),
        (SIZE - 1, 1),
        (BLOCK_BYTES - 1, 2),
        (BLOCK_BYTES, BLOCK_BYTES),
        (12_345, 200_000),
    ],
)
def test_a_range_is_read_exactly(path, ring, offset, size, direct):
    with Files(direct=direct) as files, ring.buffer() as buffer:
        data = files.read(path, offset, size, buffer)
        assert np.array_equal(data, CONTENT[offset : offset + size])
        assert files.counts.num_bytes == size


@pytest.mark.parametrize(("offset", "size"), [(0, SIZE), (7, 100), (4095, 2), (SIZE, 0)])
def test_a_range_is_read_to_where_it_stays_at_any_address(path, offset, size, monkeypatch):
    real = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda fd, views, at: real(fd, [views[0][: min(5_000, len(views[0]))]], at)
    )
    memory = np.zeros(size + 2, dtype=np.uint8)
    with Files(direct=False) as files:
        assert files.read_into(path, offset, memory[1 : size + 1]).nbytes == size
        assert files.counts.num_bytes == size
    assert np.array_equal(memory[1 : size + 1], CONTENT[offset : offset + size])
    assert memory[0] == memory[-1] == 0


def test_a_range_beyond_the_end_is_refused_also_there(path):
    with (
        Files(direct=False) as files,
        pytest.raises(UserError, match=f"its end at byte {SIZE}"),
    ):
        files.read_into(path, SIZE - 5, np.zeros(6, dtype=np.uint8))


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def files(request):
    with Files(direct=request.param) as files:
        yield files


@pytest.fixture
def buffer(ring):
    with ring.buffer() as buffer:
        yield buffer


@pytest.mark.parametrize("offset", [9_000, 40_000])
def test_a_file_that_ends_too_early_is_named(path, files, buffer, offset):
    os.truncate(path, 10_000)
    with pytest.raises(UserError, match="its end at byte 10000; supported: .* bytes or more"):
        files.read(path, offset, 3_000, buffer)


def test_an_absent_file_is_named(tmp_path, files, buffer):
    with pytest.raises(UserError, match="absent.*No such file"):
        files.read(tmp_path / "absent", 0, 1, buffer)


def test_short_reads_are_put_together(path, ring, monkeypatch):
    """A read may end anywhere, also inside a block; nothing is lost or doubled."""
    real = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda fd, views, at: real(fd, [views[0][: min(5_000, len(views[0]))]], at)
    )
    with Files(direct=False) as files, ring.buffer() as buffer:
        data = files.read(path, 100, 60_000, buffer)
        assert np.array_equal(data, CONTENT[100:60_100])


def test_a_file_system_without_direct_reads_is_read_through_the_cache(path, ring, monkeypatch):
    real = os.open

    def refuse(name, flags, *rest):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct I/O here")
        return real(name, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with Files() as files, ring.buffer() as buffer:
        assert np.array_equal(files.read(path, 5, 70, buffer), CONTENT[5:75])
        assert (files.counts.num_direct_files, files.counts.num_buffered_files) == (0, 1)


def test_direct_reads_that_are_refused_later_fall_back(path, ring, monkeypatch):
    with Files() as files, ring.buffer() as buffer:
        files.read(path, 0, 1, buffer)
        if not files.counts.num_direct_files:
            pytest.skip("this file system takes no direct reads at all")
    real = os.preadv
    refused = []

    def refuse_first(descriptor, views, at):
        if not refused:
            refused.append(at)
            raise OSError(errno.EINVAL, "stricter alignment")
        return real(descriptor, views, at)

    monkeypatch.setattr(os, "preadv", refuse_first)
    with Files() as files, ring.buffer() as buffer:
        assert np.array_equal(files.read(path, 5, 70, buffer), CONTENT[5:75])
        assert refused
        assert (files.counts.num_direct_files, files.counts.num_buffered_files) == (0, 1)


def test_a_failing_disk_is_a_user_error(path, files, buffer, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "bad")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(UserError, match=r"data \[0\].bin: found byte 0: Input/output error"):
        files.read(path, 0, 10, buffer)


def test_buffered_reads_are_dropped_from_the_cache(path, ring, monkeypatch):
    dropped = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, at, size, what: dropped.append((at, size)))
    with Files(direct=False) as files, ring.buffer() as buffer:
        files.read(path, 5_000, 10_000, buffer)
    assert dropped == [(4096, 12_288), (0, 0)]


def test_a_ring_lends_only_what_it_has():
    ring = Ring(4 * (64 << 10), 4)
    held = [ring.buffer() for _ in range(4)]
    buffers = [each.__enter__() for each in held]
    assert len({buffer.ctypes.data for buffer in buffers}) == 4
    assert all(buffer.ctypes.data % BLOCK_BYTES == 0 for buffer in buffers)
    assert sum(buffer.nbytes for buffer in buffers) == 4 * (64 << 10)
    got_fifth = threading.Event()

    def take():
        with ring.buffer():
            got_fifth.set()

    waiting = threading.Thread(target=take)
    waiting.start()
    assert not got_fifth.wait(0.05)
    held[0].__exit__(None, None, None)
    assert got_fifth.wait(5)
    waiting.join()


@pytest.mark.parametrize(("ring_bytes", "threads"), [(0, 1), (1 << 20, 0), (1 << 20, 64)])
def test_a_ring_too_small_is_refused_with_the_numbers(ring_bytes, threads):
    with pytest.raises(UserError, match=f"{ring_bytes} bytes for {threads} reads"):
        Ring(ring_bytes, threads)


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="a kernel without huge pages"
)
def test_buffers_are_private_memory_for_huge_pages_so_that_direct_reads_are_large_requests():
    ring = Ring(4 << 20, 2)
    for buffer in ring.buffers:
        buffer[:] = 1
        flags = flags_of_mapping(buffer.ctypes.data)
        assert "hg" in flags
        assert "sh" not in flags  # shared anonymous memory gets no huge pages
        assert "dc" in flags  # not copied by a fork, which must not meet a direct read
    assert ring.buffers[0].ctypes.data % HUGE_PAGE_BYTES == 0
    assert ring.buffers[1].ctypes.data - ring.buffers[0].ctypes.data == ring.buffers[0].nbytes


def flags_of_mapping(address):
    """The kernel's flags of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(match[1], 16) <= address < int(match[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"no mapping at {address:#x}")
