"""When queued prompts are prefilled: at once, or a few passes later together with others.

A prefill pass holds every running request up for a fixed time and some more for each token, so a
pass for one short prompt costs nearly as much as one for several. SGLang prefills whatever is
queued before it decodes again. Here a prompt waits while decoding goes on, until enough new tokens
are queued or it has waited for a number of passes.

One rank decides for all. SGLang's own delayer waits for other conditions and refuses to be built
without overlap scheduling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sglang_mi300a.errors import UserError

LEAST_RUNNING = 8
"""Below so many decoding requests nothing is held back: there is too little to hold them up for,
and too few prompts come in the meantime (``benchmarks/results/cache_replay.json``)."""
_SHARE_OF_NEWEST = 8
"""A new length moves the running mean by one part in so many."""


@dataclass(frozen=True)
class Limits:
    """How long prompts are held back.

    Attributes:
        tokens: New tokens in the queue that start a prefill; 0: nothing is held back.
        passes: Passes after which the first prompt in the queue is prefilled in any case.
    """

    tokens: int = 0
    passes: int = 0

    @property
    def hold_back(self) -> bool:
        """Whether anything is ever held back."""
        return self.tokens > 0 and self.passes > 0

    @classmethod
    def from_text(cls, text: str | None, where: str) -> Limits:
        """Return the limits written as ``TOKENS/PASSES``; ``0`` or nothing: hold nothing back.

        Args:
            text: As in ``512/8``.
            where: Where it comes from, for the refusal.

        Raises:
            UserError: It is written otherwise.
        """
        if text in (None, "", "0"):
            return cls()
        tokens, slash, passes = str(text).partition("/")
        if not (slash and tokens.isdecimal() and passes.isdecimal()):
            raise UserError(
                where,
                found=repr(text),
                allowed="TOKENS/PASSES such as 512/8, or 0 to hold no prompt back",
                do=f"correct or unset {where}",
            )
        return cls(int(tokens), int(passes))


@dataclass
class Accumulation:
    """Decides, pass after pass, whether the queue is prefilled now.

    Attributes:
        limits: How long prompts are held back.
        held_passes: Passes for which the first prompt in the queue has been held back.
        mean_new_tokens: Of prompts that came to the queue's head; a running mean, 0 until one did.
    """

    limits: Limits
    held_passes: int = 0
    mean_new_tokens: int = 0

    def learn(self, new_tokens: int) -> None:
        """Take in how many tokens of a prompt were not in the prefix cache."""
        if not self.mean_new_tokens:
            self.mean_new_tokens = new_tokens
        else:
            self.mean_new_tokens += (new_tokens - self.mean_new_tokens) // _SHARE_OF_NEWEST

    def admits(
        self, *, head_tokens: int, num_waiting: int, num_free: int, num_running: int
    ) -> bool:
        """Return whether to prefill in this pass.

        Args:
            head_tokens: New tokens of the first prompt in the queue.
            num_waiting: Prompts in the queue, the first among them.
            num_free: Further requests that may run.
            num_running: Requests that decode meanwhile.
        """
        together = max(1, min(num_waiting, num_free))
        expected = head_tokens + (together - 1) * self.mean_new_tokens
        return (
            num_running < LEAST_RUNNING
            or expected >= self.limits.tokens
            or self.held_passes >= self.limits.passes
        )

    def settle(self, *, admitted: bool) -> None:
        """Count a pass in which the queue was held back, or begin anew."""
        self.held_passes = 0 if admitted else self.held_passes + 1


class Verdict(NamedTuple):
    """What SGLang's scheduler reads of a delayer's decision in one pass."""

    output_allow: bool
    output_reason: str
    wait_forward_passes: int = 0
    wait_seconds: float = 0.0
    input_estimation: str = ""
    num_prefillable: int = 0
    num_token_watermark_force_allow: int = 0


class AccumulatingDelayer:
    """Stands where SGLang's ``PrefillDelayer`` does; its executor asks it once a pass.

    Args:
        limits: How long prompts are held back.
        queue: Returns the queued requests, the next one first.
        in_chunks: Returns whether a prompt is prefilled in part; that pass happens anyway.
        decided_by_one: Returns the first rank's decision, given this rank's.
    """

    dp_size = 1
    enable_dp_attention = False
    _metrics_collector = None
    _debug_log_enabled = False

    def __init__(
        self,
        limits: Limits,
        *,
        queue: Callable[[], Sequence[Any]],
        in_chunks: Callable[[], bool],
        decided_by_one: Callable[[bool], bool],
    ) -> None:
        self.accumulation = Accumulation(limits)
        self._queue = queue
        self._in_chunks = in_chunks
        self._decided_by_one = decided_by_one
        self._last_head: str | None = None
        self._has_said = False

    def _negotiate_should_allow_prefill(
        self,
        local_prefillable: bool,
        token_usage: float,
        running_batch: int = 0,
        max_prefill_bs: int = 0,
        max_running_requests: int = 0,
        waiting_queue_len: int = 0,
    ) -> Verdict:
        """Return whether the queue is prefilled in this pass."""
        if not local_prefillable or self._in_chunks():
            return Verdict(True, "no_wait" if local_prefillable else "")
        head = self._queue()[0]
        head_tokens = len(head.full_untruncated_fill_ids) - len(head.prefix_indices)
        if head.rid != self._last_head:
            self._last_head = head.rid
            self.accumulation.learn(head_tokens)
        held = self.accumulation.held_passes
        mine = self.accumulation.admits(
            head_tokens=head_tokens,
            num_waiting=waiting_queue_len,
            num_free=max_running_requests - running_batch,
            num_running=running_batch,
        )
        admitted = self._decided_by_one(mine)
        self.accumulation.settle(admitted=admitted)
        if not admitted:
            self._say_once()
            return Verdict(False, "delay")
        return Verdict(True, "wait_success" if held else "no_wait", wait_forward_passes=held)

    def _say_once(self) -> None:
        if not self._has_said:
            self._has_said = True
            limits = self.accumulation.limits
            logging.getLogger(__name__).info(
                "holding prompts back for %d new tokens or %d passes", limits.tokens, limits.passes
            )


def first_rank_decides(cpu_group: Any) -> Callable[[bool], bool]:
    """Return a function that gives every rank of a group the first rank's decision.

    Args:
        cpu_group: A ``torch.distributed`` group on host memory; all ranks of it call in step.
    """
    import torch.distributed

    if torch.distributed.get_world_size(cpu_group) == 1:
        return lambda mine: mine
    first = torch.distributed.get_global_rank(cpu_group, 0)

    def decide(mine: bool) -> bool:
        decision = torch.tensor([mine], dtype=torch.int8)
        torch.distributed.broadcast(decision, src=first, group=cpu_group)
        return bool(decision.item())

    return decide
