"""What each APU will hold while it serves, line by line and to the byte, before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from sglang_mi300a.errors import UserError
from sglang_mi300a.model_dims import ModelDims
from sglang_mi300a.pools import estimates
from sglang_mi300a.pools.estimates import Amount, Kind, exact
from sglang_mi300a.pools.pool_sizes import (
    DTYPE_BYTES,
    RankSizes,
    Scheduler,
    admitted_requests,
    budget_state_bytes,
    effective_fraction,
    request_table_bytes,
)

On = Literal["device", "host", "reserve"]

EXPERT_WORKSPACE = "expert workspace"
"""Name of the line for what the expert kernels write beside their result."""

MOST_REQUESTS = 4096
"""Stock's own bound on running requests."""
_MOST_TOKENS = (1 << 31) - 1  # locations of KV are 32-bit
_MOST_SLOTS = 1 << 20
_MOST_DRAFTS = 64


@dataclass(frozen=True)
class Line:
    """One line of a plan.

    Attributes:
        name: What it is.
        on: ``device``: the driver allocates it. ``host``: processes. ``reserve``: nobody may.
        amount: How many bytes, and how that is known.
        with_weights: Whether it is allocated while weights are loaded, before any pool.
    """

    name: str
    on: On
    amount: Amount
    with_weights: bool = False

    @property
    def planned(self) -> int:
        """Bytes that the plan counts."""
        return self.amount.planned


