"""SGLang asks for free memory and is told this APU's own, where there is one."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_mi300a import gates, settings
from sglang_mi300a.pools import available_memory, hooks
from sglang_mi300a.pools.byte_text import GIB
from sglang_mi300a.pools.job_memory import JobMemory, Place
from sglang_mi300a.pools.unified_memory import HipView
from sglang_mi300a.settings import Resolved
from tests.foundation.test_rank_agreement import Together
from tests.pools.plan import models
from tests.pools.unified_memory.machines import unpack

STOCK_GIB = 343.3
"""What stock would say: the node's sum."""


def record_of(root, shared=True):
    places = tuple(Place(rank, rank, rank, shared) for rank in range(4))
    return Resolved(
        preset="tuned", device="gfx942", model_path="/m", tp_size=4, ep_size=1, num_local_ranks=4,
        with_draft=True, kv_tokens=4096, state_slots=32, max_running_requests=8, run_dir="/run",
        memory=JobMemory(models.plan(), places, str(root)).as_data(),
    )  # fmt: skip


def rank_gates(rank, all_gather=lambda mine: [mine]):
    return gates.RankGates(rank, None, all_gather, frozenset())


class Asked(list):
    """Calls of stock's own function."""

    def original(self, *args, **kwargs):
        self.append((args, kwargs))
        return STOCK_GIB


@pytest.fixture
def in_rank(tmp_path, monkeypatch):
    """Return a function that asks through the hook, in a rank of a recorded node."""

    def ask(rank, *, record=None, recorded="mi300a-node", **asked):
        record = record or record_of(unpack(tmp_path, recorded))
        monkeypatch.setattr(settings, "resolved", lambda: record)
        monkeypatch.setattr(gates, "_of_this_process", rank_gates(rank))
        calls = Asked()
        return hooks._available_memory(calls.original, "cpu", rank, **asked), calls

    return ask


def test_each_rank_is_told_its_own_apus_memory_and_never_the_nodes_sum(in_rank):
    told = [round(in_rank(rank)[0]) for rank in range(4)]
    assert told == [115, 117, 72, 117]


def test_what_torch_keeps_for_reuse_is_given_back_first_as_stock_does(in_rank):
    _, calls = in_rank(0, empty_cache=False)
    assert calls == [(("cpu", 0, False), {"empty_cache": False})]


def test_a_control_group_that_leaves_less_is_what_is_told(in_rank):
    assert in_rank(0, recorded="container-v2")[0] == (300 - 5) / 4


def test_a_gpu_with_memory_of_its_own_is_stocks_business(in_rank, tmp_path):
    record = record_of(unpack(tmp_path, "mi300a-node"), shared=False)
    told, calls = in_rank(1, record=record, distributed=True, empty_cache=True)
    assert told == STOCK_GIB
    assert calls == [(("cpu", 1, True), {"empty_cache": True})]


def test_without_a_plan_stocks_own_number_stands(in_rank, tmp_path):
    record = dataclasses.replace(record_of(tmp_path), memory={})
    told, calls = in_rank(0, record=record, distributed=True)
    assert (told, len(calls)) == (STOCK_GIB, 1)


def test_hip_binds_unless_it_knows_of_no_memory_at_all(tmp_path):
    record = record_of(unpack(tmp_path, "mi300a-node"))
    rank = rank_gates(0)
    for view, told in ((HipView(30 * GIB, 96 * GIB), 30), (HipView(0, 0), 115)):
        found = available_memory.available_gib(record, rank, view, distributed=False)
        assert round(found) == told


def test_distributed_means_the_least_of_all_ranks(tmp_path):
    record, together = record_of(unpack(tmp_path, "mi300a-node")), Together(4)

    def of_rank(rank):
        mine = rank_gates(rank, together.of(rank))
        return available_memory.available_gib(record, mine, None, distributed=True)

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(of_rank, range(4)))
    assert len(set(told)) == 1
    assert round(told[0]) == 72
