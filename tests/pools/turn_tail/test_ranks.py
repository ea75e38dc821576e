"""Ranks evict on their own and must agree: what is evicted depends on the requests alone."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from sglang_mi300a.cpu_engine import recipe
from tests import repository
from tests.pools.turn_tail.conftest import Chat, policy_of


def log_evictions(server: Any) -> list[tuple[int, int]]:
    """Return a list that grows by (tokens, slot) of each snapshot the server evicts."""
    component, log = policy_of(server), []
    evict = component.evict_component

    def logged(node: Any, *args: Any, **kwargs: Any) -> Any:
        value = node.component_data[component.component_type].value
        if value is not None:
            log.append((depth_of(node), int(value)))
        return evict(node, *args, **kwargs)

    component.evict_component = logged
    return log


def depth_of(node: Any) -> int:
    depth = 0
    while node.parent is not None:
        depth += len(node.key)
        node = node.parent
    return depth


def some_traffic(server: Any) -> list[tuple[int, int]]:
    log = log_evictions(server)
    chats = [Chat(server, f"chat {n}", system_tokens=150 * (n % 2)) for n in range(9)]
    for turn, length in enumerate((180, 330, 641, 700, 850)):
        for n, chat in enumerate(chats):
            if (n + turn) % 4:
                chat.start(length + 7 * n, reply_tokens=20 + 9 * n)
            for _ in range(6):
                server.step()
    while any(server.step()[:2]):
        pass
    return log


@pytest.mark.parametrize("policy", ["turntail", "turntail+margin"])
def test_node_ids_do_not_matter(serve, policy):
    sizes = {"slots": 18, "max_running": 4, "kv_tokens": 6_000}
    first = some_traffic(serve(policy, **sizes))
    for _ in range(3):
        serve(policy, **sizes)  # takes node ids
    assert len(first) > 30
    assert some_traffic(serve(policy, **sizes)) == first


def test_stock_evicts_something_else(serve):
    sizes = {"slots": 18, "max_running": 4, "kv_tokens": 6_000}
    assert some_traffic(serve("turntail", **sizes)) != some_traffic(serve("stock", **sizes))


RANK = """
import random
from benchmarks import cache_replay, replay_server
from tests.pools.turn_tail import test_ranks
cell = cache_replay.Cell(16, 72, "turntail+margin", system_tokens=200)
log = []
def check(self):  # called by the replay every so many turns
    if not log:
        log.append(test_ranks.log_evictions(self))
replay_server.Server.check = check
count = cache_replay.replay(cell, seed=3, warm_up_turns=40, turns=400, check_every=20)
test_ranks.report(log[0], count)
"""


def report(log: list[tuple[int, int]], count: Any) -> None:
    """Print what a rank did, as one line of JSON."""
    digest = hashlib.sha256(repr(log).encode()).hexdigest()
    print(json.dumps({"evictions": len(log), "digest": digest, "cached": count.cached}))


def run_rank(hash_seed: str) -> dict[str, Any]:
    path = os.pathsep.join([str(recipe.standins_path()), str(repository.ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RANK],
        env=environment,
        cwd=repository.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return last


@pytest.mark.slow
def test_two_processes_with_other_hash_seeds_evict_identically():
    first = run_rank("1")
    assert first["evictions"] > 200
    assert run_rank("20260225") == first
