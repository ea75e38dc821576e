"""What every server of the walk is asked, and what transformers says the right answers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUM_TOKENS = 24
NUM_SESSIONS = 4
NUM_AT_ONCE = 12
QUESTIONS = (
    # Long enough for the prefix cache: it keeps states at multiples of 64 tokens.
    "An accelerated processing unit has processor cores and an accelerator in one package, and one "
    "memory that belongs to both of them. Nothing has to be copied from the one to the other, and "
    "whatever the one takes, the other lacks. Which memory do the processor and the accelerator "
    "share?",
    "And how many of them are in one node?",
    "Say it again, shorter.",
)


@dataclass(frozen=True)
class Request:
    """A prompt and its greedy continuation, both as token ids."""

    prompt: tuple[int, ...]
    expected: tuple[int, ...]


@dataclass(frozen=True)
class ChatTurn:
    """Messages of a chat up to the user's, and the reply's tokens and text."""

    messages: tuple[dict[str, str], ...]
    expected: tuple[int, ...]
    said: str


@dataclass(frozen=True)
class Script:
    """Everything a server is asked.

    Attributes:
        sessions: Conversations; each turn's prompt holds all tokens before it.
        chat: The same questions as a chat of messages.
        at_once: Prompts without a history.
        tokenizer: The model's.
    """

    sessions: tuple[tuple[Request, ...], ...]
    chat: tuple[ChatTurn, ...]
    at_once: tuple[Request, ...]
    tokenizer: Any

    @property
    def num_tokens(self) -> int:
        """Tokens that are compared on each server."""
        turns = [turn for session in self.sessions for turn in session]
        expected = [one.expected for one in (*turns, *self.at_once)]
        return sum(map(len, [*expected, *(turn.expected for turn in self.chat)]))


class Writer:
    """Writes the script, with transformers' own implementation answering.

    Args:
        model_dir: Checkpoint of a tiny model.
    """

    def __init__(self, model_dir: Path) -> None:
        from transformers import AutoTokenizer

        from sglang_mi300a.accuracy.transformers_reference import TransformersReference

        self._tokenizer = AutoTokenizer.from_pretrained(str(model_dir))
        self._model = TransformersReference(model_dir)

    def write(self) -> Script:
        """Return the script."""
        return Script(
            sessions=tuple(self._session(number) for number in range(1, NUM_SESSIONS + 1)),
            chat=self._chat(),
            at_once=tuple(
                self._request([], f"Number {n}: " + "again, " * n)
                for n in range(1, NUM_AT_ONCE + 1)
            ),
            tokenizer=self._tokenizer,
        )

    def _reply(self, prompt: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._model.continue_greedily(prompt, NUM_TOKENS).tokens)

    def _prompt_of(self, messages: Sequence[dict[str, str]]) -> list[int]:
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _request(self, history: Sequence[int], question: str) -> Request:
        prompt = (*history, *self._prompt_of([{"role": "user", "content": question}]))
        return Request(prompt, self._reply(prompt))

    def _session(self, number: int) -> tuple[Request, ...]:
        turns: list[Request] = []
        for question in (f"Session {number}. {QUESTIONS[0]}", *QUESTIONS[1:]):
            before = (*turns[-1].prompt, *turns[-1].expected) if turns else ()
            turns.append(self._request(before, question))
        return tuple(turns)

    def _chat(self) -> tuple[ChatTurn, ...]:
        messages: list[dict[str, str]] = []
        turns = []
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            tokens = self._reply(self._prompt_of(messages))
            said = self._tokenizer.decode(tokens)
            turns.append(ChatTurn(tuple(messages), tokens, said))
            messages.append({"role": "assistant", "content": said})
        return tuple(turns)
