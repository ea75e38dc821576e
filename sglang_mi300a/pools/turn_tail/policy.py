"""TurnTail's decisions as plain logic: no torch, no SGLang, no clock, nothing random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

KEEP_FROM_SHARE = 0.05
"""A kind of snapshot is kept while at least this share of the settled ones was matched."""
TRUST_FROM_SHARE = 0.9
"""A reply snapshot supersedes its prompt's once, of the next turns that came while both were
cached, at least this share continued from the reply's."""
PRESSURE_FROM_SHARE = 0.02
"""Slots are too few once at least this share of returning conversations finds its snapshot gone."""
CHEAP_SHARE = 0.25
"""Then a snapshot goes first if it saves less than this share of what resting ones save on average;
the share of late returns is added."""
MAX_CHEAP_SHARE = 2 / 3
"""Above it too many would go first, which helps nobody."""
NUM_FIRST = 16
"""Settled snapshots of a kind before its share is believed; until then all are kept."""
SAMPLE_EVERY = 32
"""Of a kind that is not worth keeping, one snapshot in this many is kept all the same, to learn."""
NUM_REMEMBERED = 128
"""Settled snapshots of a kind after which old ones begin to count less."""
MAX_TURNS = 32
"""Conversations of more turns are taken for as long as this."""
MARGIN_TOKENS = 8
"""More than a chat template renders differently at a prompt's end once it is history."""


@dataclass
class Worth:
    """Learns whether one kind of snapshot is ever used.

    Attributes:
        used: Settled ones that a later request continued from.
        unused: Settled ones that none did.
        refused: Snapshots refused since one was last kept.
    """

    used: int = 0
    unused: int = 0
    refused: int = 0

    def wants(self) -> bool:
        """Return whether the snapshot offered now is to be kept: all while some are used, else a
        sample."""
        settled = self.used + self.unused
        if settled < NUM_FIRST or self.used >= KEEP_FROM_SHARE * settled:
            self.refused = 0
            return True
        self.refused += 1
        if self.refused < SAMPLE_EVERY:
            return False
        self.refused = 0
        return True

    def settle(self, *, used: int = 0, unused: int = 0) -> None:
        """Count what became of kept snapshots."""
        self.used += used
        self.unused += unused
        if self.used + self.unused >= NUM_REMEMBERED:
            self.used //= 2
            self.unused //= 2


@dataclass
class ReplyLearner:
    """Learns what snapshots inside replies are worth.

    Attributes:
        stored: Of those stored, whether a request continued from them.
        met: The same, of those that were still cached when the conversation's next turn came.
    """

    stored: Worth = field(default_factory=Worth)
    met: Worth = field(default_factory=Worth)

    def trusts(self) -> bool:
        """Return whether a reply's snapshot makes its prompt's superfluous."""
        settled = self.met.used + self.met.unused
        return settled >= NUM_FIRST and self.met.used >= TRUST_FROM_SHARE * settled

    def matched(self) -> None:
        """A request continued from a reply's snapshot."""
        self.stored.settle(used=1)
        self.met.settle(used=1)

    def passed(self) -> None:
        """The next turn came and continued from the prompt's snapshot instead."""
        self.stored.settle(unused=1)
        self.met.settle(unused=1)

    def lost(self) -> None:
        """It was evicted before any next turn came."""
        self.stored.settle(unused=1)


@dataclass
class ReturnLearner:
    """Learns after how many turns conversations are not continued, and whether slots are too few.

    Attributes:
        by_turns: Of conversations with so many turns, whether they returned before eviction.
        in_time: Of those that returned, whether their snapshot was still there.
        mean_saved: Tokens that a resting snapshot saves; a running mean, times 16.
    """

    by_turns: dict[int, Worth] = field(default_factory=dict)
    in_time: Worth = field(default_factory=Worth)
    mean_saved: int = 0

    def of(self, num_turns: int) -> Worth:
        """Return what is known of conversations that had ``num_turns`` turns."""
        return self.by_turns.setdefault(min(num_turns, MAX_TURNS), Worth())

    def wants(self, num_turns: int, saved_tokens: int) -> bool:
        """Return whether the snapshot of a conversation that comes to rest is to be kept.

        Args:
            num_turns: Turns it had.
            saved_tokens: Tokens prefilled again if it returns without its snapshot.
        """
        self.mean_saved += (16 * saved_tokens - self.mean_saved) // 16
        late = self.share_late()
        if late and 16 * saved_tokens < min(CHEAP_SHARE + late, MAX_CHEAP_SHARE) * self.mean_saved:
            return False
        return self.of(num_turns).wants()

    def share_late(self) -> float:
        """Return the share of returning conversations that found their snapshot gone.

        0 while slots suffice: fewer than :data:`PRESSURE_FROM_SHARE`, or too few to tell.
        """
        late, returned = self.in_time.unused, self.in_time.used + self.in_time.unused
        if returned < NUM_FIRST or late < PRESSURE_FROM_SHARE * returned:
            return 0.0
        return late / returned


