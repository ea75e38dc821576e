"""What TurnTail needs of SGLang, for the room's list of hooks."""

from __future__ import annotations

from sglang_mi300a.hooking import AnySeam, Hook, Registration, Reliance
from sglang_mi300a.pools.turn_tail.refusals import BACKEND, MARGIN_SEAM

_STOCK = "sglang_mi300a.pools.stock"
_CACHE = "sglang.srt.mem_cache.unified_cache"
_STATES = f"{_CACHE}.components.mamba_component.MambaComponent"
_TREE = f"{_CACHE}.unified_tree_core.UnifiedTreeCore"
_ORDER = f"{_CACHE}.unified_tree_core.UnifiedLRUList"
_GONE = "SGLang's state eviction tells useful snapshots from useless ones itself"


def _relies(name: str, target: str, why: str) -> Reliance:
    return Reliance(
        name=f"pools.turn_tail_{name}",
        target=target,
        required=False,
        why=why,
        remove_when=_GONE,
    )


SEAMS: tuple[AnySeam, ...] = (
    Registration(
        name="pools.turn_tail",
        target="sglang.srt.mem_cache.registry._RADIX_CACHE_REGISTRY",
        key=BACKEND,
        written_by="sglang.srt.mem_cache.registry.register_radix_cache_backend",
        value=f"{_STOCK}:make_turn_tail_cache",
        required=False,  # built where --radix-cache-backend asks for it; else stock refuses
        reached_by="pools",
        why="stock evicts the states that the next turn needs before those that nothing needs",
        remove_when=_GONE,
    ),
    _relies(
        "registry",
        "sglang.srt.mem_cache.registry.register_radix_cache_backend",
        f"it makes --radix-cache-backend {BACKEND} known",
    ),
    Hook(
        name=MARGIN_SEAM,
        target="sglang.srt.managers.schedule_batch.ScheduleBatch"
        "._mamba_radix_cache_v2_req_prepare_for_extend",
        kind="around",
        call=f"{_STOCK}:place_snapshot_with_margin",
        needs=("self", "req"),
        required=False,
        reached_by="prefill",
        why="a snapshot in the last tokens of a prompt, which the next turn renders differently, "
        "never matches; no option moves it. Without TurnTail it does nothing",
        remove_when="SGLang keeps snapshots away from the generation prompt",
    ),
    _relies(
        "factory",
        "sglang.srt.mem_cache.registry.default_radix_cache_factory",
        "it builds the cache around TurnTail through component_registry_override",
    ),
    _relies("prepare", f"{_STATES}.prepare_for_caching_req", "TurnTail overrides it"),
    _relies("commit", f"{_STATES}.commit_insert_component_data", "TurnTail overrides it"),
    _relies("cleanup", f"{_STATES}.cleanup_after_caching_req", "TurnTail overrides it"),
    _relies("refresh", f"{_STATES}.refresh_lru", "TurnTail overrides it"),
    _relies("match", f"{_STATES}.finalize_match_result_in_tree_core", "TurnTail overrides it"),
    _relies("evict", f"{_STATES}.evict_component", "TurnTail overrides it"),
    _relies("split", f"{_STATES}.redistribute_on_node_split", "TurnTail overrides it"),
    _relies("walk", f"{_STATES}._evict_device_next_node", "it evicts from the order's tail"),
    _relies(
        "forget",
        f"{_CACHE}.components.tree_component.TreeComponent.discard_deleted_session_leaf",
        "TurnTail overrides it to hear of deleted nodes",
    ),
    _relies(
        "reset",
        f"{_CACHE}.components.tree_component.TreeComponent.reset_session_state",
        "TurnTail overrides it to hear of a flush",
    ),
    _relies("delete", f"{_TREE}._remove_leaf_from_parent", "it says which node is deleted"),
    _relies("split_node", f"{_TREE}._split_node", "it makes a split node's state most recent"),
    _relies("nodes", f"{_TREE}._new_node", "it registers nodes by id in _node_arena"),
    _relies("order_remove", f"{_ORDER}._remove_node", "TurnTail moves states in the order"),
    _relies("order_add", f"{_ORDER}._add_node_after", "TurnTail moves states in the order"),
    _relies(
        "finish",
        "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.cache_finished_req",
        "inserting 0 tokens there frees what the request held",
    ),
    _relies(
        "unfinished",
        "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.cache_unfinished_req",
        "prepare, commit and cleanup come in this order, one request at a time",
    ),
)
