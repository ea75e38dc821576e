"""TurnTail's decisions, by themselves."""

from __future__ import annotations

import dataclasses

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools.turn_tail import policy
from sglang_mi300a.pools.turn_tail.policy import (
    Ledger,
    PathNode,
    ReplyLearner,
    ReturnLearner,
    Worth,
    continued,
    with_margin,
)
from sglang_mi300a.pools.turn_tail.refusals import Setup, refuse_what_is_unsupported


def test_all_are_kept_until_enough_is_known():
    worth = Worth()
    for _ in range(policy.NUM_FIRST - 1):
        worth.settle(unused=1)
        assert worth.wants()
    worth.settle(unused=1)
    assert not worth.wants()


def test_what_is_never_used_is_still_sampled_once_in_so_many():
    worth = Worth(unused=policy.NUM_FIRST)
    kept = [worth.wants() for _ in range(3 * policy.SAMPLE_EVERY)]
    assert [at for at, is_kept in enumerate(kept) if is_kept] == [
        n * policy.SAMPLE_EVERY - 1 for n in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("used", "unused", "kept"), [(1, 19, True), (1, 20, False), (0, 16, False)]
)
def test_a_kind_is_kept_from_one_use_in_twenty(used, unused, kept):
    assert Worth(used=used, unused=unused).wants() is kept


def test_the_past_fades_so_that_a_change_of_traffic_is_noticed():
    worth = Worth()
    worth.settle(unused=100_000)
    for _ in range(20):
        worth.settle(unused=1)
    used = 0
    while not worth.wants() or worth.refused:
        worth.settle(used=1)
        used += 1
    assert used <= policy.NUM_REMEMBERED  # a few hundred turns, with one sampled in 32


def test_a_reply_snapshot_replaces_its_prompts_only_when_nearly_all_next_turns_use_it():
    learner = ReplyLearner()
    for _ in range(90):
        learner.matched()
    assert learner.trusts()
    for _ in range(11):
        learner.passed()
    assert not learner.trusts()


def test_replies_of_ended_conversations_count_against_storing_but_not_against_trust():
    learner = ReplyLearner()
    for _ in range(20):
        learner.matched()
        learner.lost()
    assert learner.trusts()
    assert (learner.stored.used, learner.stored.unused) == (20, 20)


def test_without_late_returns_even_the_cheapest_snapshot_is_kept():
    learner = ReturnLearner(in_time=Worth(used=100, unused=1))
    assert learner.share_late() == 0
    assert [learner.wants(1, tokens) for tokens in (1000, 1000, 16)] == [True] * 3


def test_under_pressure_snapshots_that_save_little_go_first():
    learner = ReturnLearner(in_time=Worth(used=96, unused=4))
    for _ in range(100):
        assert learner.wants(2, 1000)
    assert not learner.wants(1, 256)
    assert learner.wants(1, 320)


def test_the_more_come_late_the_more_snapshots_go_first_up_to_a_limit():
    for late, (gone, kept) in {10: (300, 380), 50: (600, 700), 100: (600, 700)}.items():
        learner = ReturnLearner(in_time=Worth(used=100 - late, unused=late), mean_saved=16_000)
        assert not learner.wants(1, gone)
        learner.mean_saved = 16_000
        assert learner.wants(1, kept)


def test_conversations_that_never_go_on_are_told_by_their_turns():
    learner = ReturnLearner()
    for _ in range(policy.NUM_FIRST):
        learner.of(6).settle(unused=1)
        learner.of(3).settle(used=1)
    assert learner.wants(3, 500)
    assert not learner.wants(6, 500)


NEW = PathNode(1)
LOST = PathNode(2, lost_snapshot=True)
FORK = PathNode(3, is_fork=True)
LOST_FORK = PathNode(4, lost_snapshot=True, is_fork=True)
SHORT = PathNode(5, page_short=True)


@pytest.mark.parametrize(
    ("path", "node"),
    [
        ([], None),
        ([NEW], None),  # requests part here for the first time: a system prompt
        ([LOST], 2),
        ([LOST, NEW], 2),  # the same conversation, its last turn rendered otherwise
        ([FORK, LOST], 2),  # own snapshot, behind a shared prompt
        ([LOST, FORK], None),  # the shared prompt's snapshot is what is missing
        ([LOST_FORK], None),
        ([LOST, LOST_FORK, NEW], None),
        ([SHORT], 5),
        ([FORK], None),
    ],
)
def test_a_conversation_that_goes_on_is_told_from_requests_that_part(path, node):
    found = continued(path)
    assert (found.node if found else None) == node


