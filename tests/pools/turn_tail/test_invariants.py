"""Whatever requests do, the tree, the pools and the stored states stay right.

``Server.check`` is SGLang's own sanity check of the tree, plus: every state slot and every KV page
has exactly one owner and none is lost, and every stored state holds exactly the tokens that its
node names. It runs after every single action.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.pools.turn_tail.conftest import Chat, policy_of

POLICIES = st.sampled_from(["turntail", "turntail+margin", "turntail", "stock"])
SETUPS = st.fixed_dictionaries(
    {
        "slots": st.integers(10, 26),
        "max_running": st.integers(1, 5),
        "kv_tokens": st.sampled_from([1_920, 2_560, 8_000]),
        "overlap": st.booleans(),
        "chunk_tokens": st.sampled_from([128, 208, 1_024]),
        "track_tokens": st.sampled_from([64, 128]),
    }
)
CHATS = st.integers(0, 4)
MORE = st.one_of(st.integers(1, 420), st.sampled_from([62, 64, 65, 66, 128, 129, 192]))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), CHATS, MORE, st.integers(1, 90)),
        st.tuples(st.just("follow up"), CHATS, MORE, st.integers(1, 90)),
        st.tuples(st.just("again"), CHATS, st.just(0), st.integers(1, 20)),
        st.tuples(st.just("pass"), st.integers(1, 25)),
        st.tuples(st.just("pass"), st.integers(1, 25)),
        st.tuples(st.just("retract"), st.integers(0, 9)),
        st.tuples(st.just("abort"), st.integers(0, 9)),
        st.tuples(st.just("need slots"), st.integers(1, 6)),
        st.tuples(st.just("learn"), st.sampled_from(["used", "unused"])),
    ),
    min_size=60,
    max_size=120,
)
LONGEST = 900
"""Prompts stay below what the smallest KV pool holds beside one reply."""


class Play:
    """Some conversations with one server; each has at most one request in flight."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.chats: list[Chat] = []
        self.opened = 0
        for _ in range(5):
            self.chats.append(self.open())

    def open(self) -> Chat:
        self.opened += 1
        shared = (0, 0, 150, 150, 331)[self.opened % 5]
        return Chat(self.server, f"chat {self.opened}", system_tokens=shared)

    def act(self, action: tuple[Any, ...]) -> None:
        kind, *rest = action
        if kind == "pass":
            for _ in range(rest[0]):
                self.server.step()
                self.server.check()
        elif kind == "need slots":
            need_slots(self.server, rest[0])
        elif kind in ("retract", "abort"):
            self.end(kind, rest[0])
        elif kind == "learn":
            self.learn(rest[0])
        else:
            self.send(kind, *rest)
        self.server.check()

    def end(self, kind: str, which: int) -> None:
        reqs = list(self.server.decoding)
        if kind == "abort":
            reqs += self.server.waiting
            reqs += [self.server.in_chunks] if self.server.in_chunks else []
        if reqs:
            getattr(self.server, kind)(reqs[which % len(reqs)])

    def learn(self, what: str) -> None:
        ledger = getattr(policy_of(self.server), "ledger", None)
        if ledger is not None:
            ledger.of_replies.stored.settle(**{what: 40})
            ledger.of_replies.met.settle(**{what: 40})
            ledger.of_returns.in_time.settle(**{what: 10})

    def send(self, kind: str, which: int, more: int, reply_tokens: int) -> None:
        chat = self.chats[which]
        if chat.req is not None and not self.has_ended(chat.req):
            return
        before = chat.history
        if kind == "follow up" and chat.req is not None:
            reply = chat.req.output_ids[: chat.req.sampling_params.max_new_tokens]
            prompt = before + reply + chat.tokens(more)
        elif kind == "again" and chat.req is not None:
            prompt = array("q", before)
        else:
            prompt = before[: max(0, len(before) - 2)] + chat.tokens(more + 2)
        if len(prompt) > LONGEST:
            self.chats[which] = self.open()
            return
        chat.send(prompt, reply_tokens)

    def has_ended(self, req: Any) -> bool:
        return req.finished() or req not in self.server.requests()


