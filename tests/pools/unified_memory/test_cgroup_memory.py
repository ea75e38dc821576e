"""Control groups of both versions, as containers and batch systems nest and hide them."""

import pytest

from sglang_mi300a.pools import cgroup_memory
from sglang_mi300a.pools.byte_text import GIB

V2 = "29 23 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n"
V1 = "30 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


@pytest.fixture
def machine(tmp_path):
    """Return a function that writes a process's groups and their files."""

    def write(groups, mounts, **folders):
        for path, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        for folder, names in folders.items():
            for name, value in names.items():
                file = tmp_path / "sys/fs/cgroup" / folder.replace("__", "/") / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f"{value}\n")
        return tmp_path

    return write


def v2(limit, used=0, high="max", stat=""):
    return {
        "memory.max": limit, "memory.high": high, "memory.current": used, "memory.stat": stat,
    }  # fmt: skip


def test_no_limit_is_none(machine):
    assert cgroup_memory.read(machine("0::/a\n", V2, a=v2("max"))) is None


def test_version_ones_largest_number_is_no_limit(machine):
    files = {"memory.limit_in_bytes": 9223372036854771712, "memory.usage_in_bytes": 5}
    assert cgroup_memory.read(machine("7:memory:/a\n", V1, memory__a=files)) is None


def test_the_level_that_leaves_least_counts_not_the_lowest_limit(machine):
    root = machine(
        "0::/a/b/c\n", V2, a=v2(100 * GIB, used=90 * GIB), a__b=v2(50 * GIB, used=GIB),
        a__b__c=v2("max"),
    )  # fmt: skip
    room = cgroup_memory.read(root)
    assert (room.path, room.free_bytes) == ("/sys/fs/cgroup/a/memory.max", 10 * GIB)


def test_throttling_counts_as_a_limit(machine):
    room = cgroup_memory.read(machine("0::/a\n", V2, a=v2(80 * GIB, high=60 * GIB)))
    assert (room.path, room.limit_bytes) == ("/sys/fs/cgroup/a/memory.high", 60 * GIB)


def test_the_groups_own_page_cache_is_not_in_use(machine):
    stat = f"anon 1\ninactive_file {3 * GIB}\nactive_file {GIB}\nslab_reclaimable {GIB}\n"
    room = cgroup_memory.read(machine("0::/a\n", V2, a=v2(20 * GIB, used=8 * GIB, stat=stat)))
    assert room.used_bytes == 3 * GIB


def test_a_group_over_its_limit_leaves_nothing(machine):
    room = cgroup_memory.read(machine("0::/a\n", V2, a=v2(GIB, used=2 * GIB)))
    assert room.free_bytes == 0


def test_a_path_outside_the_mount_falls_back_to_its_top(machine):
    mount = "29 23 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"
    root = machine("0::/elsewhere\n", mount, **{".": v2(7 * GIB)})
    assert cgroup_memory.read(root).limit_bytes == 7 * GIB


def test_a_mount_that_shows_a_part_of_the_hierarchy_is_entered_below_that_part(machine):
    mount = "29 23 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"
    root = machine(
        "0::/docker/x/worker\n", mount, **{".": v2(9 * GIB)}, worker=v2(4 * GIB, used=GIB)
    )
    room = cgroup_memory.read(root)
    assert (room.path, room.free_bytes) == ("/sys/fs/cgroup/worker/memory.max", 3 * GIB)


def test_a_hybrid_machine_is_read_by_the_version_that_has_the_memory_controller(machine):
    root = machine(
        "7:memory:/a\n0::/a\n",
        V1 + "31 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        memory__a={"memory.limit_in_bytes": 5 * GIB, "memory.usage_in_bytes": GIB},
        unified__a={"cgroup.procs": "1"},
    )
    assert cgroup_memory.read(root).free_bytes == 4 * GIB


def test_a_machine_that_shows_no_groups_has_no_limit(tmp_path):
    assert cgroup_memory.read(tmp_path) is None
