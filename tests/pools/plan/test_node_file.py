"""Described nodes: those that ship, those that users record, and those that are wrong."""

import copy
import json

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import node_file, unified_memory
from sglang_mi300a.pools.byte_text import GB, GIB
from tests.pools.unified_memory.machines import unpack

SHIPPED = {
    path.stem: json.loads(path.read_text()) for path in sorted(node_file._SHIPPED.glob("*.json"))
}
GOOD = SHIPPED["mi300a-x4"]


def test_the_reference_node_is_four_apus_of_128_2_gb():
    node = node_file.load("mi300a-x4")
    assert [apu.node_bytes for apu in node.memory.apus] == [128_200_000_000] * 4
    assert (node.host.planned, node.reserve.planned) == (8 * GB, 15 * GIB)
    [limit] = node.memory.apus[0].limits
    assert (limit.name, limit.num_bytes, limit.raise_by) == ("TTM page limit", 128 * GIB, "")


def test_the_second_node_differs_in_the_page_limit_only():
    other = SHIPPED["mi300a-x4-default-ttm"]
    assert {key for key in GOOD if GOOD[key] != other[key]} == {"name", "source", "ttm"}
    [limit] = node_file.load("mi300a-x4-default-ttm").memory.apus[0].limits
    assert limit.num_bytes == 96 * GIB


def test_a_node_that_was_read_comes_back_from_its_description(tmp_path):
    for name in ("mi300a-node", "container-v2", "container-v1", "one-apu"):
        read = unified_memory.read(unpack(tmp_path / name, name))
        described = json.loads(json.dumps(node_file.describe(read, name="x", source="y")))
        again = node_file.parse(described, "x").memory
        assert (again.ttm, again.cgroup) == (read.ttm, read.cgroup)
        for before, after in zip(read.apus, again.apus, strict=True):
            assert after.free_bytes == before.free_bytes
            assert after.reclaimable_bytes == before.reclaimable_bytes
            assert after.total_bytes == before.total_bytes


def test_apus_on_one_numa_node_share_it():
    data = copy.deepcopy(GOOD)
    for apu in data["apus"]:
        apu["numa_node"] = 0
    apu = node_file.parse(data, "x").memory.apus[3]
    assert (apu.free_bytes, apu.total_bytes) == (128_200_000_000 // 4, 128_200_000_000 // 4)


def test_a_control_group_is_shared_by_the_ranks():
    group = {"path": "/sys/fs/cgroup/memory.max", "limit_bytes": 100 * GB, "used_bytes": 20 * GB}
    memory = node_file.parse({**GOOD, "cgroup": group}, "x", num_ranks=2).memory
    assert memory.apus[0].available_bytes == 40 * GB


def test_without_figures_of_its_own_the_packages_are_used():
    data = {k: v for k, v in GOOD.items() if not k.endswith("processes_bytes")}
    assert node_file.parse(data, "x").host.planned == 8 * GB


def edited(change):
    data = copy.deepcopy(GOOD)
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(schema=2), "found schema 2; supported: schema 1"),
        (lambda d: d.pop("schema"), "found schema None"),
        (lambda d: d.pop("apus"), "found no apus"),
        (lambda d: d.update(gpus=[]), "unknown gpus"),
        (lambda d: d["numa_nodes"].pop(2), r"apus\[2\]: found numa_node 2.*0, 1, 3"),
        (lambda d: d["apus"][1].update(numa_node=9), "found numa_node 9"),
        (lambda d: d["apus"][1].update(index=0), "found index 0; supported: 1"),
        (lambda d: d["numa_nodes"][0].update(free_bytes=-1), "free_bytes -1"),
        (lambda d: d["numa_nodes"][0].update(free_bytes=1.5), "free_bytes 1.5"),
        (lambda d: d["numa_nodes"][0].update(free_bytes=10**18), "at most"),
        (lambda d: d["numa_nodes"][0].update(reclaimable_bytes=1), "more free and reclaimable"),
        (lambda d: d.update(apus=[]), r"apus \[\]"),
        (lambda d: d.update(ttm={"module": "xe", "pages_limit": 1}), "module amdttm or ttm"),
        (lambda d: d["ttm"].update(pages_limit="all"), "pages_limit 'all'"),
        (lambda d: d.update(cgroup={"limit_bytes": 1}), "path, limit_bytes and used_bytes"),
        (lambda d: d.update(reserve_bytes=True), "reserve_bytes True"),
    ],
)
def test_a_description_that_cannot_be_is_refused(change, words):
    with pytest.raises(UserError, match=words):
        node_file.parse(edited(change), "x")


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(UserError, match="not readable.*mi300a-x4"):
        node_file.load(str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match="no JSON"):
        node_file.load(str(tmp_path / "bad.json"))
    with pytest.raises(UserError, match="schema None"):
        node_file.parse([], "x")
