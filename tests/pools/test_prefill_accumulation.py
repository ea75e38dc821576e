"""Prompts wait for each other, never longer than the cap, and one rank says when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_mi300a import hooking
from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import hooks
from sglang_mi300a.pools.prefill_accumulation import (
    LEAST_RUNNING,
    AccumulatingDelayer,
    Accumulation,
    Limits,
)


def request(rid, prompt_tokens, cached_tokens=0):
    return SimpleNamespace(
        rid=rid,
        full_untruncated_fill_ids=range(prompt_tokens),
        prefix_indices=range(cached_tokens),
    )


class Rank:
    """A delayer with a queue of its own; ``passes`` are asked as SGLang's executor asks."""

    def __init__(self, limits, decided_by_one=lambda mine: mine):
        self.queue, self.chunked = [], False
        self.delayer = AccumulatingDelayer(
            limits,
            queue=lambda: self.queue,
            in_chunks=lambda: self.chunked,
            decided_by_one=decided_by_one,
        )

    def next_pass(self, running=LEAST_RUNNING, most=48):
        return self.delayer._negotiate_should_allow_prefill(
            local_prefillable=bool(self.queue),
            token_usage=0.5,
            running_batch=running,
            max_prefill_bs=0,
            max_running_requests=most,
            waiting_queue_len=len(self.queue),
        )


def passes_held(rank, **load):
    held = 0
    while not rank.next_pass(**load).output_allow:
        held += 1
    return held


@pytest.mark.parametrize("cap", [1, 8, 30])
def test_a_lone_prompt_waits_exactly_the_cap(cap):
    rank = Rank(Limits(1536, cap))
    rank.queue = [request("a", 100)]
    assert passes_held(rank) == cap
    rank.queue = [request("b", 100)]
    assert passes_held(rank) == cap  # the next one anew


def test_enough_new_tokens_start_a_prefill_at_once_and_cached_ones_do_not_count():
    rank = Rank(Limits(512, 8))
    rank.queue = [request("a", 2_000, cached_tokens=1_400)]
    assert passes_held(rank) == 0
    rank.queue = [request("b", 2_000, cached_tokens=1_600)]
    assert passes_held(rank) == 8


def test_prompts_behind_the_first_count_by_the_mean_of_those_seen():
    rank = Rank(Limits(512, 8))
    rank.queue = [request("a", 300)]
    assert not rank.next_pass().output_allow
    rank.queue.append(request("b", 900, cached_tokens=600))
    assert rank.next_pass().output_allow


def test_prompts_that_may_not_run_yet_do_not_count():
    rank = Rank(Limits(512, 8))
    rank.queue = [request("a", 300), request("b", 300), request("c", 300)]
    assert passes_held(rank, running=47, most=48) == 8


@pytest.mark.parametrize("running", [0, 1, LEAST_RUNNING - 1])
def test_with_few_to_hold_up_nothing_waits(running):
    rank = Rank(Limits(1536, 8))
    rank.queue = [request("a", 10)]
    assert passes_held(rank, running=running) == 0


def test_while_a_prompt_is_in_chunks_the_pass_happens_anyway_and_takes_others_along():
    rank = Rank(Limits(1536, 8))
    rank.queue, rank.chunked = [request("a", 10)], True
    assert passes_held(rank) == 0


def test_an_empty_queue_neither_waits_nor_counts():
    rank = Rank(Limits(1536, 3))
    for _ in range(10):
        assert rank.next_pass().output_allow
    rank.queue = [request("a", 10)]
    assert passes_held(rank) == 3


def test_the_mean_follows_what_comes():
    accumulation = Accumulation(Limits(512, 8))
    accumulation.learn(400)
    assert accumulation.mean_new_tokens == 400
    for _ in range(60):
        accumulation.learn(80)
    assert 80 <= accumulation.mean_new_tokens < 90


