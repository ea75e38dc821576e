"""The memory of APUs, obeyed by a real server: the CPU engine takes a recorded node for its own."""

import re
import time

import pytest

from sglang_mi300a import settings
from sglang_mi300a.cli.server_process import Server
from sglang_mi300a.pools import unified_memory
from sglang_mi300a.pools.byte_text import GB
from tests.pools.unified_memory.machines import take, unpack_idle
from tests.serving.conftest import NUM_TOKENS, STOCK_LAUNCH, stock_environment
from tests.serving.test_controls import other_plugin, start

LEFT_BYTES = 40 * GB


@pytest.fixture
def node(tmp_path):
    """Four recorded APUs, of which 40 GB are left."""
    root = unpack_idle(tmp_path / "node")
    idle = unified_memory.read(root).apus[0].node_bytes
    for number in range(4):
        take(root, number, idle - LEFT_BYTES)
    return root


def command(artifacts, *flags, **model):
    artifact = str(artifacts(2, **model))
    return [*STOCK_LAUNCH, "--model-path", artifact, "--tp-size", "2", "--mi300a", "tuned", *flags]


def wait_for(server, line, within_s=30):
    """Wait until a server has printed a line; return what it printed before."""
    deadline = time.monotonic() + within_s
    while line not in server.log:
        assert time.monotonic() < deadline, server.log[-3000:]
        time.sleep(0.2)
    return len(server.log)


def most_running(log):
    return max(int(number) for number in re.findall(r"#running-req: (\d+)", log))


@pytest.mark.slow
def test_admissions_pause_and_resume_in_a_running_server_and_tokens_stay_the_same(
    artifacts, oracles, node
):
    import requests

    oracle = oracles(echo=True)
    prompts = [oracle.prompt(f"How much is left? {number}") for number in range(6)]
    expected = [oracle.tokens(prompt) for prompt in prompts]
    flags = ["--enable-metrics", "--decode-log-interval", "1"]
    here = stock_environment(**{settings.SIMULATED_NODE: str(node)})

    def answers(server):
        return [answer.tokens for answer in server.complete_all(prompts, NUM_TOKENS)]

    with Server(command(artifacts, *flags, echo=True), here) as server:
        assert f"simulated node {node}: memory: " in server.log
        wait_for(server, "APU 1: 0.00 GB (0.00 GiB) taken since its weights began to load")
        began = len(server.log)
        assert answers(server) == expected
        assert most_running(server.log[began:]) > 1

        take(node, 1, 30 * GB)
        paused = wait_for(server, "admissions are paused, requests wait and run one at a time")
        wait_for(server, "context override: {'pp_max_micro_batch_size': 1}")
        assert answers(server) == expected
        assert most_running(server.log[paused:]) <= 1
        gauges = requests.get(f"{server.url}/metrics", timeout=10).text
        assert "sglang_mi300a_admissions_paused 1.0" in gauges
        [left] = re.findall(r'sglang_mi300a_apu_available_bytes\{apu="1"\} (\S+)', gauges)
        assert float(left) == pytest.approx(10 * GB, rel=1e-3)

        take(node, 1, -30 * GB)
        resumed = wait_for(server, "every APU has its reserve again: admissions resume")
        wait_for(server, "context override: {'pp_max_micro_batch_size': 8}")
        assert answers(server) == expected
        assert most_running(server.log[resumed:]) > 1


IN_RANK_1 = """
import sys

def activate():
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run_scheduler_process" and frame.f_locals["tp_rank"] == 1:
            act()
        frame = frame.f_back

"""
MEMORY_GOES = """
def act():
    path = "{root}/sys/devices/system/node/node1/meminfo"
    lines = open(path).read().splitlines()
    changed = ["Node 1 MemFree: 1048576 kB" if " MemFree:" in line else line for line in lines]
    open(path, "w").write("\\n".join(changed) + "\\n")
"""
ANOTHER_BUDGET = """
def act():
    import os
    name = "SGLANG_MI300A_RESOLVED"
    os.environ[name] = os.environ[name].replace('"kv_tokens": 8192', '"kv_tokens": 8176')
"""


@pytest.mark.slow
def test_memory_that_goes_between_launch_and_pools_stops_the_server_with_the_apus_name(
    artifacts, node, tmp_path
):
    source = IN_RANK_1 + MEMORY_GOES.format(root=node)
    here = {**other_plugin(tmp_path, source), settings.SIMULATED_NODE: str(node)}
    died = start(command(artifacts), here)
    assert died.exit_code == 1
    assert (
        "rank 1 refused: weights are loaded, and what is left to allocate does not fit." in died.log
    )
    assert re.search(r"APU 1: \d+\.\d+ GB \(\d+\.\d+ GiB\) missing", died.log)


@pytest.mark.slow
def test_a_rank_that_was_told_another_budget_stops_the_server(artifacts, tmp_path):
    died = start(command(artifacts), other_plugin(tmp_path, IN_RANK_1 + ANOTHER_BUDGET))
    assert died.exit_code == 2
    assert "rank 1: found KV tokens: 8176; supported: KV tokens: 8192, as on rank 0" in died.log
