"""Ranks run on the CPUs of their own APU's NUMA node, within what the job may use."""

import pytest

from sglang_mi300a.pools import binding
from sglang_mi300a.pools.binding import MemoryPolicy
from tests.pools.unified_memory.machines import unpack_idle

NODE_1 = set(range(24, 48))
PREFERRED = MemoryPolicy("preferred", frozenset({1}))


@pytest.fixture
def node(tmp_path):
    return unpack_idle(tmp_path)


def test_a_numa_nodes_cpus_are_the_kernels(node):
    assert binding.cpus_of(1, node) == NODE_1
    assert binding.cpus_of(9, node) == set()


def test_a_bound_rank_is_no_finding_whether_memory_is_preferred_or_left_to_the_kernel():
    assert binding.judge(1, NODE_1, set(range(24, 30)), PREFERRED) == []
    assert binding.judge(1, NODE_1, NODE_1, MemoryPolicy("default", frozenset())) == []
    assert binding.judge(1, NODE_1, NODE_1, None) == []


def test_a_rank_on_other_cpus_is_told_with_both_lists():
    [line] = binding.judge(1, NODE_1, set(range(96)), PREFERRED)
    assert line.startswith(
        "runs on CPUs 0-95 and not only on those of its NUMA node 1 (24-47); is libnuma"
    )


def test_memory_forced_elsewhere_is_told():
    forced = MemoryPolicy("bind", frozenset({0, 1, 2}))
    [line] = binding.judge(1, NODE_1, NODE_1, forced)
    assert "policy bind of NUMA nodes 0-2 and not of its own, 1" in line


def test_a_cpuset_without_a_nodes_cpus_is_told_before_the_start(node):
    allowed = set(range(24))
    assert binding.unusable([0], allowed, node) == []
    [line] = binding.unusable([0, 1], allowed, node)
    assert line.startswith("this job may use CPUs 0-23, none of NUMA node 1 (24-47)")


@pytest.mark.parametrize(
    ("numbers", "text"), [((), "none"), ((3,), "3"), ((0, 1, 2, 5), "0-2,5"), ((7, 9, 8), "7-9")]
)
def test_numbers_are_written_as_the_kernel_does(numbers, text):
    assert binding.as_list(set(numbers)) == text


def test_this_process_has_a_memory_policy_and_cpus():
    policy = binding.memory_policy()
    assert policy is None or policy.name in ("default", "preferred", "bind", "interleave", "local")
    assert binding.running_on()
