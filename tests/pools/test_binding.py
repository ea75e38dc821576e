"""Ranks run on the CPUs of their own APU's NUMA node, within what the job may use."""

import pytest

from sglang_mi300a.pools import binding
from sglang_mi300a.pools.binding import MemoryPolicy
from tests.cpu_engine import standin_process
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


STOCK = """
import ctypes, os, sys
from types import SimpleNamespace
from sglang.srt.utils import numa_utils

called = []

class Libnuma:
    numa_allocate_cpumask = SimpleNamespace()
    def numa_available(self): return 0
    def numa_set_preferred(self, node): called.append(("set_preferred", node.value))

numa_utils.get_libnuma = lambda: Libnuma()
numa_utils._node_cpus = lambda node: set(range(24 * node, 24 * node + 24))
os.sched_setaffinity = lambda pid, cpus: called.append(("setaffinity", min(cpus), max(cpus)))
server_args = SimpleNamespace(numa_node=[0, 1, 2, 3])
for num_allowed in (96, 40, 24):
    os.sched_getaffinity = lambda pid: set(range(num_allowed))
    numa_utils.numa_bind_to_node(numa_utils.get_numa_node_if_available(server_args, 1))
    print(num_allowed, called)
    called.clear()
"""


def test_stock_passes_the_kernel_the_nodes_cpus_within_the_cpuset():
    """The seam that this package relies on: --numa-node, in the rank, memory preferred."""
    done = standin_process.run(STOCK)
    assert done.stdout.splitlines()[-3:] == [
        "96 [('setaffinity', 24, 47), ('set_preferred', 1)]",
        "40 [('setaffinity', 24, 39), ('set_preferred', 1)]",
        "24 []",
    ], done.stderr[-2000:]