@dataclass(frozen=True)
class PathNode:
    """A node of the tree on the KV path behind the deepest snapshot.

    Attributes:
        node: Its id.
        lost_snapshot: Whether it had a snapshot that was evicted.
        is_fork: Whether more than one conversation continues behind it.
        page_short: Whether only one page is between its end and a snapshot.
    """

    node: int
    lost_snapshot: bool = False
    is_fork: bool = False
    page_short: bool = False


def continued(path: Sequence[PathNode]) -> PathNode | None:
    """Return the node at which a conversation goes on that is this request's own, or None.

    KV without a snapshot has three reasons. Requests part there (a shared system prompt): a
    snapshot at that place serves them all. Or the conversation's own snapshot was evicted; or it
    was taken a few tokens too late, in what the next turn renders differently: then only this
    conversation continues there, and it will do so from its new end.

    Args:
        path: Nodes from behind the deepest snapshot to where the KV ends, in that order.
    """
    for node in reversed(path):
        if node.is_fork:
            return None
        if node.lost_snapshot or node.page_short:
            return node
    return None


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
    """What TurnTail remembers of nodes, by their id, and what it has learned.

    Attributes:
        superseded_by: Superseded snapshots, each with the deeper one that superseded it last.
        lost: Nodes whose snapshot was evicted while their KV stayed: whether its conversation was
            seen to return.
        turns: Nodes that hold, or held, the snapshot of a prompt's end: the conversation's turns.
        resting: Snapshots of conversations at rest: whether they were to go first.
        replies: Stored reply snapshots that nothing continued from: whether they were passed by.
        replies_of: Reply snapshots by the node of their prompt's snapshot.
        of_replies: What reply snapshots are worth.
        of_returns: Which conversations return.
    """

    superseded_by: dict[int, int] = field(default_factory=dict)
    lost: dict[int, bool] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    resting: dict[int, bool] = field(default_factory=dict)
    replies: dict[int, bool] = field(default_factory=dict)
    replies_of: dict[int, list[int]] = field(default_factory=dict)
    of_replies: ReplyLearner = field(default_factory=ReplyLearner)
    of_returns: ReturnLearner = field(default_factory=ReturnLearner)

    def store(self, node: int, num_turns: int | None) -> None:
        """Note a stored snapshot of a prompt; ``num_turns`` where it is that of its end."""
        self.lost.pop(node, None)
        if num_turns is not None:
            self.turns[node] = num_turns

    def store_reply(self, reply: int, prompt: int | None) -> None:
        """Note a stored reply snapshot, and its prompt's snapshot where there is one."""
        self.lost.pop(reply, None)
        self.replies[reply] = False
        if prompt is not None:
            self.replies_of.setdefault(prompt, []).append(reply)

    def rest(self, node: int, saved_tokens: int) -> bool:
        """Note that a conversation rests at a snapshot; return whether it is worth a slot."""
        is_wanted = self.of_returns.wants(self.turns.get(node, 0), saved_tokens)
        self.resting[node] = not is_wanted
        return is_wanted

    def match(self, node: int) -> list[int]:
        """Note that a request continues from a snapshot; return the reply snapshots it passed."""
        self.superseded_by.pop(node, None)
        if self.resting.pop(node, None) is not None:
            self.of_returns.of(self.turns.get(node, 0)).settle(used=1)
            self.of_returns.in_time.settle(used=1)
        if self.replies.pop(node, None) is not None:
            self.of_replies.matched()
        passed = [one for one in self.replies_of.pop(node, ()) if self.replies.get(one) is False]
        for one in passed:
            self.replies[one] = True
            self.of_replies.passed()
        return passed

    def return_late(self, node: int) -> None:
        """Note that a conversation returned to a node that had lost its snapshot."""
        if self.lost.get(node) is False:
            self.lost[node] = True
            self.of_returns.in_time.settle(unused=1)

    def evict(self, node: int) -> None:
        """Note that a snapshot is gone."""
        self.superseded_by.pop(node, None)
        self.replies_of.pop(node, None)
        self.lost[node] = False
        if self.resting.pop(node, None) is False:
            self.of_returns.of(self.turns.get(node, 0)).settle(unused=1)
        if self.replies.pop(node, None) is False:
            self.of_replies.lost()

    def forget(self, node: int) -> None:
        """Note that a node is gone, KV and all."""
        self.lost.pop(node, None)
        self.turns.pop(node, None)
