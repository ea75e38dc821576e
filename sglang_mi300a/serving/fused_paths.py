"""Which of SGLang's fast paths a rank really took, by counting calls that went through them.

A flag that is on proves nothing: stock falls back without a word. So each path is counted at the
function that only it reaches, and one that was needed and never reached is said aloud together
with what it costs. Steps that replay a graph call no function again: what counts is that the
capture went through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sglang_mi300a.serving.steps import DECODING, Steps, total

Status = Literal["taken", "NOT TAKEN", "not taken here", "not asked for"]


@dataclass(frozen=True)
class Path:
    """A path of SGLang's.

    Attributes:
        id: As it is counted.
        name: In words.
        target: SGLang's function that only this path reaches; "" where steps are counted instead.
        lost: What is lost without it.
        only_with_draft: Whether only a server that drafts takes it.
        only_with_ranks: Whether only a server of several ranks takes it.
        returns_none_if_not: Whether the function returns None where the path is not taken.
        asked_by: Field of SGLang's ``ServerArgs`` that asks for it; "" where nothing needs to.
    """

    id: str
    name: str
    target: str
    lost: str
    only_with_draft: bool = False
    only_with_ranks: bool = False
    returns_none_if_not: bool = False
    asked_by: str = ""


_GEMMA = "sglang.kernels.ops.layernorm.minimax_m3_rmsnorm"
_GDN = "sglang.srt.layers.attention.linear.gdn_backend.GDNAttnBackend"
_FLA = "sglang.kernels.ops.attention.fla"
DECODE_GRAPH = "decode_graph"
PREFILL_GRAPH = "prefill_graph"

PATHS: tuple[Path, ...] = (
    Path(
        "gemma_norm", "fused Gemma RMSNorm", f"{_GEMMA}.gemma_rmsnorm",
        "every norm runs as several torch kernels",
    ),
    Path(
        "gemma_add_norm", "fused residual add and Gemma RMSNorm",
        f"{_GEMMA}.gemma_fused_add_rmsnorm",
        "every residual norm runs as several torch kernels",
    ),
    Path(
        "top_k", "fused top-k routing", "sglang.srt.layers.moe.topk.fused_topk",
        "softmax, top-k and renormalisation of 512 experts run as separate torch kernels",
    ),
    Path(
        "replay_verify", "replay of linear-attention states in verify",
        f"{_GDN}._replayssm_fold_target_verify",
        "verifying drafts copies whole linear-attention states",
        only_with_draft=True,
        asked_by="enable_linear_replayssm_spec",
    ),
    Path(
        "replay_commit", "replay of accepted drafts into linear-attention states",
        f"{_FLA}.gdn_replayssm_spec_fold.commit_gdn_replayssm_fold_after_verify",
        "rejected drafts are rolled back by copying whole linear-attention states",
        only_with_draft=True,
        asked_by="enable_linear_replayssm_spec",
    ),
    Path(
        "chunked_delta", "chunked delta rule in prefill",
        f"{_FLA}.chunk.chunk_gated_delta_rule",
        "linear attention of prompts runs token after token",
    ),
    Path(
        "split_kv", "AITER's decode attention (split KV)",
        "sglang.srt.layers.attention.aiter_backend.AiterAttnBackend.forward_decode",
        "long contexts decode on few compute units",
    ),
    Path(
        "reduce_norm", "fused all-reduce and norm",
        "sglang.srt.distributed.parallel_state.GroupCoordinator.fused_allreduce_rmsnorm",
        "each layer adds the ranks' results and normalises them in separate kernels",
        only_with_ranks=True,
        returns_none_if_not=True,
        asked_by="enable_aiter_allreduce_fusion",
    ),
    Path(PREFILL_GRAPH, "prefill in a captured graph", "", "prompts launch kernel by kernel"),
    Path(
        DECODE_GRAPH, "a graph for every decode step", "",
        "decode steps outside a graph launch kernel by kernel",
    ),
)  # fmt: skip

_taken: dict[str, int] = {}


def counting(path: Path) -> Callable[..., None]:
    """Return what to put after a path's function so that its calls are counted."""

    def after(result: Any, *_: Any, **__: Any) -> None:
        if result is not None or not path.returns_none_if_not:
            _taken[path.id] = _taken.get(path.id, 0) + 1

    return after


def taken() -> dict[str, int]:
    """Return how often this process took each counted path."""
    return {path.id: _taken.get(path.id, 0) for path in PATHS if path.target}


def forget() -> None:
    """Forget what was counted (for tests)."""
    _taken.clear()


@dataclass(frozen=True)
class Seen:
    """A path as one start took it.

    Attributes:
        path: Which.
        status: Whether it was taken.
        detail: The counts behind that.
    """

    path: Path
    status: Status
    detail: str

    def __str__(self) -> str:
        return f"{self.path.name}: {self.status} ({self.detail})"


SWITCHES = tuple(sorted({path.asked_by for path in PATHS} - {""}))
"""Fields of SGLang's ``ServerArgs`` that ask for a path."""


@dataclass(frozen=True)
class Asked:
    """What a server was started for, as far as paths depend on it.

    Attributes:
        on_accelerator: Whether it runs on one.
        with_draft: Whether it drafts.
        num_ranks: Ranks of the server.
        decode_captured: Whether decode steps are captured.
        prefill_captured: Whether prefills are.
        switches: Those of :data:`SWITCHES` that are on.
    """

    on_accelerator: bool
    with_draft: bool
    num_ranks: int
    decode_captured: bool
    prefill_captured: bool
    switches: frozenset[str]


def judge(counts: Mapping[str, int], steps: Steps, asked: Asked) -> list[Seen]:
    """Return how each path was taken.

    Args:
        counts: Calls of each counted path, the least of all ranks.
        steps: Forward steps of a rank.
        asked: What the server was started for.
    """
    return [_seen(path, counts, steps, asked) for path in PATHS]


def _seen(path: Path, counts: Mapping[str, int], steps: Steps, asked: Asked) -> Seen:
    if path.id in (DECODE_GRAPH, PREFILL_GRAPH):
        is_decode = path.id == DECODE_GRAPH
        inside, outside = total(steps, DECODING if is_decode else ("EXTEND",))
        detail = f"{inside} steps in graphs, {outside} without"
        good = inside > 0 and (outside == 0 or not is_decode)
        wanted = asked.decode_captured if is_decode else asked.prefill_captured
    else:
        calls = counts.get(path.id, 0)
        good, detail, wanted = calls > 0, f"{calls} calls", True
    if good:
        return Seen(path, "taken", detail)
    if not asked.on_accelerator:
        return Seen(path, "not taken here", f"{detail}; SGLang's CPU engine")
    if path.only_with_draft and not asked.with_draft:
        return Seen(path, "not asked for", "nothing drafts")
    if path.only_with_ranks and asked.num_ranks == 1:
        return Seen(path, "not asked for", "one rank")
    if path.asked_by and path.asked_by not in asked.switches:
        flag = path.asked_by.replace("_", "-")
        return Seen(path, "not asked for", f"{detail}; --{flag} is not given")
    if not wanted:
        return Seen(path, "not asked for", f"{detail}; the preset captures none")
    return Seen(path, "NOT TAKEN", detail)


def warnings(seen: list[Seen]) -> list[str]:
    """Return a line for each path that was needed and not taken."""
    return [
        f"WARNING: {one.path.name} was NOT TAKEN ({one.detail}): {one.path.lost}"
        for one in seen
        if one.status == "NOT TAKEN"
    ]
