"""The conversations are those of the published benchmark, and share what real chats share."""

from __future__ import annotations

import itertools
import statistics

import pytest

from sglang_mi300a.pools.workload import GRID_TOKENS, THINKING_TOKENS, Clients, Session, Workload


def finish(session):
    reply = session.generate(session.reply_tokens)
    before = session.prompt
    session.next_turn(reply)
    return before, reply


def shared(a, b):
    return next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def test_a_session_is_the_same_whatever_ran_before_it():
    alone = Workload(seed=3).turns(17)
    [Workload(seed=3).turns(n) for n in range(17)]
    assert alone == Workload(seed=3).turns(17)
    assert alone != Workload(seed=4).turns(17)


def test_turns_rests_and_replies_stay_in_their_ranges():
    sessions = [Workload().turns(n) for n in range(300)]
    turns = list(itertools.chain(*sessions))
    assert {len(one) for one in sessions} == {3, 4, 5, 6}
    assert all(
        one[0].think_s == 0 and all(1 <= t.think_s <= 8 for t in one[1:]) for one in sessions
    )
    assert all(80 <= turn.reply_tokens <= 300 for turn in turns)
    assert all(30 <= len(turn.user_tokens) <= 2 * 300 for turn in turns)
    assert statistics.mean(len(turn.user_tokens) for turn in turns) == pytest.approx(177, rel=0.05)


def test_longer_rests_change_nothing_else():
    once, four = Workload().turns(5), Workload(think_factor=4).turns(5)
    assert [t.user_tokens for t in once] == [t.user_tokens for t in four]
    assert [4 * t.think_s for t in once] == [t.think_s for t in four]


def test_a_re_prefilled_reply_shares_the_last_prompt_but_for_the_opened_thinking():
    session = Session(Workload(), 1)
    before, reply = finish(session)
    assert shared(before + reply, session.prompt) == len(before) - THINKING_TOKENS
    assert len(session.prompt) > len(before) + len(reply)


def test_a_matched_reply_is_shared_whole():
    session = Session(Workload(replies="matched"), 1)
    before, reply = finish(session)
    assert shared(before + reply, session.prompt) == len(before) + len(reply)


def test_what_is_ideal_is_the_deepest_grid_point_of_what_is_shared():
    session = Session(Workload(), 1)
    assert session.ideal_cached_tokens(256) == 0
    before, _ = finish(session)
    ideal = session.ideal_cached_tokens(256)
    assert ideal % GRID_TOKENS == 0
    assert ideal <= len(before) - THINKING_TOKENS < ideal + GRID_TOKENS


def test_of_a_matched_reply_the_tracked_points_are_ideal_too():
    session = Session(Workload(replies="matched"), 2)
    before, reply = finish(session)
    computed = len(before) + len(reply) - 1
    assert session.ideal_cached_tokens(256) == max(len(before) // 64 * 64, computed // 256 * 256)


def test_only_the_first_session_has_to_prefill_the_shared_prompt():
    workload = Workload(system_tokens=600)
    assert Session(workload, 0).ideal_cached_tokens(256) == 0
    assert Session(workload, 1).ideal_cached_tokens(256) == 576
    assert shared(Session(workload, 0).prompt, Session(workload, 1).prompt) >= 600


def test_a_free_client_takes_the_session_that_rested_longest_or_opens_one():
    clients = Clients(Workload())
    first, second = clients.take(0.0), clients.take(0.0)
    assert (first.number, second.number) == (0, 1)
    clients.replied(first, first.generate(first.reply_tokens), 0.0)
    clients.replied(second, second.generate(second.reply_tokens), 0.0)
    rests = sorted((s.turns[1].think_s, s) for s in (first, second) if s)
    assert clients.take(0.5).number == 2  # nobody has rested a second yet
    assert clients.take(9.0) is rests[0][1]
    assert clients.take(9.0) is rests[1][1]


def test_a_session_ends_with_its_last_turn():
    clients = Clients(Workload())
    session = clients.take(0.0)
    while not session.is_last_turn:
        clients.replied(session, session.generate(session.reply_tokens), 0.0)
        assert clients.take(99.0) is session
    clients.replied(session, session.generate(session.reply_tokens), 0.0)
    assert clients.num_resting == 0
