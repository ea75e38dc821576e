"""An accelerator's memory is that of its own NUMA node, under every limit that holds for it."""

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import unified_memory
from sglang_mi300a.pools.byte_text import GIB
from sglang_mi300a.pools.unified_memory import HipView
from tests.pools.unified_memory.machines import files, unpack

KIB = 1024
TTM = "sys/module/amdttm/parameters/pages_limit"


def node_kib(name, node, *entries):
    """Return the sum of entries of a NUMA node's meminfo."""
    text = files(name)[f"sys/devices/system/node/node{node}/meminfo"]
    values = {line.split()[2].rstrip(":"): int(line.split()[3]) for line in text.splitlines()}
    return sum(values[entry] for entry in entries)


def limit(apu, name):
    return next(limit for limit in apu.limits if limit.name == name)


def test_each_of_four_apus_has_its_own_nodes_free_and_reclaimable_memory(tmp_path):
    memory = unified_memory.read(unpack(tmp_path, "mi300a-node"))
    for node, apu in enumerate(memory.apus):
        assert (apu.index, apu.numa_node, apu.shared) == (node, node, True)
        assert apu.free_bytes == node_kib("mi300a-node", node, "MemFree") * KIB
        reclaimable = ("Active(file)", "Inactive(file)", "SReclaimable")
        assert apu.reclaimable_bytes == node_kib("mi300a-node", node, *reclaimable) * KIB
        assert apu.total_bytes < 128 * GIB
    free = [round(apu.node_bytes / GIB) for apu in memory.apus]
    # APU 1's page cache is given up on demand; APU 2's tmpfs and another program's memory are not.
    assert free == [115, 117, 72, 117]


def test_accelerators_come_in_the_order_that_the_job_sees_them(tmp_path):
    memory = unified_memory.read(unpack(tmp_path, "mi300a-node"), visible=[3, 1])
    assert [(apu.index, apu.numa_node) for apu in memory.apus] == [(0, 3), (1, 1)]


def test_the_nodes_sum_is_no_apus_memory(tmp_path):
    memory = unified_memory.read(unpack(tmp_path, "mi300a-node"))
    assert max(apu.available_bytes for apu in memory.apus) < 128 * GIB
    assert sum(apu.node_bytes for apu in memory.apus) > 400 * GIB


def test_no_vram_and_gtt_only_is_the_usual_case_on_an_apu(tmp_path):
    assert all(
        text == "0\n" for path, text in files("mi300a-node").items() if "mem_info_vram" in path
    )
    memory = unified_memory.read(unpack(tmp_path, "mi300a-node"))
    used = [512 * GIB - limit(apu, "GTT size").num_bytes for apu in memory.apus]
    assert used == [18653184, 18653184, 24 * GIB, 18653184]


def test_another_apu_is_known_by_having_no_vram(tmp_path):
    properties = {
        f"sys/class/kfd/kfd/topology/nodes/{n}/properties": files("mi300a-node")[
            f"sys/class/kfd/kfd/topology/nodes/{n}/properties"
        ].replace("device_id 29856", "device_id 12345")
        for n in range(4, 8)
    }
    memory = unified_memory.read(unpack(tmp_path, "mi300a-node", changed=properties))
    assert [apu.shared for apu in memory.apus] == [True] * 4
    assert memory.apus[1].free_bytes == node_kib("mi300a-node", 1, "MemFree") * KIB


def test_the_page_limit_is_for_all_apus_together_less_what_is_in_use(tmp_path):
    root = unpack(tmp_path, "mi300a-node", changed={TTM: f"{4 * 96 * GIB // 4096}\n"})
    apus = unified_memory.read(root).apus
    shares = [limit(apu, "TTM page limit") for apu in apus]
    assert [share.num_bytes for share in shares] == [
        96 * GIB - 18653184,
        96 * GIB - 18653184,
        72 * GIB,
        96 * GIB - 18653184,
    ]
    assert all(share.covers == "device" for share in shares)
    assert "amdttm.pages_limit=134217728" in shares[0].raise_by
    assert apus[1].available_bytes == 96 * GIB - 18653184


