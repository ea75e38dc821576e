"""Whatever the prefix cache evicts, every token is the one transformers gives without any cache."""

from __future__ import annotations

import pytest

from sglang_mi300a.cli.server_process import Server, ServerDied
from tests.serving.conftest import SERVE

NUM_TOKENS = 12
TURNS = 3


class Chats:
    """Conversations that take turns, so that each rests while the others need state slots.

    Attributes:
        cached: Prompt tokens from the cache, by turn.
        could_be: What an endless cache would have had of them.
    """

    def __init__(self, server, oracle, count):
        self._server, self._oracle = server, oracle
        self._histories = [()] * count
        self.cached, self.could_be = [], []

    def turn(self, number, only=None):
        """Send the next turn of every conversation, or of one, at once; compare all answers."""
        chats = range(len(self._histories)) if only is None else [only]
        prompts = []
        for chat in chats:
            words = "and so on and on " * (12 + 3 * chat + 5 * number)
            prompts.append((*self._histories[chat], *self._oracle.prompt(f"{chat}: {words}")))
        answers = self._server.complete_all(prompts, NUM_TOKENS)
        wanted = [self._oracle.tokens(prompt, NUM_TOKENS) for prompt in prompts]
        assert [answer.tokens for answer in answers] == wanted
        self.cached.append([answer.cached_tokens for answer in answers])
        self.could_be.append([len(self._histories[chat]) // 64 * 64 for chat in chats])
        # The next turn renders the reply anew: it shares the prompt but for its last two tokens.
        for chat, prompt in zip(chats, prompts, strict=True):
            self._histories[chat] = (*prompt[:-2], *prompt[-1:])


def a_chat_alone_goes_on_at_once(chats):
    """Whatever order requests came in before: nothing evicts a state between these two turns."""
    chats.turn(0, only=0)
    chats.turn(0, only=0)
    assert chats.cached[-1] != [0]


def some_is_found_and_some_was_evicted(chats):
    found = sum(sum(turn) for turn in chats.cached[1:])
    could_be = sum(sum(turn) for turn in chats.could_be[1:])
    assert 0 < found < could_be
    assert any(not cached for turn in chats.cached[1:] for cached in turn)


@pytest.mark.parametrize("served", ["tuned TP 2"], indirect=True)
def test_under_constant_eviction_turns_are_answered_as_without_a_cache(served):
    server, oracle = served
    chats = Chats(server, oracle, count=20)  # 32 state slots: 4 for each of 8 running requests
    for number in range(2):
        chats.turn(number)
    a_chat_alone_goes_on_at_once(chats)
    some_is_found_and_some_was_evicted(chats)
    assert server.hooks["pools.turn_tail"]["calls_min_over_ranks"] == 1
    assert server.hooks["pools.turn_tail_margin"]["calls_min_over_ranks"] > 0


TINY = ["--max-running-requests", "2", "--max-mamba-cache-size", "11", "--max-total-tokens", "1536"]
AMPLE = ["--max-running-requests", "8", "--max-mamba-cache-size", "96"]
CHUNKS = ["--chunked-prefill-size", "128"]


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_tiny_pools_and_chunked_prompts_change_no_token(artifacts, oracles, tp):
    oracle = oracles(echo=True)
    command = [*SERVE, "--model", str(artifacts(tp, echo=True)), "--preset", "tuned"]
    with Server([*command, *TINY, *CHUNKS]) as server:
        chats = Chats(server, oracle, count=6)
        for number in range(TURNS):
            chats.turn(number)
        a_chat_alone_goes_on_at_once(chats)
    some_is_found_and_some_was_evicted(chats)


@pytest.mark.slow
def test_with_ample_slots_every_turn_finds_its_conversation(artifacts, oracles):
    oracle = oracles(echo=True)
    command = [*SERVE, "--model", str(artifacts(1, echo=True)), "--preset", "tuned"]
    with Server([*command, *AMPLE]) as server:
        chats = Chats(server, oracle, count=6)
        for number in range(TURNS):
            chats.turn(number)
    for cached, could_be in zip(chats.cached[1:], chats.could_be[1:], strict=True):
        for found, most in zip(cached, could_be, strict=True):
            assert most - 64 <= found <= most  # the margin to a prompt's end may cost one step


@pytest.mark.slow
def test_without_drafts_the_states_of_replies_are_kept_and_right(artifacts, oracles):
    oracle = oracles(echo=True)
    command = [*SERVE, "--model", str(artifacts(1, echo=True)), "--preset", "baseline"]
    cache = ["--radix-cache-backend", "gdn-turntail", "--mamba-radix-cache-strategy"]
    with Server([*command, *cache, "extra_buffer", "--mamba-track-interval", "64"]) as server:
        prompt = oracle.prompt("and so on and on " * 12)
        reply = tuple(oracle.tokens(prompt, 70))
        assert server.complete(prompt, 70).tokens == list(reply)
        follow_up = (*prompt, *reply, *oracle.prompt("Go on."))
        answer = server.complete(follow_up, NUM_TOKENS)
        assert answer.cached_tokens > len(prompt)
        assert answer.tokens == oracle.tokens(follow_up, NUM_TOKENS)
        assert server.hooks["cpu_engine.snapshot_states"]["calls_min_over_ranks"] > 0


@pytest.mark.slow
def test_off_the_preset_stock_still_refuses_the_extra_buffer_on_a_cpu(models):
    command = [*SERVE, "--model", str(models(echo=True)), "--preset", "off"]
    flags = ["--device", "cpu", "--mamba-radix-cache-strategy", "extra_buffer"]
    with pytest.raises(ServerDied) as died, Server([*command, *flags]):
        pass
    assert "extra_buffer needs CUDA" in died.value.log
