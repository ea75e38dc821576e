"""SGLang's unified prefix cache with TurnTail in place of its state component.

Subclasses SGLang's ``MambaComponent`` and leans on its tree's private parts: the pinned seams of
``pools.hooks`` name each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.mem_cache.registry import default_radix_cache_factory
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components.mamba_component import MambaComponent
from sglang.srt.mem_cache.unified_cache.components.tree_component import (
    EvictLayer,
    LRURefreshPhase,
)
from sglang.srt.runtime_context import mamba_checkpoint_grid

from sglang_mi300a.hooking import reached, skipped
from sglang_mi300a.pools.turn_tail.policy import (
    MARGIN_TOKENS,
    Ledger,
    PathNode,
    continued,
    with_margin,
)
from sglang_mi300a.pools.turn_tail.refusals import (
    Setup,
    refuse_another_sglang,
    refuse_what_is_unsupported,
)


def make_turn_tail_cache(ctx: Any) -> Any:
    """Return stock's prefix cache with TurnTail inside; a radix-cache factory.

    Args:
        ctx: SGLang's ``TreeCacheBuildContext``.

    Raises:
        UserError: The server is set up with something TurnTail does not support.
    """
    reached("pools.turn_tail")
    refuse_another_sglang(skipped("pools.turn_tail"))
    args, params = ctx.server_args, ctx.params
    refuse_what_is_unsupported(
        Setup(
            is_hybrid_ssm=ctx.is_hybrid_ssm,
            is_hybrid_swa=ctx.is_hybrid_swa,
            disable_radix_cache=ctx.disable_radix_cache,
            enable_hierarchical_cache=ctx.enable_hierarchical_cache,
            enable_int8_mamba_checkpoint=args.enable_int8_mamba_checkpoint,
            enable_session_radix_cache=args.enable_session_radix_cache,
            enable_streaming_session=args.enable_streaming_session,
            enable_unified_memory=args.enable_unified_memory,
            enable_lmcache=args.enable_lmcache,
            enable_flexkv=args.enable_flexkv,
            disaggregation_mode=args.disaggregation_mode,
            mamba_extra_buffer=params.enable_mamba_extra_buffer,
            mamba_extra_buffer_lazy=params.enable_mamba_extra_buffer_lazy,
            cpp_tree=envs.SGLANG_EXPERIMENTAL_CPP_RADIX_TREE.get(),
            tree_core=envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.get(),
        )
    )
    params.component_registry_override = {
        **(params.component_registry_override or {}),
        ComponentType.MAMBA: TurnTail,
    }
    return default_radix_cache_factory(ctx)


def place_snapshot_with_margin(original: Callable[..., Any], self: Any, req: Any) -> Any:
    """Return stock's place for a request's snapshot, moved away from the prompt's end.

    The body of a hook around ``ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend``; the
    place is ``req.mamba_last_track_seqlen`` and, for the kernels, the returned entry. Under another
    cache than TurnTail's nothing is moved.
    """
    entry = original(self, req)
    states = getattr(self.tree_cache, "components", {}).get(ComponentType.MAMBA)
    if not isinstance(states, TurnTail) or not entry.track_mask:
        return entry
    placed = req.mamba_last_track_seqlen
    if placed == req.mamba_branching_seqlen:  # where requests part, not where this prompt ends
        return entry
    moved = with_margin(
        prefix_tokens=len(req.prefix_indices),
        snapshot_tokens=placed,
        prompt_tokens=len(req.full_untruncated_fill_ids),
        margin_tokens=MARGIN_TOKENS,
        grid_tokens=mamba_checkpoint_grid(self.tree_cache.page_size),
    )
    if moved == placed:
        return entry
    req.mamba_last_track_seqlen = moved
    # One past a chunk boundary tells stock's backend to take the state at that boundary from
    # those between chunks, and not the one at the end of the pass.
    return entry._replace(track_seqlen=moved + 1)


class TurnTail(MambaComponent):
    """Stock's state component; see :mod:`sglang_mi300a.pools.turn_tail` for what differs.

    The tree's order of states, ``lru_lists[MAMBA]``, has the most recent at its head and is evicted
    from its tail. Superseded snapshots are kept at the tail, so stock's walk meets them first.
    """

    def reset_session_state(self) -> None:
        """Forget everything; the tree calls it when it is built and when it is flushed."""
        super().reset_session_state()
        self.ledger = Ledger()
        self._offers_reply = False
        self._prompt_node: int | None = None
        self._prompt_is_own = False
        self._may_be_too_late = False
        self._displaced: list[Any] = []

    # ---- what is stored ----

    def prepare_for_caching_req(
        self, req: Any, insert_params: Any, token_ids_len: int, is_finished: bool
    ) -> int | None:
        """Return how many of a request's tokens are stored with the snapshot it offers."""
        length: int | None = super().prepare_for_caching_req(
            req, insert_params, token_ids_len, is_finished
        )
        prompt_tokens = len(req.origin_input_ids)
        self._prompt_node = req.last_node
        self._prompt_is_own = self._has_own_snapshot(req)
        self._offers_reply = length is not None and length > prompt_tokens
        self._may_be_too_late = length is not None and 0 <= prompt_tokens - length < MARGIN_TOKENS
        if is_finished and length is not None:
            # A state of more tokens than are handed over (--strip-thinking-cache) fits no node.
            # With 0 nothing is inserted, and stock frees the request's own slots.
            refused = self._offers_reply and not self.ledger.of_replies.stored.wants()
            if refused or length > token_ids_len:
                self._offers_reply = False
                return 0
        return length

    def commit_insert_component_data(
        self,
        node: Any,
        is_new_leaf: bool,
        params: Any,
        result: Any,
        cache_actions: list[Any],
    ) -> None:
        """Attach a snapshot to its node; the snapshots it supersedes go to the tail."""
        super().commit_insert_component_data(node, is_new_leaf, params, result, cache_actions)
        if result.mamba_exist:
            self.ledger.superseded_by.pop(node.id, None)  # stock has made it the most recent
            return
        if self._offers_reply:
            prompt = self._prompt_node if self._prompt_is_own else None
            self.ledger.store_reply(node.id, prompt)
            if not self.ledger.of_replies.trusts():
                return
        else:
            num_turns = None if params.chunked else self._num_turns_above(node) + 1
            self.ledger.store(node.id, num_turns)
            if self._may_be_too_late and not self.ledger.of_returns.share_late():
                return  # the next turn may have to go back to the one before
        self._supersede_above(node)

    def cleanup_after_caching_req(
        self,
        req: Any,
        is_finished: bool,
        insert_result: Any = None,
        insert_params: Any = None,
    ) -> None:
        """Release a request's slots; at its end its prompt's snapshot becomes the most recent."""
        super().cleanup_after_caching_req(req, is_finished, insert_result, insert_params)
        # Where nothing was to be inserted, nothing was prepared, and last_node is still its own.
        rested = req.last_node if self._prompt_node is None else self._prompt_node
        self._prompt_node, self._offers_reply = None, False
        if is_finished and rested not in self.ledger.superseded_by:
            node = self.tree_core._node_arena.get(rested)
            if node is not None and self._order.in_list(node):
                # Where requests part, others may continue: only its own end is judged.
                own = self._has_own_snapshot(req)
                if not own or self.ledger.rest(rested, self._saved_tokens(node)):
                    self._order.reset_node_mru(node)
                else:
                    self._to_tail(node)

    # ---- what is matched ----

    def refresh_lru(self, phase: Any, node: Any, root_node: Any) -> None:
        """Make a matched snapshot the most recent; what the request passed by goes to the tail."""
        super().refresh_lru(phase, node, root_node)
        while self._displaced:
            displaced = self._displaced.pop()
            if self._order.in_list(displaced):
                self._to_tail(displaced)
        if phase is not LRURefreshPhase.MATCH_END or not self._order.in_list(node):
            return
        for reply in self.ledger.match(node.id):
            self._to_tail(self.tree_core.node_by_id(reply))

    def redistribute_on_node_split(self, new_parent: Any, child: Any) -> None:
        """Split a node; the tree then makes it the most recent, which is undone for the useless."""
        super().redistribute_on_node_split(new_parent, child)
        if child.id in self.ledger.superseded_by or self.ledger.replies.get(child.id):
            self._displaced.append(child)

    def finalize_match_result_in_tree_core(
        self, result: Any, params: Any, value_chunks: list[Any], best_value_len: int
    ) -> Any:
        """Decide where a request with more KV than state takes its snapshot."""
        result = super().finalize_match_result_in_tree_core(
            result, params, value_chunks, best_value_len
        )
        if result.mamba_branching_seqlen is not None:
            node = continued(self._kv_path(result, params.key))
            if node is not None:
                self.ledger.return_late(node.node)
                return result._replace(mamba_branching_seqlen=None)
        return result

    # ---- what is evicted ----

    def evict_component(
        self,
        node: Any,
        device_frees: dict[Any, list[Any]],
        host_frees: dict[Any, list[Any]],
        target: Any = EvictLayer.DEVICE,
    ) -> tuple[int, int]:
        """Take a node's snapshot; the one it superseded gets its place, if it ends a path now."""
        had = EvictLayer.DEVICE in target and self._order.in_list(node)
        freed: tuple[int, int] = super().evict_component(node, device_frees, host_frees, target)
        if had:
            self.ledger.evict(node.id)
            if not node.children:
                self._leave_to_those_above(node)
        return freed

    def discard_deleted_session_leaf(self, node: Any) -> None:
        """Forget a node; the tree calls it for every node it deletes."""
        super().discard_deleted_session_leaf(node)
        self.ledger.forget(node.id)

    # ---- the tree ----

    def _has_own_snapshot(self, req: Any) -> bool:
        """Return whether a request's deepest snapshot is at its prompt's end, and not well before.

        From well before, others may continue: what they do says nothing about this request.
        """
        behind = len(req.origin_input_ids) - req.cache_protected_len
        return bool(behind < 2 * self.mamba_checkpoint_grid)

    @property
    def _order(self) -> Any:
        return self.tree_core.lru_lists[self.component_type]

    def _to_tail(self, node: Any) -> None:
        order = self._order
        order._remove_node(node)
        order._add_node_after(order.tail.lru_prev[order._pt], node)

    def _is_fork(self, node: Any) -> bool:
        """Return whether more than one conversation continues behind a node."""
        continued = 0
        for child in node.children.values():
            if child.children or child.id not in self.ledger.replies:
                continued += 1
                if continued > 1:
                    return True
        return False

    def _supersede_above(self, node: Any) -> None:
        """Send the snapshots above ``node`` to the tail, up to the first fork."""
        root, above = self.tree_core.root_node, node.parent
        while above is not root and not self._is_fork(above):
            if self._order.in_list(above):
                if above.id not in self.ledger.superseded_by:
                    self._to_tail(above)
                self.ledger.superseded_by[above.id] = node.id
            above = above.parent

    def _num_turns_above(self, node: Any) -> int:
        root, above = self.tree_core.root_node, node.parent
        while above is not root:
            if above.id in self.ledger.turns:
                return self.ledger.turns[above.id]
            above = above.parent
        return 0

    def _saved_tokens(self, node: Any) -> int:
        """Return how many tokens a snapshot saves: those behind the next that would remain."""
        root, above = self.tree_core.root_node, node.parent
        saved = len(node.key)
        while above is not root:
            if self._order.in_list(above) and above.id not in self.ledger.superseded_by:
                break
            saved += len(above.key)
            above = above.parent
        return saved

    def _leave_to_those_above(self, node: Any) -> None:
        """Hand down what a leaf that loses its snapshot stood for: its turns and its place.

        The nearest snapshot above that it had superseded ends a path again, and stands in the order
        where the leaf's stood.
        """
        root, above = self.tree_core.root_node, node.parent
        num_turns = self.ledger.turns.get(node.id)
        while above is not None and above is not root and not self._is_fork(above):
            if num_turns is not None and above.id in self.ledger.turns:
                self.ledger.turns[above.id], num_turns = num_turns, None
            if self._order.in_list(above):
                if self.ledger.superseded_by.get(above.id) == node.id:
                    del self.ledger.superseded_by[above.id]
                    self._order._remove_node(above)
                    self._order._add_node_after(node, above)
                return
            above = above.parent

    def _kv_path(self, result: Any, key: Any) -> list[PathNode]:
        """Return the nodes behind a match's snapshot whose KV it matched too."""
        node, done = result.best_match_node, len(result.device_indices)
        page = self.tree_core.page_size
        path = []
        while done < result.full_kv_hit_length:
            node = node.children[key[done : done + page].child_key(page)]
            done += len(node.key)
            path.append(PathNode(node.id, node.id in self.ledger.lost, self._is_fork(node)))
        if path and len(node.children) == 1:
            (behind,) = node.children.values()
            if len(behind.key) <= page and self._order.in_list(behind):
                path[-1] = replace(path[-1], page_short=True)
        return path