@dataclass(frozen=True)
class Asked:
    """What a server is asked to hold, in SGLang's own terms.

    Attributes:
        kv_tokens: ``--max-total-tokens``, exactly.
        state_slots: ``--max-mamba-cache-size``, exactly.
        max_running_requests: ``--max-running-requests``, exactly.
        session_tokens: Tokens of one session, for what binds; prompt and reply.
        page_tokens: ``--page-size``.
        context_tokens: Longest context that is served.
        scheduler: Scheduling.
        draft_tokens: Tokens a verify step checks; 0 without MTP.
        draft_steps: Drafts a step; 0 without MTP.
        replay: ``--enable-linear-replayssm-spec``.
        state_dtype: ``--mamba-ssm-dtype``, resolved.
        conv_dtype: Of convolution windows.
        kv_dtype_bytes: Bytes of a KV element.
        chunk_tokens: ``--chunked-prefill-size``.
        prefill_graph_tokens: Tokens of the largest captured prefill graph; 0: none is captured.
        decode_graphs: Whether decode or verify is captured.
        mem_fraction: ``--mem-fraction-static`` as it is passed.
        aiter: Attention is AITER's.
    """

    kv_tokens: int
    state_slots: int
    max_running_requests: int
    session_tokens: int
    page_tokens: int
    context_tokens: int
    scheduler: Scheduler
    draft_tokens: int = 0
    draft_steps: int = 0
    replay: bool = False
    state_dtype: str = "float32"
    conv_dtype: str = "bfloat16"
    kv_dtype_bytes: int = 2
    chunk_tokens: int = 8192
    prefill_graph_tokens: int = 0
    decode_graphs: bool = True
    mem_fraction: float | None = None
    aiter: bool = True

    @property
    def verify_rows(self) -> int:
        """Rows of one decode or verify step at full concurrency."""
        return self.max_running_requests * max(1, self.draft_tokens)

    @property
    def captured_tokens(self) -> int:
        """Tokens of the largest captured graph."""
        return max(self.prefill_graph_tokens, self.verify_rows if self.decode_graphs else 0)

    def check(self) -> None:
        """Check that SGLang can make exactly these sizes.

        Raises:
            UserError: A size is out of range, KV tokens are no whole number of pages, or the state
                slots are too few for the requests; the error says what would do.
        """
        ranges = (
            ("--max-running-requests", self.max_running_requests, 1, MOST_REQUESTS),
            ("--page-size", self.page_tokens, 1, 1024),
            ("--context", self.session_tokens, 1, self.context_tokens),
            ("--max-total-tokens", self.kv_tokens, self.page_tokens, _MOST_TOKENS),
            ("--max-mamba-cache-size", self.state_slots, 1, _MOST_SLOTS),
            ("--mtp", self.draft_steps, 0, _MOST_DRAFTS),
            ("--chunked-prefill-size", self.chunk_tokens, 1, _MOST_TOKENS),
        )
        for flag, value, least, most in ranges:
            if not least <= value <= most:
                raise UserError(
                    flag,
                    found=f"{value:,}",
                    allowed=f"{least:,} to {most:,}",
                    do="pass a size in that range",
                )
        if self.state_dtype not in DTYPE_BYTES:
            raise UserError(
                "--state-dtype",
                found=repr(self.state_dtype),
                allowed=" or ".join(DTYPE_BYTES),
                do="pass float32 or bfloat16",
            )
        below = self.kv_tokens // self.page_tokens * self.page_tokens
        if below != self.kv_tokens:
            above = below + self.page_tokens
            raise UserError(
                f"--max-total-tokens {self.kv_tokens}",
                found=f"{self.kv_tokens:,} tokens, no whole number of pages of {self.page_tokens}",
                allowed=f"{below:,} or {above:,}",
                do=f"pass --max-total-tokens {above}",
            )
        ratio = self.scheduler.slots_per_request
        if self.state_slots < ratio * self.max_running_requests:
            raise UserError(
                f"--max-mamba-cache-size {self.state_slots}",
                found=f"{self.state_slots:,} slots for {self.max_running_requests} running "
                f"requests; SGLang would let {self.state_slots // ratio} run",
                allowed=f"at least {ratio} a request in this scheduler mode: "
                f"{ratio * self.max_running_requests:,}",
                do=f"pass --max-mamba-cache-size {ratio * self.max_running_requests}, or "
                f"--max-running-requests {max(1, self.state_slots // ratio)}",
            )
        if self.kv_tokens < 2 * self.max_running_requests:
            least = -(-2 * self.max_running_requests // self.page_tokens) * self.page_tokens
            raise UserError(
                f"--max-total-tokens {self.kv_tokens}",
                found=f"fewer than two tokens for each of {self.max_running_requests} requests",
                allowed=f"at least {least:,}",
                do=f"pass --max-total-tokens {least}",
            )


@dataclass(frozen=True)
class WeightBytes:
    """Weights of one rank.

    Attributes:
        target: The model.
        draft: Its MTP layer; 0 without.
        lent: What the draft allocates and frees again while loading.
        source: How they are known.
    """

    target: int
    draft: int
    lent: int
    source: str


@dataclass(frozen=True)
class RankPlan:
    """The lines of one rank, and so of one APU."""

    rank: int
    lines: tuple[Line, ...]

    def planned(self, *on: On) -> int:
        """Return bytes planned; with ``on``, of such lines only."""
        return sum(line.planned for line in self.lines if not on or line.on in on)

    def of_kind(self, *kinds: Kind) -> int:
        """Return bytes planned in lines that are known in one of these ways."""
        return sum(line.planned for line in self.lines if line.amount.kind in kinds)

    @property
    def low(self) -> int:
        """Bytes if every range ends at its least."""
        return sum(line.amount.low for line in self.lines)

    @property
    def high(self) -> int:
        """Bytes if every range ends at its most."""
        return sum(line.amount.high for line in self.lines)

    def line(self, name: str) -> Line:
        """Return the line of this name."""
        return next(line for line in self.lines if line.name == name)


@dataclass(frozen=True)
class Plan:
    """A plan: what is asked of which model, and what that takes on each rank.

    Attributes:
        dims: The model.
        tp: Tensor-parallel ranks, one an APU.
        ep: Expert-parallel ranks among them.
        weights: By rank.
        asked: The sizes.
        host: Host processes of an APU.
        reserve: What stays free on an APU.
        extra: Further lines, the same on every rank (a second copy of a weight, for instance).
    """

    dims: ModelDims
    tp: int
    ep: int
    weights: tuple[WeightBytes, ...]
    asked: Asked
    host: Amount = estimates.HOST_PROCESSES
    reserve: Amount = estimates.RESERVE
    extra: tuple[Line, ...] = field(default=())

    @property
    def sizes(self) -> RankSizes:
        """The formulas for this model, split and dtype."""
        asked = self.asked
        return RankSizes(
            self.dims, self.tp, asked.state_dtype, asked.conv_dtype, asked.kv_dtype_bytes
        )

    def loaded_bytes(self, rank: int) -> int:
        """Return what is on a rank once weights are loaded, before any pool."""
        weights = self.weights[rank]
        draft = weights.draft if self.asked.draft_tokens else 0
        beside = sum(line.planned for line in self.extra if line.with_weights)
        return weights.target + draft + beside

    @cached_property
    def ranks(self) -> tuple[RankPlan, ...]:
        """The lines of every rank."""
        return tuple(self._rank(rank) for rank in range(self.tp))

    @property
    def admitted_requests(self) -> int:
        """Requests that SGLang lets run at once with these sizes."""
        asked = self.asked
        return admitted_requests(
            asked.max_running_requests, asked.kv_tokens, asked.state_slots, asked.scheduler
        )

    def _rank(self, rank: int) -> RankPlan:
        asked, sizes, weights = self.asked, self.sizes, self.weights[rank]
        drafts = asked.draft_tokens
        formula = "SGLang's formula, tested against it"
        lines = [
            Line("weights", "device", exact(weights.target, weights.source)),
            Line("draft", "device", exact(weights.draft if drafts else 0, weights.source)),
            Line("KV pool", "device", exact(
                sizes.kv_pool_bytes(asked.kv_tokens, asked.page_tokens),
                f"{formula}: {asked.kv_tokens:,} tokens and one page x {sizes.kv_token_bytes:,} B",
            )),
            Line("draft KV", "device", exact(
                sizes.draft_kv_pool_bytes(asked.kv_tokens, asked.page_tokens) if drafts else 0,
                f"{formula}: as many tokens x {sizes.draft_kv_token_bytes:,} B",
            )),
            Line("state slots", "device", exact(
                sizes.state_pool_bytes(asked.state_slots, drafts, replay=asked.replay),
                f"{formula}: {asked.state_slots:,} slots and one x "
                f"{sizes.slot_bytes(drafts, replay=asked.replay):,} B, state in "
                f"{asked.state_dtype}" + (", replay record included" if asked.replay else ""),
            )),
            Line("verify scratch", "device", exact(
                sizes.verify_scratch_bytes(
                    asked.max_running_requests, drafts, replay=asked.replay
                ),
                f"{formula}: convolution windows"
                + ("" if asked.replay else f" and {drafts} whole states")
                + " a running request",
            )),
            Line("request tables", "device", exact(
                request_table_bytes(
                    asked.max_running_requests,
                    asked.context_tokens,
                    asked.scheduler,
                    draft_tokens=drafts,
                    draft_steps=asked.draft_steps,
                    page_tokens=asked.page_tokens,
                ),
                f"{formula}: a row of {asked.context_tokens:,} locations a running request",
            )),
            Line("graph pools", "device", estimates.graph_pool(asked.captured_tokens)),
            Line("activations", "device", estimates.activations(
                self.dims,
                self.tp,
                chunk_tokens=asked.chunk_tokens,
                logit_rows=asked.verify_rows,
                experts=all(line.name != EXPERT_WORKSPACE for line in self.extra),
            )),
            *self.extra,
            Line("host processes", "host", self.host),
            Line("reserve", "reserve", self.reserve),
        ]  # fmt: skip
        return RankPlan(rank, tuple(lines))

    def fraction(self, available_bytes: int) -> Fraction:
        """Return what ``--mem-fraction-static`` would have to be for stock to size these pools.

        Args:
            available_bytes: Free on the APU before anything is loaded.
        """
        asked, weights, sizes = self.asked, self.weights[0], self.sizes
        drafts = asked.draft_tokens
        charged = (
            weights.target
            + (weights.draft + weights.lent if drafts else 0)
            + budget_state_bytes(
                sizes, asked.state_slots, asked.max_running_requests, drafts, replay=asked.replay
            )
            + asked.kv_tokens * sizes.budget_token_bytes(with_draft=bool(drafts))
        )
        needed = charged / available_bytes
        kept = effective_fraction(1.0, aiter=asked.aiter, context_tokens=asked.context_tokens)
        passed = asked.mem_fraction
        return Fraction(
            passed=passed,
            effective=None if passed is None else passed * kept,
            kept=kept,
            needed_effective=needed,
            needed_passed=needed / kept,
        )


@dataclass(frozen=True)
class Fraction:
    """``--mem-fraction-static`` before and after stock scales it.

    Attributes:
        passed: What the preset passes, or None.
        effective: What stock makes of it.
        kept: The factor; 1 where stock does not scale.
        needed_effective: What stock would need to size these pools by itself.
        needed_passed: What would have to be passed for that.
    """

    passed: float | None
    effective: float | None
    kept: float
    needed_effective: float
    needed_passed: float
