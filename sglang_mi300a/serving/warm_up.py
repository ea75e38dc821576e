"""What is asked of a server before anybody else may ask it something, and what must come of it.

Prompts of many lengths first, one at a time; then, for each captured batch size, as many requests
at once; last as many as the server takes, each a little longer than the one before, so that the
batch shrinks through the sizes between. Prompts are text; no image is ever sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sglang_mi300a import graph_phases
from sglang_mi300a.errors import JudgedAgainst

LEAST_TOKENS_A_STEP = 1.05
"""Below it drafts are as good as never accepted: the draft layer is wrong, or fed wrongly."""

TEXT = (
    "The memory of this machine is one pool that its processors share, and a program that fills it "
    "takes it from all others. Count the pages, name the owner of each, and say what is left: "
    "one, two, three, four, five, six, seven, eight, nine, ten. Then begin again, and go on. "
)


@dataclass(frozen=True)
class Sizes:
    """What a server is laid out for.

    Attributes:
        decode_batches: Captured batch sizes of decode, ascending; empty where none is.
        prefill_tokens: Captured token counts of prefill, ascending; empty where none is.
        max_requests: Requests at once.
        max_prompt: Longest prompt to send, in tokens.
        chunk_tokens: Tokens of a prefill pass.
        tokens_a_step: Most tokens that a request gains in a decode step: 1, or drafts + 1.
        kv_tokens: Tokens that all requests together may hold.
    """

    decode_batches: tuple[int, ...]
    prefill_tokens: tuple[int, ...]
    max_requests: int
    max_prompt: int
    chunk_tokens: int
    tokens_a_step: int
    kv_tokens: int


@dataclass(frozen=True)
class Wave:
    """Requests that are sent at once.

    Attributes:
        name: What they are for.
        prompts: Length of each prompt, in tokens.
        new_tokens: Tokens that each generates.
        offset: Where in the text the first prompt begins; prompts of equal offset share a prefix.
    """

    name: str
    prompts: tuple[int, ...]
    new_tokens: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Answer:
    """What came of one request.

    Attributes:
        num_tokens: Tokens generated.
        verify_steps: Steps that verified drafts; 0 where none are made.
        problem: Why it was not answered in full, or "".
    """

    num_tokens: int
    verify_steps: int
    problem: str = ""


Send = Callable[[Sequence[int], int], Awaitable[Answer]]
"""Sends one prompt (token ids) and asks for so many tokens."""


@dataclass(frozen=True)
class Done:
    """A warm-up that was answered in full.

    Attributes:
        seconds: From the first request to the last answer.
        requests: How many were sent.
        tokens: Generated tokens.
        tokens_a_step: Tokens of a decode step, mean; None where nothing drafts.
        waves: Seconds by wave.
    """

    seconds: float
    requests: int
    tokens: int
    tokens_a_step: float | None
    waves: dict[str, float]

    def as_data(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)


def captured(config: Any, max_requests: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the batch sizes of decode and the token counts of prefill that SGLang captures.

    Args:
        config: SGLang's ``CudaGraphConfig`` as it has resolved it.
        max_requests: Requests at once.
    """
    decode, prefill = (
        () if phase.backend == "disabled" else tuple(phase.bs or ())
        for phase in (config.decode, config.prefill)
    )
    batches = graph_phases.captured_batch_sizes(decode, max_requests) if decode else ()
    return tuple(batches), tuple(sorted(set(prefill)))


