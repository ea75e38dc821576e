"""The multi-turn conversations the state cache is judged by, reproducible to the token.

Every session has a random generator of its own, seeded by the text ``"SEED-NUMBER"``, so that a
session is the same whatever ran before it. A turn's prompt is the whole history; token numbers are
made up, but two prompts share tokens exactly where two rendered chats would.
"""

from __future__ import annotations

import heapq
import random
from array import array
from dataclasses import dataclass
from typing import Literal

Replies = Literal["re-prefilled", "matched"]
"""Whether a reply comes back in the next prompt as generated (``matched``), or rendered anew by a
chat template that drops the thinking block, so that its tokens differ from the first on."""

GRID_TOKENS = 64
"""Snapshots of the linear-attention state can be taken at multiples of this only."""

NUM_BANK_WORDS = 138
NUM_TWO_TOKEN_WORDS = 10
"""Words of the bank that take two tokens: 1.07 tokens a word on average."""

_OPEN_TURN = tuple(range(1, 6))
_ASK_FOR_REPLY = tuple(range(6, 11))
"""The generation prompt; its last :data:`THINKING_TOKENS` tokens open the thinking block."""
THINKING_TOKENS = 2
_THINKING_DROPPED = (11, 12)
_FIRST_WORD = 1_000
_REPLY_TOKENS = range(100_000, 200_000)
_FIRST_SYSTEM_TOKEN = 500_000


@dataclass(frozen=True)
class Turn:
    """What one turn asks.

    Attributes:
        think_s: Rest before it, in seconds; 0 for the first.
        user_tokens: The user's text.
        reply_tokens: Length of the reply, exactly.
    """

    think_s: float
    user_tokens: tuple[int, ...]
    reply_tokens: int


@dataclass(frozen=True)
class Workload:
    """One kind of traffic.

    Attributes:
        seed: Which sessions.
        replies: How replies come back.
        system_tokens: Length of a system prompt that all sessions share.
        think_factor: Factor on every rest.
    """

    seed: int = 20260225
    replies: Replies = "re-prefilled"
    system_tokens: int = 0
    think_factor: float = 1.0

    def turns(self, number: int) -> tuple[Turn, ...]:
        """Return the turns of session ``number``: 3 to 6 of 30 to 300 words."""
        rng = random.Random(f"{self.seed}-{number}")
        turns = []
        for at in range(rng.randint(3, 6)):
            think_s = rng.uniform(1.0, 8.0) * self.think_factor if at else 0.0
            words = rng.choices(range(NUM_BANK_WORDS), k=rng.randint(30, 300))
            tokens: list[int] = []
            for word in words:
                tokens.append(_FIRST_WORD + 2 * word)
                if word < NUM_TWO_TOKEN_WORDS:
                    tokens.append(_FIRST_WORD + 2 * word + 1)
            turns.append(Turn(think_s, tuple(tokens), rng.randint(80, 300)))
        return tuple(turns)


class Session:
    """One conversation: its next prompt, and what an endless cache would hold of it.

    Attributes:
        number: Its number among the workload's sessions.
        at: The turn that is next or running, counted from 0.
        prompt: That turn's prompt.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        self.number = number
        self.at = 0
        self.turns = workload.turns(number)
        self._workload = workload
        self._replies = random.Random(f"{workload.seed}-{number}-replies")
        system = range(_FIRST_SYSTEM_TOKEN, _FIRST_SYSTEM_TOKEN + workload.system_tokens)
        self.prompt = array("q", [*system, *self._asked()])
        self._shared_tokens = workload.system_tokens + len(_OPEN_TURN) if number else 0
        self._reply_end = 0

    def _asked(self) -> list[int]:
        return [*_OPEN_TURN, *self.turns[self.at].user_tokens, *_ASK_FOR_REPLY]

    @property
    def reply_tokens(self) -> int:
        """Length of the reply to :attr:`prompt`."""
        return self.turns[self.at].reply_tokens

    @property
    def is_last_turn(self) -> bool:
        """Whether no turn follows."""
        return self.at + 1 == len(self.turns)

    @property
    def think_s(self) -> float:
        """Rest before the turn that follows, in seconds."""
        return self.turns[self.at + 1].think_s

    def generate(self, num_tokens: int) -> array[int]:
        """Return ``num_tokens`` reply tokens, as if generated."""
        return array("q", self._replies.choices(_REPLY_TOKENS, k=num_tokens))

    def next_turn(self, reply: array[int]) -> None:
        """Go to the next turn; ``reply`` is what was generated for this one."""
        before = len(self.prompt)
        if self._workload.replies == "matched":
            history = self.prompt + reply
            self._shared_tokens, self._reply_end = before, before + len(reply)
        else:
            kept = self.prompt[:-THINKING_TOKENS] + array("q", _THINKING_DROPPED)
            history = kept + reply
            self._shared_tokens, self._reply_end = before - THINKING_TOKENS, 0
        self.at += 1
        self.prompt = history + array("q", self._asked())

    def ideal_cached_tokens(self, track_interval: int) -> int:
        """Return how much of :attr:`prompt` an endless cache of perfect foresight would have.

        It holds a snapshot at every multiple of :data:`GRID_TOKENS` of every prompt seen, and at
        every multiple of ``track_interval`` of every reply; of a reply, the last token was never
        computed.
        """
        of_prompt = self._shared_tokens // GRID_TOKENS * GRID_TOKENS
        of_reply = max(self._reply_end - 1, 0) // track_interval * track_interval
        return max(of_prompt, of_reply)


class Clients:
    """Persistent clients: each sends the session that rested longest, or opens a new one."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._opened = 0
        self._resting: list[tuple[float, int, Session]] = []

    def take(self, now_s: float) -> Session:
        """Return the session whose turn a free client sends at ``now_s``."""
        if self._resting and self._resting[0][0] <= now_s:
            return heapq.heappop(self._resting)[2]
        self._opened += 1
        return Session(self._workload, self._opened - 1)

    def replied(self, session: Session, reply: array[int], now_s: float) -> None:
        """Take a reply: the session rests, or ends with its last turn."""
        if session.is_last_turn:
            return
        ready_s = now_s + session.think_s
        session.next_turn(reply)
        heapq.heappush(self._resting, (ready_s, session.number, session))

    @property
    def num_resting(self) -> int:
        """Sessions that will send another turn and are not waiting for a reply."""
        return len(self._resting)
