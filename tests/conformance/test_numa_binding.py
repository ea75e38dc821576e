"""SGLang binds a rank to the CPUs and the memory of the NUMA node that --numa-node names."""

from tests.cpu_engine import standin_process

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
    done = standin_process.run(STOCK)
    assert done.stdout.splitlines()[-3:] == [
        "96 [('setaffinity', 24, 47), ('set_preferred', 1)]",
        "40 [('setaffinity', 24, 39), ('set_preferred', 1)]",
        "24 []",
    ], done.stderr[-2000:]
