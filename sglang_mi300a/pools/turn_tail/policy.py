"""TurnTail's decisions as plain logic: no torch, no SGLang, no clock, nothing random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

KEEP_FROM_SHARE = 0.05
"""Reply snapshots are stored while at least this share of the settled ones was matched."""
TRUST_FROM_SHARE = 0.9
"""A reply snapshot supersedes its prompt's once, of the next turns that came while both were
cached, at least this share continued from the reply's."""
NUM_FIRST = 32
"""Settled reply snapshots before the shares are believed; until then all are stored."""
SAMPLE_EVERY = 32
"""While they are not worth storing, one reply snapshot in this many is stored all the same."""
NUM_REMEMBERED = 128
"""Settled reply snapshots after which old ones begin to count less."""
MARGIN_TOKENS = 8
"""More than a chat template renders differently at a prompt's end once it is history."""


@dataclass
class ReplyLearner:
    """Learns whether snapshots inside replies are matched.

    Attributes:
        matched: Continued from by a later request.
        passed: Still cached when the next turn came and continued from the prompt's snapshot.
        lost: Evicted before any next turn came.
        unsampled: Snapshots refused since the last one that was stored.
    """

    matched: int = 0
    passed: int = 0
    lost: int = 0
    unsampled: int = 0

    def wants(self) -> bool:
        """Return whether the reply snapshot that is offered now is to be stored."""
        settled = self.matched + self.passed + self.lost
        if settled < NUM_FIRST or self.matched >= KEEP_FROM_SHARE * settled:
            self.unsampled = 0
            return True
        self.unsampled += 1
        if self.unsampled < SAMPLE_EVERY:
            return False
        self.unsampled = 0
        return True

    def trusts(self) -> bool:
        """Return whether a reply snapshot makes its prompt's superfluous."""
        met = self.matched + self.passed
        return met >= NUM_FIRST and self.matched >= TRUST_FROM_SHARE * met

    def settle(self, *, matched: int = 0, passed: int = 0, lost: int = 0) -> None:
        """Count what became of stored reply snapshots."""
        self.matched += matched
        self.passed += passed
        self.lost += lost
        if self.matched + self.passed + self.lost >= NUM_REMEMBERED:
            self.matched //= 2
            self.passed //= 2
            self.lost //= 2


@dataclass(frozen=True)
class PathNode:
    """A node of the tree on the KV path behind the deepest snapshot.

    Attributes:
        lost_snapshot: Whether it had a snapshot that was evicted.
        is_fork: Whether more than one conversation continues behind it.
    """

    lost_snapshot: bool
    is_fork: bool


def snapshot_at_prompt_end(path: Sequence[PathNode]) -> bool:
    """Return whether a request should take its snapshot at its prompt's end, not where KV ends.

    KV without a snapshot has two reasons. Either requests part there (a shared system prompt): a
    snapshot at that place serves them all. Or the conversation's own snapshot was evicted: then
    only this conversation continues there, and it will do so from its new end.

    Args:
        path: Nodes from behind the deepest snapshot to where the KV ends, in that order.
    """
    for node in reversed(path):
        if node.is_fork:
            return False
        if node.lost_snapshot:
            return True
    return False


def with_margin(
    *,
    prefix_tokens: int,
    snapshot_tokens: int,
    prompt_tokens: int,
    margin_tokens: int,
    grid_tokens: int,
) -> int:
    """Return the snapshot's position after keeping a margin to the prompt's end.

    Args:
        prefix_tokens: Where this prefill pass begins.
        snapshot_tokens: Where stock takes the snapshot.
        prompt_tokens: Where the prompt ends.
        margin_tokens: Tokens to keep between the two.
        grid_tokens: Snapshots lie on this grid, counted from ``prefix_tokens``.

    Returns:
        ``snapshot_tokens``, or one grid step less where it is within the margin. A snapshot that
        would move back to the prefix stays: there is one already.
    """
    if prompt_tokens - snapshot_tokens >= margin_tokens:
        return snapshot_tokens
    moved = snapshot_tokens - grid_tokens
    return moved if moved > prefix_tokens else snapshot_tokens


@dataclass
class Ledger:
    """What TurnTail remembers of snapshots, by node id.

    Attributes:
        superseded_by: Superseded snapshots, each with the deeper one that superseded it last.
        lost: Nodes whose snapshot was evicted while their KV stayed.
        replies: Stored reply snapshots that nothing continued from: whether they were passed by.
        replies_of: Reply snapshots by the node of their prompt's snapshot.
    """

    superseded_by: dict[int, int] = field(default_factory=dict)
    lost: dict[int, None] = field(default_factory=dict)
    replies: dict[int, bool] = field(default_factory=dict)
    replies_of: dict[int, list[int]] = field(default_factory=dict)

    def add_reply(self, reply: int, prompt: int | None) -> None:
        """Note a stored reply snapshot, and its prompt's snapshot where there is one."""
        self.replies[reply] = False
        if prompt is not None:
            self.replies_of.setdefault(prompt, []).append(reply)

    def match(self, node: int) -> tuple[bool, list[int]]:
        """Note that a request continues from a snapshot.

        Returns:
            Whether it is a reply snapshot matched for the first time, and the reply snapshots that
            the request passed by.
        """
        self.superseded_by.pop(node, None)
        is_reply = self.replies.pop(node, None) is not None
        passed = [one for one in self.replies_of.pop(node, ()) if self.replies.get(one) is False]
        for one in passed:
            self.replies[one] = True
        return is_reply, passed

    def evict(self, node: int) -> bool:
        """Note that a snapshot is gone; return whether it was a reply's that nothing had met."""
        self.superseded_by.pop(node, None)
        self.replies_of.pop(node, None)
        self.lost[node] = None
        return self.replies.pop(node, None) is False

    def forget(self, node: int) -> None:
        """Note that a node is gone, KV and all."""
        self.lost.pop(node, None)
