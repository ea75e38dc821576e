"""SGLang's prefix cache and scheduler bookkeeping, driven pass by pass without a model.

Real: the unified prefix cache with its tree and state component, the request and state pools, the
paged KV allocator, ``Req``, ``ScheduleBatch`` (placing snapshots, allocating, retracting),
``PrefillAdder`` (admission, chunks) and the bookkeeping at snapshot boundaries of decoding. Ours:
the loop around these, in SGLang's order (prefill first, first come first served), and the tokens.
State tensors are one number each; which tokens a real state would hold is kept beside them.

SGLang must be importable as on the CPU engine: with its stand-ins first on PYTHONPATH.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.configs.mamba_utils import (
    Mamba2CacheParams,
    Mamba2StateDType,
    Mamba2StateShape,
)
from sglang.srt.managers.prefill_delayer import PrefillDelayerSinglePassExecutor
from sglang.srt.managers.schedule_batch import FINISH_ABORT, ScheduleBatch
from sglang.srt.managers.schedule_batch import Req as StockReq
from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder
from sglang.srt.managers.scheduler_components.batch_result_processor import (
    SchedulerBatchResultProcessor,
)
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import (
    maybe_cache_unfinished_req,
    release_kv_cache,
)
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.registry import (
    TreeCacheBuildContext,
    create_tree_cache,
    get_radix_cache_factory,
    register_radix_cache_backend,
)
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_mi300a.pools.prefill_accumulation import AccumulatingDelayer, Limits
from sglang_mi300a.pools.stock import make_turn_tail_cache, place_snapshot_with_margin
from sglang_mi300a.pools.turn_tail.refusals import BACKEND
from sglang_mi300a.pools.workload import GRID_TOKENS

PAGE_TOKENS = 16
CHUNK_TOKENS = 1024
TRACK_TOKENS = 256
MAX_PREFILL_TOKENS = 16_384
CONTEXT_TOKENS = 8_192
KV_TOKENS = 787_936
"""KV pool of the published server, in tokens."""
DRAFT_TOKENS = 4
ACCEPTED_SHARES = {1: 0.12, 2: 0.20, 3: 0.34, 4: 0.34}
"""Tokens an MTP round yields, and how often: 2.9 on average, as published for three drafts."""

MAMBA = ComponentType.MAMBA


@dataclass(frozen=True)
class Policy:
    """One way to run the cache.

    Attributes:
        turn_tail: Whether TurnTail decides.
        margin: Whether snapshots keep a margin to the prompt's end.
        track_tokens: ``--mamba-track-interval``.
        max_states_per_path: ``--mamba-max-states-per-path``; -1: no limit, SGLang's default.
    """

    turn_tail: bool = False
    margin: bool = False
    track_tokens: int = TRACK_TOKENS
    max_states_per_path: int = -1


POLICIES = {
    "stock": Policy(),
    "flags": Policy(track_tokens=8192, max_states_per_path=1),
    "turntail": Policy(turn_tail=True),
    "turntail+margin": Policy(turn_tail=True, margin=True),
}


@dataclass(frozen=True)
class Setup:
    """What a server is started with.

    Attributes:
        slots: ``--max-mamba-cache-size``.
        max_running: ``--max-running-requests``.
        kv_tokens: ``--max-total-tokens``.
        overlap: Whether scheduling overlaps with the forward pass: one more slot a request.
        chunk_tokens: ``--chunked-prefill-size``.
        policy: Which cache.
        accumulate: How long prompts are held back.
    """

    slots: int
    max_running: int
    kv_tokens: int = KV_TOKENS
    overlap: bool = False
    chunk_tokens: int = CHUNK_TOKENS
    policy: Policy = field(default_factory=Policy)
    accumulate: Limits = field(default_factory=Limits)

    @property
    def run_cap(self) -> int:
        """Requests that may run: SGLang allows one for every 4 slots, or 5 with overlap."""
        return max(1, min(self.max_running, self.slots // (5 if self.overlap else 4)))


class PagedAllocator(PagedTokenToKVPoolAllocator):
    """SGLang's paged KV allocator; the one kernel it launches is written in torch."""

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        """Return slots for the tokens from ``prefix_lens`` to ``seq_lens``, or None."""
        page = self.page_size
        prefix, ends = prefix_lens_cpu.long(), seq_lens_cpu.long()
        old_pages, all_pages = (prefix + page - 1) // page, (ends + page - 1) // page
        new_pages = all_pages - old_pages
        needed = int(new_pages.sum())
        if needed > len(self.free_pages):
            return None
        lengths = ends - prefix
        row = torch.repeat_interleave(torch.arange(len(prefix)), lengths)
        first_of_row = torch.cumsum(lengths, 0) - lengths
        position = torch.arange(extend_num_tokens) - first_of_row[row] + prefix[row]
        page_of_row = torch.cumsum(new_pages, 0) - new_pages
        behind = position - old_pages[row] * page  # negative: in the last page it already has
        out = last_loc.long()[row] + 1 + position - prefix[row]
        fresh = behind >= 0
        at_page = self.free_pages[(page_of_row[row] + behind // page)[fresh]]
        out[fresh] = at_page * page + behind[fresh] % page
        self.free_pages = self.free_pages[needed:]
        return out


ONE_NUMBER = Mamba2StateShape(
    conv=[(1, 1)], temporal=(1, 1, 1), intermediate_size=1, conv_dim=1, ssm_state_size=1,
    num_heads=1, head_dim=1, state_size=1, conv_kernel=2,
)  # fmt: skip


class Server:
    """SGLang's cache and scheduler bookkeeping, driven pass by pass.

    Attributes:
        state_shape: Of one state; a subclass that computes states has real ones.
        waiting: Requests not yet admitted, first come first served.
        build_context: What the prefix cache was built from.
        cache: The prefix cache.
        content: What the state in each slot would have seen: tokens, and how many of them.
        num_prefilled: Tokens prefilled so far.
        num_retracted: Requests put back into the queue so far.
        begun: Requests that got their first token in the last pass.
    """

    state_shape = ONE_NUMBER

    def __init__(self, setup: Setup, accepted: random.Random) -> None:
        self.setup = setup
        self.waiting: list[StockReq] = []
        self.num_prefilled = 0
        self.num_retracted = 0
        self._accepted = accepted
        self._config = get_context().override_server_args(
            page_size=PAGE_TOKENS,
            chunked_prefill_size=setup.chunk_tokens,
            max_running_requests=setup.max_running,
            attention_backend="torch_native",
            disable_overlap_schedule=not setup.overlap,
            speculative_algorithm="EAGLE",
            speculative_num_steps=DRAFT_TOKENS - 1,
            speculative_eagle_topk=1,
            speculative_num_draft_tokens=DRAFT_TOKENS,
            mamba_radix_cache_strategy="extra_buffer",
            mamba_track_interval=setup.policy.track_tokens,
            mamba_max_states_per_path=setup.policy.max_states_per_path,
            radix_cache_backend=BACKEND if setup.policy.turn_tail else None,
            _mamba_cache_chunk_size=GRID_TOKENS,
        )
        args = self._config.install()
        self.pool = _request_pool(setup, self.state_shape)
        self.kv = PagedAllocator(
            setup.kv_tokens, PAGE_TOKENS, torch.bfloat16, "cpu", kvcache=None, need_sort=False
        )
        if get_radix_cache_factory(BACKEND) is None:
            register_radix_cache_backend(BACKEND, make_turn_tail_cache)
        self.build_context = TreeCacheBuildContext(
            server_args=args,
            params=CacheInitParams(
                disable=False,
                req_to_token_pool=self.pool,
                token_to_kv_pool_allocator=self.kv,
                page_size=PAGE_TOKENS,
                is_eagle=True,
                enable_mamba_extra_buffer=True,
                chunked_prefill_size=setup.chunk_tokens,
            ),
            is_hybrid_swa=False,
            is_hybrid_ssm=True,
            enable_hierarchical_cache=False,
            disable_radix_cache=False,
            effective_chunked_prefill_size=setup.chunk_tokens,
            tp_worker=None,
            model_config=None,
            tp_size=1,
            tp_rank=0,
            tp_group=None,
        )
        self.cache = create_tree_cache(self.build_context)
        self._args = args
        self._model = SimpleNamespace(vocab_size=1 << 30, is_encoder_decoder=False)
        self._spec = SpeculativeAlgorithm.from_string(args.speculative_algorithm)
        self._results = SchedulerBatchResultProcessor.__new__(SchedulerBatchResultProcessor)
        self._running = self._batch([])
        self._chunked: StockReq | None = None
        self._prefilled: Any = None
        self._new_token_ratio = 0.5
        self._replies: dict[str, array[int]] = {}
        self.content: dict[int, tuple[array[int], int]] = {}
        self.begun: list[StockReq] = []
        self._delayer = None
        if setup.accumulate.hold_back:
            self._delayer = AccumulatingDelayer(
                setup.accumulate,
                queue=lambda: self.waiting,
                in_chunks=lambda: self._chunked is not None,
                decided_by_one=lambda mine: mine,
            )

    def close(self) -> None:
        """Give SGLang's process-wide configuration back."""
        self._config.restore()

    # ---- requests ----

    def submit(self, rid: str, prompt: array[int], reply: array[int]) -> StockReq:
        """Queue a request that will generate ``reply``, and return it."""
        sampling = SamplingParams(max_new_tokens=len(reply), temperature=0.0, ignore_eos=True)
        sampling.normalize(None)
        req = StockReq(rid, "", prompt, sampling)
        # A round may yield tokens beyond the last; they are computed and thrown away.
        self._replies[rid] = reply + array("q", [0] * DRAFT_TOKENS)
        self.waiting.append(req)
        return req

    def abort(self, req: StockReq) -> None:
        """End a request as SGLang does: at once, or at the end of its next round of decoding."""
        if req in self.waiting:
            self.waiting.remove(req)
        elif req is self._chunked:
            req.finished_reason = FINISH_ABORT()
            release_kv_cache(req, self.cache, is_insert=False)
            self._chunked = None
        else:
            req.to_finish = FINISH_ABORT()

    def retract(self, req: StockReq) -> None:
        """Put a decoding request back into the queue, as SGLang does when KV runs out."""
        self._merge_prefilled()
        at = self._running.reqs.index(req)
        self._running.release_req(at, len(self._running.reqs) - 1, self._args)
        self._running.filter_batch(keep_indices=_all_but(at, len(self._running.reqs)))
        self._running.batch_is_full = False
        self.waiting.append(req)
        self.num_retracted += 1

    @property
    def decoding(self) -> list[StockReq]:
        """Requests whose prompt is prefilled and whose reply is neither complete nor aborted."""
        prefilled = self._prefilled.reqs if self._prefilled is not None else []
        running = [req for req in (*self._running.reqs, *prefilled) if not req.finished()]
        return [req for req in running if req is not self._chunked and not req.to_finish]

    @property
    def in_chunks(self) -> StockReq | None:
        """The request whose prompt is prefilled in part."""
        return self._chunked

    # ---- passes ----

    def step(self) -> tuple[int, int, list[StockReq]]:
        """Run one pass: prefill if anything can be, else one round of decoding.

        Returns:
            Tokens prefilled, requests decoded (one of the two is 0; both: nothing to do), and the
            requests this pass finished.
        """
        self.begun = []
        if self._chunked is not None:
            maybe_cache_unfinished_req(self._chunked, self.cache, chunked=True)
        self._merge_prefilled()
        batch = self._new_prefill_batch()
        if batch is not None:
            return batch.extend_num_tokens, 0, self._prefill(batch)
        if self._running.is_empty():
            return 0, 0, []
        return 0, *self._decode()

    def _merge_prefilled(self) -> None:
        batch, self._prefilled = self._prefilled, None
        self._running.filter_batch()
        if batch is not None:
            num_prefilled = batch.batch_size()
            batch.filter_batch(chunked_req_to_exclude=self._chunked)
            if batch.batch_size() < num_prefilled:
                self._running.batch_is_full = False
        if batch is None or batch.is_empty():
            if self._running.is_empty():
                self._running.batch_is_full = False
        elif self._running.is_empty():
            batch.batch_is_full = self._running.batch_is_full
            self._running = batch
        else:
            self._running.merge_batch(batch)

    def _new_prefill_batch(self) -> Any:
        running = self._running
        if (running.batch_is_full or not self.waiting) and self._chunked is None:
            return None
        if self._num_admissible() <= 0 and self._chunked is None:
            running.batch_is_full = True
            return None
        adder = PrefillAdder(
            PAGE_TOKENS,
            self.cache,
            self.kv,
            running,
            self._new_token_ratio,
            MAX_PREFILL_TOKENS,
            self.setup.chunk_tokens,
            max_running_requests=self.setup.run_cap,
            prefill_delayer_single_pass=(
                PrefillDelayerSinglePassExecutor(self._delayer, token_usage=0.0)
                if self._delayer is not None
                else None
            ),
            waiting_queue_len=len(self.waiting),
        )
        if self._chunked is not None:
            self._chunked.init_next_round_input()
            self._chunked = adder.add_chunked_req(self._chunked)
        self.pool.mamba_allocator.alloc_group_begin(len(self.waiting))
        for req in self.waiting:
            if len(adder.can_run_list) >= self._num_admissible():
                running.batch_is_full = True
                break
            req.init_next_round_input(self.cache)
            verdict = adder.add_one_req(
                req, has_chunked_req=self._chunked is not None, truncation_align_size=None
            )
            if verdict is not AddReqResult.CONTINUE:
                if verdict is AddReqResult.NO_TOKEN:
                    running.batch_is_full = True
                if not (adder.can_run_list and adder.can_run_list[-1] is req):
                    self._give_back_matched_state(req)
                break
        self.pool.mamba_allocator.alloc_group_end()
        if not adder.can_run_list:
            return None
        self.waiting = [req for req in self.waiting if req not in adder.can_run_list]
        if adder.new_chunked_req is not None:
            self._chunked = adder.new_chunked_req
        batch = self._batch(adder.can_run_list, self._chunked)
        batch.prepare_for_extend()
        return batch

    def _num_admissible(self) -> int:
        free = self.setup.run_cap - len(self._running.reqs)
        return min(free, self.pool.available_size())

    def _give_back_matched_state(self, req: StockReq) -> None:
        req.mamba_cow_src_index, req.mamba_needs_clear = None, False
        if req.mamba_pool_idx is not None:
            self.pool.mamba_allocator.free(req.mamba_pool_idx.unsqueeze(-1))
            req.mamba_pool_idx = None

    def _batch(self, reqs: list[StockReq], chunked: StockReq | None = None) -> Any:
        kind = MarginBatch if self.setup.policy.margin else ScheduleBatch
        return kind.init_new(
            reqs,
            self.pool,
            self.kv,
            self.cache,
            self._model,
            self.setup.overlap,
            self._spec,
            chunked_req=chunked,
        )

    def _prefill(self, batch: Any) -> list[StockReq]:
        self.num_prefilled += batch.extend_num_tokens
        self.prefill_states(batch)
        self.kv.free_group_begin()
        finished = []
        for req in batch.reqs:
            if req is self._chunked:
                continue
            if not req.output_ids:
                self.begun.append(req)
            self._generate(req, 1)
            if req.finished():
                release_kv_cache(req, self.cache)
                finished.append(req)
            else:
                maybe_cache_unfinished_req(req, self.cache)
        self.kv.free_group_end()
        self._prefilled = batch
        return finished

    def _generate(self, req: StockReq, num_tokens: int) -> None:
        at = len(req.output_ids)
        req.output_ids.extend(self._replies[req.rid][at : at + num_tokens])
        if req.to_finish or len(req.output_ids) >= req.sampling_params.max_new_tokens:
            req.update_finish_state(num_tokens)  # before, it would find nothing
        if req.finished():
            self._running.batch_is_full = False

    def _decode(self) -> tuple[int, list[StockReq]]:
        batch = self._running
        if batch.check_decode_mem():
            self._new_token_ratio = max(self._new_token_ratio - 0.001, 0.1)
        else:
            retracted, self._new_token_ratio, aborted = batch.retract_decode(self._args)
            assert not aborted, "the KV pool is too small for one request"
            self.waiting.extend(retracted)
            self.num_retracted += len(retracted)
            batch.batch_is_full = False
        batch.prepare_for_decode()
        yields = self._accepted.choices(
            list(ACCEPTED_SHARES), list(ACCEPTED_SHARES.values()), k=len(batch.reqs)
        )
        result = SimpleNamespace(num_correct_drafts_per_req_cpu=[n - 1 for n in yields])
        track_tokens = self.setup.policy.track_tokens
        self.kv.free_group_begin()
        finished = []
        for at, (req, num_tokens) in enumerate(zip(batch.reqs, yields, strict=True)):
            req.kv_committed_len += num_tokens
            self._generate(req, num_tokens)
            computed = req.kv_committed_len
            if (computed - num_tokens) // track_tokens != computed // track_tokens:
                place = req.mamba_next_track_idx
                self._results._mamba_prefix_cache_update(req, batch, result, at)
                slot = int(req.mamba_ping_pong_track_buffer[place])
                tokens = req.origin_input_ids + req.output_ids
                assert req.mamba_last_track_seqlen == computed // track_tokens * track_tokens
                self.content[slot] = (tokens, req.mamba_last_track_seqlen)
            if req.finished():
                release_kv_cache(req, self.cache)
                finished.append(req)
        self.kv.free_group_end()
        return len(yields), finished

    # ---- what the states would hold ----

    def prefill_states(self, batch: Any) -> None:
        """Do to the contents of state slots what the forward pass does to the states."""
        content = self.content
        if batch.mamba_clear_indices is not None:
            for slot in batch.mamba_clear_indices.tolist():
                content[slot] = (array("q"), 0)
        if batch.mamba_cow_src_indices is not None:
            sources = batch.mamba_cow_src_indices.tolist()
            targets = batch.mamba_cow_dst_indices.tolist()
            for source, target in zip(sources, targets, strict=True):
                content[target] = content[source]
        is_tracked_in = batch.mamba_track_mask.tolist(), batch.mamba_track_indices.tolist()
        tracks = list(zip(*is_tracked_in, strict=True))
        for req, (is_tracked, slot) in zip(batch.reqs, tracks, strict=True):
            tokens, start = req.full_untruncated_fill_ids, len(req.prefix_indices)
            active = int(req.mamba_pool_idx)
            held, length = content[active]
            assert held[:length] == tokens[:start], (
                f"request {req.rid} continues at {start} from a state of {length} other tokens"
            )
            content[active] = (tokens, req.extend_range.end)
            if is_tracked:
                content[slot] = (tokens, req.mamba_last_track_seqlen)

    def snapshots(self) -> list[tuple[Any, array[int]]]:
        """Return every tree node that holds a snapshot, with the tokens the node names."""
        found = []
        todo = [(self.cache.tree_core.root_node, array("q"))]
        while todo:
            node, tokens = todo.pop()
            for child in node.children.values():
                todo.append((child, tokens + child.key.raw_token_ids()))
            if node.component_data[MAMBA].value is not None:
                found.append((node, tokens))
        return found

    def check(self) -> None:
        """Raise AssertionError where the tree, a pool or a stored state is not as it must be."""
        self.cache.sanity_check()
        self._check_slots()
        self._check_kv()
        for node, tokens in self.snapshots():
            held, length = self.content[int(node.component_data[MAMBA].value)]
            assert held[:length] == tokens, (
                f"node {node.id} names {len(tokens)} tokens and stores a state of {length}"
            )

    def _check_slots(self) -> None:
        slots: list[int] = self.pool.mamba_allocator.free_slots.tolist()
        slots += [int(node.component_data[MAMBA].value) for node, _ in self.snapshots()]
        for req in self.requests():
            if req.mamba_pool_idx is not None:
                slots.append(int(req.mamba_pool_idx))
            if req.mamba_ping_pong_track_buffer is not None:
                slots += req.mamba_ping_pong_track_buffer.tolist()
        assert len(slots) == len(set(slots)), "a state slot has two owners"
        assert len(slots) == self.setup.slots, f"{self.setup.slots - len(slots)} slots are lost"

    def _check_kv(self) -> None:
        pages = [page.item() for page in self.kv.free_pages]
        core = self.cache.tree_core
        for node in core._collect_all_nodes():
            value = node.component_data[0].value
            if node is not core.root_node and value is not None:
                pages += (value[::PAGE_TOKENS] // PAGE_TOKENS).tolist()
        for req in self.requests():
            if req.req_pool_idx is not None and req.kv is not None:
                row = self.pool.req_to_token[req.req_pool_idx]
                own = row[req.cache_protected_len : req.kv.kv_allocated_len : PAGE_TOKENS]
                pages += (own // PAGE_TOKENS).tolist()
        assert len(pages) == len(set(pages)), "a KV page has two owners"
        assert len(pages) == self.kv.num_pages, f"{self.kv.num_pages - len(pages)} pages are lost"

    def requests(self) -> list[StockReq]:
        """Return all requests that have not ended."""
        prefilled = self._prefilled.reqs if self._prefilled is not None else []
        known = {id(req): req for req in (*self.waiting, *self._running.reqs, *prefilled)}
        if self._chunked is not None:
            known[id(self._chunked)] = self._chunked
        return [req for req in known.values() if not req.finished()]


def _all_but(at: int, count: int) -> list[int]:
    return [i for i in range(count) if i != at]


def _request_pool(setup: Setup, shape: Mamba2StateShape) -> HybridReqToTokenPool:
    """Return SGLang's pool of requests and states."""
    return HybridReqToTokenPool(
        size=setup.run_cap,
        mamba_size=setup.slots,
        mamba_spec_state_size=setup.run_cap,
        max_context_len=CONTEXT_TOKENS,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(
            shape=shape,
            layers=[0],
            dtype=Mamba2StateDType(conv=torch.float32, temporal=torch.float32),
        ),
        mamba_layer_ids=[0],
        enable_mamba_extra_buffer=True,
        enable_overlap_schedule=setup.overlap,
    )


class MarginBatch(ScheduleBatch):
    """SGLang's batch under TurnTail's hook on where snapshots are placed."""

    def _mamba_radix_cache_v2_req_prepare_for_extend(self, req: StockReq) -> Any:
        original = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend
        return place_snapshot_with_margin(original, self, req)