def test_a_page_limit_that_is_all_memory_need_not_be_raised(tmp_path):
    [first, *_] = unified_memory.read(unpack(tmp_path, "mi300a-node")).apus
    assert limit(first, "TTM page limit").raise_by == ""


def test_a_gpu_with_memory_of_its_own_is_not_charged_for_the_hosts(tmp_path):
    [gpu] = unified_memory.read(unpack(tmp_path, "one-mi300x")).apus
    assert (gpu.shared, gpu.total_bytes) == (False, 206141652992)
    assert gpu.available_bytes == 206141652992 - 10737418240
    assert gpu.reclaimable_bytes == 0


def test_a_machine_of_one_apu_needs_no_numa_node_in_its_pci_device(tmp_path):
    [apu] = unified_memory.read(unpack(tmp_path, "one-apu")).apus
    assert apu.numa_node == 0
    assert apu.available_bytes == 96 * GIB  # the page limit
    assert limit(apu, "TTM page limit").where.startswith("/sys/module/ttm/parameters/pages_limit")


@pytest.mark.parametrize(
    ("name", "limit_bytes", "used_bytes"),
    [
        # In use: what is charged, less what the group's own page cache and slabs would give back.
        ("container-v2", 300 * GIB, 20 * GIB - 15 * GIB),
        ("container-v1", 200 * GIB, 10 * GIB - 6 * GIB),
    ],
)
def test_a_containers_limit_is_shared_by_the_ranks(tmp_path, name, limit_bytes, used_bytes):
    memory = unified_memory.read(unpack(tmp_path, name))
    for apu in memory.apus:
        share = limit(apu, "cgroup")
        assert share.num_bytes == (limit_bytes - used_bytes) // 4
        assert share.covers == "all"
        assert apu.available_bytes <= share.num_bytes
    assert memory.cgroup.limit_bytes == limit_bytes


def test_a_groups_limit_is_shared_by_as_many_ranks_as_are_started(tmp_path):
    memory = unified_memory.read(unpack(tmp_path, "container-v2"), num_ranks=2)
    assert limit(memory.apus[0], "cgroup").num_bytes == 295 * GIB // 2


def test_a_job_without_an_apus_numa_node_gets_none_of_its_memory(tmp_path):
    apus = unified_memory.read(unpack(tmp_path, "cpuset-job")).apus
    assert [apu.available_bytes > 0 for apu in apus] == [True, True, False, False]
    assert "without NUMA node 2" in limit(apus[2], "cpuset").where
    assert not any(one.name == "cpuset" for one in apus[0].limits)


def test_the_tightest_group_on_the_way_up_counts(tmp_path):
    memory = unified_memory.read(unpack(tmp_path, "cpuset-job"))
    assert "job_77" in memory.cgroup.path
    assert memory.cgroup.free_bytes == 255 * GIB


def test_what_hip_says_is_a_limit_where_it_was_asked(tmp_path):
    root = unpack(tmp_path, "mi300a-node")
    apus = unified_memory.read(root, hip={1: HipView(7 * GIB, 128 * GIB)}).apus
    assert apus[1].available_bytes == 7 * GIB
    assert apus[0].available_bytes > 100 * GIB


def test_hidden_accelerators_still_share_the_page_limit(tmp_path):
    root = unpack(tmp_path, "mi300a-node")
    memory = unified_memory.read(root, visible=[2, 3])
    assert [(apu.index, apu.numa_node) for apu in memory.apus] == [(0, 2), (1, 3)]
    assert limit(memory.apus[1], "TTM page limit").num_bytes == 128 * GIB - 18653184


