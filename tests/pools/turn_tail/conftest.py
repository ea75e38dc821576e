"""SGLang's own cache classes in this process, imported as on the CPU engine."""

from __future__ import annotations

import dataclasses
import importlib
import random
from array import array
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

SYSTEM = range(5_000, 6_000)


@pytest.fixture(scope="session")
def cache_replay(replay_server: ModuleType) -> ModuleType:
    """``benchmarks.cache_replay``."""
    return importlib.import_module("benchmarks.cache_replay")


@pytest.fixture(scope="session")
def start_server(replay_server: ModuleType) -> Callable[..., Any]:
    """A function that starts a small server: policy by name, then sizes. The caller closes it."""

    def start(policy: str = "turntail", track_tokens: int = 256, **sizes: Any) -> Any:
        setup = {"slots": 24, "max_running": 4, "kv_tokens": 16_000, **sizes}
        chosen = replay_server.POLICIES[policy]
        setup["policy"] = dataclasses.replace(chosen, track_tokens=track_tokens)
        return replay_server.Server(replay_server.Setup(**setup), random.Random(7))

    return start


@pytest.fixture
def serve(start_server: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Like ``start_server``; the servers are closed when the test ends."""
    servers: list[Any] = []

    def start(*args: Any, **kwargs: Any) -> Any:
        servers.append(start_server(*args, **kwargs))
        return servers[-1]

    yield start
    for server in reversed(servers):
        server.close()


class Chat:
    """One conversation with a small server, turn by turn.

    Attributes:
        history: The last prompt.
        req: The last turn's request.
    """

    def __init__(self, server: Any, name: str, *, system_tokens: int = 0) -> None:
        self._server, self._name, self._at = server, name, 0
        self._rng = random.Random(name)
        self.history = array("q", SYSTEM[:system_tokens])
        self.req: Any = None

    def tokens(self, count: int) -> array[int]:
        return array("q", (self._rng.randrange(10_000, 1_000_000) for _ in range(count)))

    def start(self, prompt_tokens: int, reply_tokens: int = 4, *, drop: int = 2) -> Any:
        """Send the next turn so that its prompt has ``prompt_tokens``; it shares all but ``drop``
        tokens of the last prompt, and none of the last reply."""
        kept = self.history[: len(self.history) - drop] if self._at else self.history
        prompt = kept + self.tokens(prompt_tokens - len(kept))
        return self.send(prompt, reply_tokens)

    def send(self, prompt: array[int], reply_tokens: int = 4) -> Any:
        """Send a prompt."""
        self.history = prompt
        self.req = self._server.submit(
            f"{self._name}-{self._at}", prompt, self.tokens(reply_tokens)
        )
        self._at += 1
        return self.req

    def turn(self, prompt_tokens: int, reply_tokens: int = 4, *, drop: int = 2) -> Any:
        """Send a turn and wait for its end."""
        req = self.start(prompt_tokens, reply_tokens, drop=drop)
        finish(self._server, req)
        return req

    def follow_up(self, more_tokens: int, reply_tokens: int = 4) -> Any:
        """Send a turn whose prompt holds the last reply as generated, and wait for its end."""
        reply = self.req.output_ids[: self.req.sampling_params.max_new_tokens]
        req = self.send(self.history + reply + self.tokens(more_tokens), reply_tokens)
        finish(self._server, req)
        return req


def finish(server: Any, *reqs: Any) -> None:
    """Run passes until these requests have ended."""
    waited_for = {id(req) for req in reqs}
    for _ in range(2_000):
        waited_for -= {id(req) for req in server.step()[2]}
        if not waited_for:
            return
    raise AssertionError("the requests do not end")


def depths(server: Any) -> list[int]:
    """Token counts of the stored snapshots, in ascending order."""
    return sorted(len(tokens) for _, tokens in server.snapshots())


def policy_of(server: Any) -> Any:
    """Return the server's state component."""
    return server.cache.components[type(server.cache.tree_components[0])["MAMBA"]]


def victims(server: Any, count: int) -> list[int]:
    """Token counts of the snapshots that would go, first to last, if ``count`` slots were needed.

    Read from the order without evicting; locked ones are passed over as SGLang's walk does.
    """
    component = policy_of(server)
    order = server.cache.tree_core.lru_lists[component.component_type]
    named = {id(node): len(tokens) for node, tokens in server.snapshots()}
    found, node = [], order.get_lru_no_lock()
    while node is not None and len(found) < count:
        found.append(named[id(node)])
        node = order.get_prev_no_lock(node)
    return found
