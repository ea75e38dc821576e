"""Weights that landed on a neighbour are told from recorded sequences of the nodes' memory."""

from sglang_mi300a.pools import unified_memory
from sglang_mi300a.pools.byte_text import GB
from sglang_mi300a.pools.landing import Load, landings
from tests.pools.unified_memory.machines import take, unpack_idle

WEIGHTS = 56 * GB


def sequence(root, *taken):
    """Four idle APUs before, and after so many bytes went on each NUMA node."""
    before = unified_memory.read(unpack_idle(root)).apus
    for node, num_bytes in enumerate(taken):
        take(root, node, num_bytes)
    after = unified_memory.read(root).apus
    return [
        Load(old.index, old.node_bytes, new.node_bytes, WEIGHTS)
        for old, new in zip(before, after, strict=True)
    ]


def moved(found):
    return [(round(one.num_bytes / GB, 2), one.apu, one.on) for one in found]


def test_weights_that_are_where_they_belong_are_no_finding(tmp_path):
    assert landings(sequence(tmp_path, *[WEIGHTS] * 4)) == []


def test_contexts_and_libraries_that_came_meanwhile_are_no_finding(tmp_path):
    assert landings(sequence(tmp_path, *[WEIGHTS + 2 * GB] * 4)) == []


def test_a_part_on_the_neighbour_is_named_with_both_apus(tmp_path):
    loads = sequence(tmp_path, WEIGHTS - 12 * GB, WEIGHTS + 12 * GB, WEIGHTS, WEIGHTS)
    [found] = landings(loads)
    assert moved([found]) == [(12, 0, 1)]
    assert str(found).startswith(
        "APU 0: 12.00 GB (11.18 GiB) of its weights landed on APU 1, which makes them slower"
    )


def test_two_short_apus_share_two_neighbours(tmp_path):
    loads = sequence(
        tmp_path, WEIGHTS - 20 * GB, WEIGHTS + 12 * GB, WEIGHTS - 4 * GB, WEIGHTS + 12 * GB
    )
    assert moved(landings(loads)) == [(12, 0, 1), (8, 0, 3), (4, 2, 3)]


def test_page_cache_that_grew_is_not_taken_for_weights(tmp_path):
    unpack_idle(tmp_path)
    loads = sequence(tmp_path, *[WEIGHTS] * 4)
    take(tmp_path, 0, 30 * GB)
    take(tmp_path, 0, -30 * GB, "Inactive(file)")
    after = unified_memory.read(tmp_path).apus[0].node_bytes
    assert abs(loads[0].after_bytes - after) < 4096
    assert landings([Load(0, loads[0].before_bytes, after, WEIGHTS), *loads[1:]]) == []


def test_what_another_program_took_is_not_called_weights(tmp_path):
    [found] = landings(sequence(tmp_path, WEIGHTS, WEIGHTS, WEIGHTS + 9 * GB, WEIGHTS))
    assert moved([found]) == [(9, None, 2)]
    assert "another program takes its memory" in str(found)


def test_weights_on_a_numa_node_without_an_apu_are_told(tmp_path):
    [found] = landings(sequence(tmp_path, WEIGHTS, WEIGHTS - 30 * GB, WEIGHTS, WEIGHTS))
    assert moved([found]) == [(30, 1, None)]
    assert "landed on a NUMA node that is no APU of this job" in str(found)