def test_a_rank_does_as_the_first_one_does_even_where_it_counted_otherwise():
    first = Rank(Limits(512, 4))
    decisions = []
    other = Rank(Limits(512, 9), decided_by_one=lambda mine: decisions[-1])
    first.queue = other.queue = [request("a", 100)]
    for _ in range(12):
        decisions.append(first.next_pass().output_allow)
        assert other.next_pass().output_allow == decisions[-1]
        held = first.delayer.accumulation.held_passes
        assert other.delayer.accumulation.held_passes == held
    assert decisions.count(True) == 2


@pytest.mark.parametrize(("text", "limits"), [(None, (0, 0)), ("0", (0, 0)), ("512/8", (512, 8))])
def test_limits_are_written_tokens_slash_passes(text, limits):
    found = Limits.from_text(text, "X")
    assert (found.tokens, found.passes) == limits
    assert found.hold_back == (limits != (0, 0))


@pytest.mark.parametrize("text", ["512", "512/", "/8", "-1/8", "512/8/1", "a/b"])
def test_other_spellings_are_refused(text):
    with pytest.raises(UserError, match="TOKENS/PASSES"):
        Limits.from_text(text, "X")


def test_a_verdict_has_what_sglangs_executor_reads(replay_server):
    from sglang.srt.managers.prefill_delayer import (
        PrefillDelayerSinglePassExecutor,
        _NegotiateOutput,
        _record_single_pass_result,
    )

    rank = Rank(Limits(512, 2))
    rank.queue = [request("a", 100)]
    allowed = []
    for _ in range(3):
        executor = PrefillDelayerSinglePassExecutor(rank.delayer, token_usage=0.5)
        for _ in range(2):  # every queued request asks; the answer is one a pass
            verdict = executor.negotiate_should_allow_prefill(
                True, running_batch=9, max_running_requests=48, waiting_queue_len=1
            )
        allowed.append(verdict)
        executor.finalize(actual_prefill_bs=int(verdict))
        metrics = SimpleNamespace(observe_prefill_delayer_outcome=lambda **_: None)
        _record_single_pass_result(True, executor._result, metrics, debug_log_enabled=True)
    assert allowed == [False, False, True]
    assert set(_NegotiateOutput._fields) - {"next_state"} <= set(executor._result._fields)


def scheduler(**more):
    return SimpleNamespace(prefill_delayer=None, waiting_queue=[], chunked_req=None, **more)


@pytest.fixture
def set_delayer(monkeypatch):
    """Return what the hook leaves on a scheduler, given the environment's text."""
    monkeypatch.setattr(hooks, "first_rank_decides", lambda group: lambda mine: mine)

    def run(text, **more):
        monkeypatch.setenv("SGLANG_MI300A_ACCUMULATE", text)
        one = scheduler(tp_cpu_group=None)
        vars(one).update(more)
        hooks._accumulate_prefills(None, one)
        return one.prefill_delayer

    return run


def test_the_hook_sets_a_delayer_where_there_is_none_and_limits_are_given(set_delayer):
    assert set_delayer("512/8").accumulation.limits == Limits(512, 8)
    assert set_delayer("0") is None
    assert set_delayer("512/8", prefill_delayer="stock's own") == "stock's own"


def test_the_hook_leaves_a_scheduler_alone_whose_executor_is_another(set_delayer, monkeypatch):
    seam = next(one for one in hooks.HOOKS if one.name == "pools.accumulate_executor")
    monkeypatch.setitem(hooking._installed, seam.name, hooking.Installed(seam, skipped="changed"))
    assert set_delayer("512/8") is None


def test_the_delayer_follows_a_queue_that_the_scheduler_replaces(set_delayer, monkeypatch):
    monkeypatch.setenv("SGLANG_MI300A_ACCUMULATE", "512/8")
    one = scheduler(tp_cpu_group=None)
    hooks._accumulate_prefills(None, one)
    one.waiting_queue = [request("a", 600)]
    verdict = one.prefill_delayer._negotiate_should_allow_prefill(True, 0.5, 9, 0, 48, 1)
    assert verdict.output_allow