@pytest.mark.parametrize(
    ("snapshot", "prompt", "moved"),
    [
        (960, 960, 896),
        (960, 967, 896),
        (960, 968, 960),  # exactly the margin
        (960, 1023, 960),
        (576, 576, 576),  # one grid step from the prefix: it would be the prefix's own
        (640, 640, 576),
    ],
)
def test_the_margin_moves_a_snapshot_by_one_grid_step_and_not_back_to_the_prefix(
    snapshot, prompt, moved
):
    assert moved == with_margin(
        prefix_tokens=512,
        snapshot_tokens=snapshot,
        prompt_tokens=prompt,
        margin_tokens=8,
        grid_tokens=64,
    )


def test_a_passed_reply_is_reported_once_and_its_loss_does_not_count_again():
    ledger = Ledger()
    ledger.store_reply(reply=7, prompt=5)
    assert ledger.match(5) == [7]
    assert ledger.match(5) == []
    ledger.evict(7)
    assert ledger.of_replies.stored == Worth(unused=1)


def test_a_matched_reply_counts_as_used():
    ledger = Ledger()
    ledger.store_reply(reply=7, prompt=5)
    assert ledger.match(7) == []
    assert ledger.of_replies.stored == Worth(used=1)
    assert 7 not in ledger.replies


def test_a_late_return_counts_once_for_each_eviction():
    ledger = Ledger()
    ledger.evict(3)
    ledger.return_late(3)
    ledger.return_late(3)
    assert ledger.of_returns.in_time == Worth(unused=1)
    ledger.store(3, num_turns=2)
    ledger.evict(3)
    ledger.return_late(3)
    assert ledger.of_returns.in_time == Worth(unused=2)


def test_a_snapshot_that_was_told_to_go_first_is_no_evidence_when_it_goes():
    ledger = Ledger(turns={1: 6})
    ledger.of_returns.of(6).settle(unused=policy.NUM_FIRST)
    assert not ledger.rest(1, saved_tokens=500)
    ledger.evict(1)
    assert ledger.of_returns.of(6).unused == policy.NUM_FIRST


def test_the_ledger_keeps_nothing_of_a_node_that_is_gone():
    ledger = Ledger()
    ledger.store(1, num_turns=1)
    ledger.rest(1, saved_tokens=100)
    ledger.store_reply(2, prompt=1)
    ledger.superseded_by[1] = 2
    for node in (2, 1):
        ledger.evict(node)
        ledger.forget(node)
    held = (ledger.superseded_by, ledger.lost, ledger.turns, ledger.resting, ledger.replies)
    assert not any([*held, ledger.replies_of])


FINE = Setup(
    is_hybrid_ssm=True,
    is_hybrid_swa=False,
    disable_radix_cache=False,
    enable_hierarchical_cache=False,
    enable_int8_mamba_checkpoint=False,
    enable_session_radix_cache=False,
    enable_streaming_session=False,
    enable_unified_memory=False,
    enable_lmcache=False,
    enable_flexkv=False,
    disaggregation_mode="null",
    mamba_extra_buffer=True,
    mamba_extra_buffer_lazy=False,
    cpp_tree=False,
    tree_core="python",
)


def test_the_supported_setup_passes():
    assert refuse_what_is_unsupported(FINE) is None


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"is_hybrid_ssm": False}, "the model.*no linear-attention states"),
        ({"is_hybrid_swa": True}, "sliding-window"),
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache.*HiCache"),
        ({"enable_int8_mamba_checkpoint": True}, "--enable-int8-mamba-checkpoint.*int8"),
        ({"cpp_tree": True}, "SGLANG_EXPERIMENTAL_CPP_RADIX_TREE.*C\\+\\+"),
        ({"tree_core": "rust"}, "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.*'rust'"),
        ({"enable_session_radix_cache": True}, "--enable-session-radix-cache"),
        ({"enable_streaming_session": True}, "--enable-streaming-session"),
        ({"enable_unified_memory": True}, "--enable-unified-memory"),
        ({"enable_lmcache": True}, "LMCache"),
        ({"enable_flexkv": True}, "FlexKV"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode.*'decode'"),
        ({"mamba_extra_buffer": False}, "--mamba-radix-cache-strategy.*'no_buffer'"),
        ({"mamba_extra_buffer_lazy": True}, "--mamba-radix-cache-strategy.*'extra_buffer_lazy'"),
    ],
)
def test_what_is_unsupported_is_refused_by_its_name(change, name):
    with pytest.raises(UserError, match=name):
        refuse_what_is_unsupported(dataclasses.replace(FINE, **change))


def test_every_part_of_the_setup_can_be_a_reason():
    reasons = {change for change, _ in _CHANGES}
    assert reasons == {field.name for field in dataclasses.fields(Setup)}


_CHANGES = [
    (next(iter(change)), name)
    for change, name in test_what_is_unsupported_is_refused_by_its_name.pytestmark[0].args[1]
]