def test_accelerators_on_one_numa_node_share_its_memory(tmp_path):
    changed = {f"sys/bus/pci/devices/{i:04x}:01:00.0/numa_node": "0\n" for i in range(4)}
    memory = unified_memory.read(unpack(tmp_path, "mi300a-node", changed=changed))
    whole = node_kib("mi300a-node", 0, "MemFree") * KIB
    assert [apu.free_bytes for apu in memory.apus] == [whole // 4] * 4
    assert "serves 4 accelerators" in memory.notes[0]
    used = [512 * GIB - limit(apu, "GTT size").num_bytes for apu in memory.apus]
    assert used[2] == 24 * GIB  # told apart by PCI address


def test_a_machine_without_accelerators_is_refused(tmp_path):
    root = unpack(tmp_path, "mi300a-node", without=("sys/class/kfd",))
    with pytest.raises(UserError, match="no AMD accelerator.*--node FILE"):
        unified_memory.read(root)
    with pytest.raises(UserError, match="among the visible ones"):
        unified_memory.read(unpack(tmp_path / "all", "mi300a-node"), visible=[7])


def test_an_unreadable_numa_node_is_refused_and_not_replaced_by_the_sum(tmp_path):
    root = unpack(tmp_path, "mi300a-node", without=("sys/devices/system/node/node2",))
    with pytest.raises(UserError, match="node2/meminfo: found not readable.*not one accelerator's"):
        unified_memory.read(root)


def test_a_device_that_names_no_numa_node_is_refused_where_there_are_several(tmp_path):
    changed = {"sys/bus/pci/devices/0001:01:00.0/numa_node": "-1\n"}
    root = unpack(tmp_path, "mi300a-node", changed=changed)
    with pytest.raises(UserError, match=r"accelerator 1.*no NUMA node.*\[0, 1, 2, 3\]"):
        unified_memory.read(root)


def test_a_meminfo_without_totals_is_refused(tmp_path):
    changed = {"sys/devices/system/node/node0/meminfo": "Node 0 MemFree:  100 kB\n"}
    root = unpack(tmp_path, "mi300a-node", changed=changed)
    with pytest.raises(UserError, match="no MemTotal"):
        unified_memory.read(root)


def test_one_apu_without_numa_files_takes_the_machines_memory_and_says_so(tmp_path):
    root = unpack(tmp_path, "one-apu", without=("sys/devices/system/node",))
    # Its node is not told anywhere, so the PCI device has to say one.
    (root / "sys/bus/pci/devices/0000:01:00.0/numa_node").write_text("0\n")
    memory = unified_memory.read(root)
    assert memory.apus[0].free_bytes == 120000000 * KIB
    assert any("/proc/meminfo is used" in note for note in memory.notes)


def test_missing_limits_are_no_limits_and_the_page_limits_absence_is_said(tmp_path):
    optional = (
        "sys/module", "sys/fs/cgroup", "proc/self/cgroup", "proc/self/mountinfo",
        "proc/self/status", "proc/self/mounts", "sys/bus/pci/devices/0000:01:00.0/mem_info",
    )  # fmt: skip
    memory = unified_memory.read(unpack(tmp_path, "mi300a-node", without=optional))
    assert memory.apus[0].limits == ()
    assert memory.apus[0].available_bytes == memory.apus[0].node_bytes
    assert memory.notes == ("no TTM page limit can be read; none is assumed",)


def test_pages_that_the_graphics_driver_keeps_are_reclaimable_where_the_kernel_counts_them(
    tmp_path,
):
    path = "sys/devices/system/node/node0/meminfo"
    more = files("mi300a-node")[path] + "Node 0 GPUActive:  500 kB\nNode 0 GPUReclaim:  1000 kB\n"
    plain = unified_memory.read(unpack(tmp_path / "old", "mi300a-node")).apus[0]
    newer = unified_memory.read(unpack(tmp_path / "new", "mi300a-node", changed={path: more})).apus[
        0
    ]
    assert newer.reclaimable_bytes - plain.reclaimable_bytes == 1000 * KIB


@pytest.mark.parametrize(
    ("text", "expected"), [("0-3", {0, 1, 2, 3}), ("0,2-3", {0, 2, 3}), ("5", {5}), ("", set())]
)
def test_kernel_lists_of_numbers(text, expected):
    assert unified_memory.numbers(text) == expected