def waves(sizes: Sizes) -> list[Wave]:
    """Return what to send, in order."""
    longest = min(sizes.max_prompt, sizes.kv_tokens // 2)
    lengths = sizes.prefill_tokens or _few_lengths(longest, sizes.chunk_tokens)
    result = [
        Wave(f"prefill {length}", (length,), (2,), offset)
        for offset, length in enumerate(lengths, start=1)
        if length <= longest
    ]
    # The same beginning twice: the second finds it in the prefix cache and goes on from there.
    cached, whole = min(192, longest // 2), min(320, longest)
    result += [Wave("prefix", (length,), (2,), 0) for length in (cached, whole)]
    offset = len(lengths) + 1
    # Requests of a wave are admitted within a few steps of each other, and end no sooner than that.
    new_tokens = 6 * sizes.tokens_a_step
    prompt = _decode_prompt(sizes)
    for batch in sizes.decode_batches:
        if batch * (prompt + new_tokens) <= sizes.kv_tokens:
            wave = Wave(f"decode {batch}", (prompt,) * batch, (new_tokens,) * batch, offset)
            result.append(wave)
            offset += batch
    return [*result, _shrinking(sizes, offset)]


def _decode_prompt(sizes: Sizes) -> int:
    return min(24, sizes.max_prompt)


def _few_lengths(longest: int, chunk_tokens: int) -> tuple[int, ...]:
    """Return prompt lengths for a server that captures no prefill: few, from short to chunked.

    They are odd, as users' are, so that rows are padded as they will be.
    """
    lengths = [17, 65, 249, 1021, 4093, chunk_tokens, chunk_tokens + 57]
    return tuple(sorted({length for length in lengths if length <= longest}))


def _shrinking(sizes: Sizes, offset: int) -> Wave:
    """Return requests that all run at once and then end one after another."""
    # Without graphs there is no size to touch, and one token tells two requests' ends apart.
    step = sizes.tokens_a_step if sizes.decode_batches else 1
    prompt = _decode_prompt(sizes)
    count = sizes.max_requests
    while count > 1 and count * (prompt + 2 * sizes.tokens_a_step + count * step) > sizes.kv_tokens:
        count -= 1
    new_tokens = tuple(2 * sizes.tokens_a_step + step * number for number in range(1, count + 1))
    return Wave("decode", (prompt,) * count, new_tokens, offset)


def prompts_of(wave: Wave, text_ids: Sequence[int]) -> list[list[int]]:
    """Return a wave's prompts: the text from another place on for each, over and over.

    Args:
        wave: Which.
        text_ids: Token ids of :data:`TEXT`.
    """
    count = len(text_ids)
    return [
        [text_ids[(wave.offset + number + at) % count] for at in range(length)]
        for number, length in enumerate(wave.prompts)
    ]


async def run(
    plan: Sequence[Wave],
    text_ids: Sequence[int],
    send: Send,
    *,
    within_s: float,
    done: Callable[[str], None] = lambda name: None,
) -> Done:
    """Send all waves, one after the other.

    Args:
        plan: What to send.
        text_ids: Token ids of :data:`TEXT`.
        send: Sends one request.
        within_s: How long all of it may take.
        done: Called with the name of each wave that has been answered.

    Raises:
        JudgedAgainst: A request was not answered in full, or not in time; the wave is named.
    """
    began = time.monotonic()
    spent: dict[str, float] = {}
    answers: list[Answer] = []
    steps: list[tuple[int, int]] = []
    for wave in plan:
        started = time.monotonic()
        left_s = within_s - (started - began)
        asked = zip(prompts_of(wave, text_ids), wave.new_tokens, strict=True)
        try:
            got = await asyncio.wait_for(
                asyncio.gather(*(send(prompt, new) for prompt, new in asked)), max(left_s, 0.001)
            )
        except asyncio.TimeoutError as error:
            raise JudgedAgainst(
                f"warm-up: wave {wave.name!r} ({len(wave.prompts)} requests) was not answered "
                f"within what was left of {within_s:g} s; a kernel may still be compiling: "
                "`sglang-mi300a kernel-cache build` compiles ahead"
            ) from error
        for answer, wanted in zip(got, wave.new_tokens, strict=True):
            problem = answer.problem
            if not problem and answer.num_tokens != wanted:
                problem = f"{answer.num_tokens} tokens instead of {wanted}"
            if problem:
                raise JudgedAgainst(f"warm-up: wave {wave.name!r} got {problem}")
        answers += got
        steps += [(one.num_tokens - 1, one.verify_steps) for one in got if one.verify_steps]
        spent[wave.name] = spent.get(wave.name, 0.0) + time.monotonic() - started
        done(wave.name)
    verified = sum(count for _, count in steps)
    return Done(
        seconds=round(time.monotonic() - began, 3),
        requests=len(answers),
        tokens=sum(one.num_tokens for one in answers),
        tokens_a_step=round(sum(made for made, _ in steps) / verified, 3) if verified else None,
        waves={name: round(seconds, 3) for name, seconds in spent.items()},
    )


def acceptance_problem(done: Done, *, with_draft: bool) -> str:
    """Return what is wrong with the drafts of a warm-up, or ""."""
    if not with_draft:
        return ""
    if done.tokens_a_step is None:
        return "MTP is on, and no step of the warm-up verified a draft"
    if done.tokens_a_step > LEAST_TOKENS_A_STEP:
        return ""
    return (
        f"MTP: {done.tokens_a_step:.3f} tokens a step in the warm-up, not above "
        f"{LEAST_TOKENS_A_STEP}: drafts are hardly ever accepted, so drafting costs time and gains "
        "none (is the draft layer of this checkpoint?)"
    )


def untouched(captured: Sequence[int], batches: Mapping[int, int]) -> list[int]:
    """Return the captured batch sizes that no decode step used.

    Args:
        captured: Captured batch sizes, ascending.
        batches: Decode steps by batch size; a batch runs in the next captured size.
    """
    used = {
        min((size for size in captured if size >= batch), default=0)
        for batch, steps in batches.items()
        if steps
    }
    return [size for size in captured if size not in used]