def need_slots(server: Any, count: int) -> None:
    """Have states evicted, as when slots are needed elsewhere."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    server.cache.evict(EvictParams(num_tokens=0, mamba_num=count))


def play(start: Any, policy: str, setup: dict[str, Any], actions: list[Any]) -> Counter[str]:
    """Play one game to its end, checking after every action; return what happened in it."""
    server = start(policy, **setup)
    try:
        happened = watch(server)
        game = Play(server)
        for action in actions:
            game.act(action)
            happened["a prompt in chunks"] += server.in_chunks is not None
        for _ in range(3_000):
            server.check()
            if not any(server.step()[:2]):
                break
        assert not server.requests()
        server.check()
        assert server.pool.available_size() == server.setup.run_cap
        happened["a retraction"] += server.num_retracted
        return happened
    finally:
        server.close()


def watch(server: Any) -> Counter[str]:
    """Return a counter of what happens in a server from now on."""
    happened: Counter[str] = Counter()
    component, evict = policy_of(server), server.cache.evict

    def watched_evict(params: Any) -> Any:
        result = evict(params)
        happened["a state evicted"] += result.mamba_num_evicted
        happened["KV evicted"] += result.num_tokens_evicted
        return result

    def count(name: str, what: str) -> None:
        original = getattr(component.ledger, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            happened[what] += 1
            return original(*args, **kwargs)

        setattr(component.ledger, name, counted)

    server.cache.evict = watched_evict
    if hasattr(component, "ledger"):
        count("store_reply", "a reply stored")
        count("return_late", "a late return")
        learner = component.ledger.of_replies
        for name, what in (("matched", "a reply matched"), ("passed", "a reply passed by")):
            original = getattr(learner, name)
            setattr(learner, name, lambda original=original, what=what: tally(original, what))

        def tally(original: Any, what: str) -> None:
            happened[what] += 1
            original()

    return happened


EVENTS = {
    "a prompt in chunks",
    "a retraction",
    "a state evicted",
    "KV evicted",
    "a reply stored",
    "a reply matched",
    "a reply passed by",
    "a late return",
}


def many_games(start_server: Any, max_examples: int) -> Counter[str]:
    happened: Counter[str] = Counter()

    @hypothesis.settings(max_examples=max_examples)
    @hypothesis.given(policy=POLICIES, setup=SETUPS, actions=ACTIONS)
    def played(policy: str, setup: dict[str, Any], actions: list[Any]) -> None:
        happened.update(play(start_server, policy, setup, actions))

    played()
    return happened


UNLOCKED = pytest.mark.parametrize("unlocked", ["0", "1"], ids=["locked", "SKIP_DECODE_LOCK"])


@UNLOCKED
def test_nothing_is_lost_and_no_state_is_misnamed(start_server, monkeypatch, unlocked):
    monkeypatch.setenv("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK", unlocked)
    happened = many_games(start_server, 20)
    assert {what for what, count in happened.items() if count} >= EVENTS


@pytest.mark.slow
@UNLOCKED
def test_nothing_is_lost_in_many_more_interleavings(start_server, monkeypatch, unlocked):
    monkeypatch.setenv("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK", unlocked)
    happened = many_games(start_server, 500)
    assert {what for what, count in happened.items() if count > 20} >= EVENTS


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda server: server.pool.mamba_allocator.alloc(1), "1 slots are lost"),
        (lambda server: server.kv.alloc(16), "1 pages are lost"),
        (lambda server: misname(server), "stores a state of"),
        (lambda server: double(server), "two owners"),
        (lambda server: unlist(server), "Sanity check FAILED"),
    ],
)
def test_the_check_can_fail(serve, spoil, message):
    server = serve()
    for name in ("a", "b"):
        Chat(server, name).turn(400)
    server.check()
    spoil(server)
    with pytest.raises(AssertionError, match=message):
        server.check()


def misname(server: Any) -> None:
    node, _ = server.snapshots()[0]
    slot = int(node.component_data[policy_of(server).component_type].value)
    tokens, length = server.content[slot]
    server.content[slot] = (tokens, length - 64)


def double(server: Any) -> None:
    (first, _), (second, _) = server.snapshots()
    which = policy_of(server).component_type
    server.pool.mamba_allocator.free(second.component_data[which].value)
    second.component_data[which].value = first.component_data[which].value.clone()


def unlist(server: Any) -> None:
    node, _ = server.snapshots()[0]
    policy_of(server)._order.remove_node(node)
