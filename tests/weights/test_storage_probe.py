"""The read probe is short, reads as the loader does, and says what to expect."""

import shutil
import threading
from types import SimpleNamespace

import pytest

from sglang_mi300a import artifact_manifest
from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import reading, storage_probe
from sglang_mi300a.weights.loader_options import LoaderOptions
from sglang_mi300a.weights.storage_probe import StorageProbe

OPTIONS = LoaderOptions(ring_bytes=1 << 20, threads=2)


@pytest.fixture
def files(tmp_path):
    sizes = (3_000_000, 1_000_001, 0, 4097)
    for number, size in enumerate(sizes):
        (tmp_path / f"part [{number}]").write_bytes(bytes(size))
    return sorted(tmp_path.iterdir())


def test_small_files_are_read_once_and_completely(files):
    found = storage_probe.of_files(files, OPTIONS, max_seconds=60)
    assert found.num_bytes == 3_000_000 + 1_000_001 + 4097
    assert found.seconds > 0


def test_bytes_are_bounded_and_spread_over_the_files(files, monkeypatch):
    ranges = []
    real = reading.Files.read

    def noting(self, path, offset, size, buffer):
        ranges.append((path.name, size))
        return real(self, path, offset, size, buffer)

    monkeypatch.setattr(reading.Files, "read", noting)
    found = storage_probe.of_files(files, OPTIONS, max_bytes=1_000_000, max_seconds=60)
    assert found.num_bytes == sum(size for _, size in ranges) == 1_000_000
    assert {name for name, _ in ranges} == {"part [0]", "part [1]", "part [3]"}


def test_time_is_bounded_on_a_slow_disk(files, monkeypatch):
    real, now, lock = reading.Files.read, [0.0], threading.Lock()

    def slow(self, path, offset, size, buffer):
        with lock:
            now[0] += 0.05
        return real(self, path, offset, size, buffer)

    monkeypatch.setattr(reading.Files, "read", slow)
    monkeypatch.setattr(storage_probe, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    found = storage_probe.of_files(files, OPTIONS, max_seconds=0.12)
    # No read begins later; those of the other threads may have begun just before.
    assert 0.12 <= found.seconds <= 0.15 + 0.05 * (OPTIONS.threads - 1) + 1e-9
    assert 0 < found.num_bytes < 4_000_000  # 16 reads would be enough to finish


def test_a_forecast_is_bytes_by_rate(small_tp2):
    found = storage_probe.of_artifact(small_tp2, OPTIONS)
    tensors = artifact_manifest.read(small_tp2).tensors
    by_rank = [sum(t.size for t in tensors if t.rank == rank) for rank in range(2)]
    assert (found.rank_bytes, found.node_bytes) == (max(by_rank), sum(by_rank))
    assert found.node_seconds == pytest.approx(sum(by_rank) / 1e9 / found.probe.gb_per_s)
    assert found.rank_seconds == pytest.approx(max(by_rank) / 1e9 / found.probe.gb_per_s)


def test_a_rate_is_in_units_of_a_billion_bytes():
    probe = StorageProbe(num_bytes=3_000_000_000, seconds=2.0, is_direct=True)
    assert probe.gb_per_s == 1.5
    assert probe.seconds_for(212_000_000_000) == pytest.approx(141.33, abs=0.01)


def test_a_missing_part_is_named(small_tp2, tmp_path):
    copy = shutil.copytree(small_tp2, tmp_path / "copy")
    (copy / "rank-1" / "target-part-00000.safetensors").unlink()
    with pytest.raises(UserError, match="target-part-00000.safetensors: found not readable"):
        storage_probe.of_artifact(copy)


def test_files_without_content_are_refused(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(UserError, match="1 files without content"):
        storage_probe.of_files([tmp_path / "empty"], OPTIONS)
