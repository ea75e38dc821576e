"""What holds memory is named: cache, tmpfs, core dumps, other programs."""

import pytest

from sglang_mi300a.pools import memory_holders, unified_memory
from sglang_mi300a.pools.byte_text import GIB, MIB
from tests.pools.unified_memory.machines import unpack


def held(memory, index):
    return {row.what: row for row in memory.apus[index].held}


@pytest.fixture
def node(tmp_path):
    return unpack(tmp_path, "mi300a-node")


def test_page_cache_is_named_and_known_to_be_given_up(node):
    rows = held(unified_memory.read(node), 1)
    assert rows["page cache"].num_bytes == 48 * GIB
    assert rows["page cache"].reclaimable
    assert rows["page cache not written back yet"].remedy == "sync"


def test_tmpfs_and_other_programs_device_memory_are_not_given_up(node):
    rows = held(unified_memory.read(node), 2)
    assert rows["tmpfs and shared memory"].num_bytes == 20 * GIB
    assert rows["device memory of other programs"].num_bytes == 24 * GIB
    assert not rows["tmpfs and shared memory"].reclaimable


def write_dump(path):
    """Write 80 MiB that take blocks, in two files that are core dumps and one that is none."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "gpucore.4711").write_bytes(b"\1" * (40 * MIB))
    (path / "core").write_bytes(b"\1" * (40 * MIB))
    (path / "corelib.bin").write_bytes(b"\1" * (40 * MIB))


def test_core_dumps_on_tmpfs_are_found_and_others_files_are_not_counted(node):
    write_dump(node / "dev/shm")
    write_dump(node / "data")
    with (node / "proc/self/mounts").open("a") as mounts:
        mounts.write("/dev/sdb1 /data ext4 rw,relatime 0 0\n")
    rows = held(unified_memory.read(node), 0)
    [dumps] = [row for what, row in rows.items() if "core dumps" in what]
    assert dumps.what == "2 core dumps on tmpfs /dev/shm"
    assert 80 * MIB <= dumps.num_bytes < 90 * MIB
    assert dumps.remedy.startswith("rm /dev/shm/")


def test_big_processes_are_named_on_the_node_where_their_memory_lies(node):
    for pid, name, kib in ((100, "python3", 30 << 20), (200, "bash", 1000)):
        folder = node / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "status").write_text(f"Name:\t{name}\nVmRSS:\t{kib} kB\n")
        (folder / "numa_maps").write_text(
            "7f00 default anon=5242880 dirty=5242880 N0=1048576 N3=4194304 kernelpagesize_kB=4\n"
            "7f01 default huge anon=1024 N3=1024 kernelpagesize_kB=2048\n"
        )
    memory = unified_memory.read(node)
    assert held(memory, 0)["process 100 python3"].num_bytes == 4 * GIB
    assert held(memory, 3)["process 100 python3"].num_bytes == 18 * GIB
    assert "process 100 python3" not in held(memory, 1)
    assert not any("bash" in what for what in held(memory, 0))


def test_huge_pages_that_lie_idle_are_named():
    rows = memory_holders.on_node({"HugePages_Free": 1024}, sharers=1)
    assert [(row.what, row.num_bytes) for row in rows] == [("huge pages set aside", 2 * GIB)]


def test_counts_and_sizes_of_a_meminfo_are_told_apart(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("Node 0 Active(file):   2 kB\nHugePages_Free:  3\nnonsense\nMemFree: x kB\n")
    assert memory_holders.meminfo(path) == {"Active(file)": 2048, "HugePages_Free": 3}
