"""Each of TurnTail's rules, on SGLang's own cache, allocators and scheduler bookkeeping."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest

from sglang_mi300a import hook_fit, hooking, plugin
from sglang_mi300a.errors import UserError
from sglang_mi300a.pools.turn_tail import policy
from sglang_mi300a.pools.turn_tail.refusals import BACKEND, MARGIN_SEAM
from sglang_mi300a.pools.turn_tail.seams import SEAMS
from tests.pools.turn_tail.conftest import Chat, depths, finish, policy_of, victims


def learned_that_replies_are_not_matched(server):
    policy_of(server).ledger.of_replies.stored.settle(unused=policy.NUM_FIRST)


def test_turntail_is_built_through_sglangs_registry(serve):
    server = serve()
    assert type(policy_of(server)).__name__ == "TurnTail"
    assert factory() is make_cache()
    assert type(policy_of(serve("stock"))).__name__ == "MambaComponent"


def test_the_snapshot_a_turn_continued_from_goes_first(serve):
    server = serve()
    old, new = Chat(server, "old"), Chat(server, "new")
    old.turn(200)
    new.turn(330)
    new.turn(600)
    assert depths(server) == [192, 320, 576]
    assert victims(server, 3) == [320, 192, 576]


def test_stock_would_let_the_other_conversation_go_first(serve):
    server = serve("stock")
    old, new = Chat(server, "old"), Chat(server, "new")
    old.turn(200)
    new.turn(330)
    new.turn(600)
    assert victims(server, 3)[0] == 192


def test_a_fork_where_two_conversations_go_on_is_not_superseded(serve):
    server = serve()
    a, b = Chat(server, "a", system_tokens=300), Chat(server, "b", system_tokens=300)
    a.turn(500)
    b.turn(520)  # takes its snapshot where the two part
    assert depths(server) == [256, 448]
    b.turn(800)
    assert depths(server) == [256, 448, 768]
    assert victims(server, 3) == [448, 256, 768]


def test_a_long_prompts_own_chunks_are_superseded_by_its_end(serve):
    server = serve(chunk_tokens=256)
    Chat(server, "long").turn(950)
    assert depths(server) == [256, 512, 768, 896]
    assert victims(server, 4)[-1] == 896
    end = next(node.id for node, tokens in server.snapshots() if len(tokens) == 896)
    assert list(policy_of(server).ledger.superseded_by.values()) == [end] * 3


def test_chunks_are_no_turns_of_a_conversation(serve):
    server = serve(chunk_tokens=256)
    chat = Chat(server, "long")
    for turn, length in enumerate((950, 1_400), start=1):
        chat.turn(length)
        assert max(policy_of(server).ledger.turns.values()) == turn


def test_a_superseded_snapshot_that_is_split_still_goes_first(serve):
    server = serve()
    other, chat = Chat(server, "other"), Chat(server, "chat", system_tokens=300)
    other.turn(200)
    chat.turn(400)
    chat.turn(700)
    Chat(server, "sharing", system_tokens=300).turn(520)
    assert victims(server, 2) == [384, 192]


def test_a_request_that_ends_after_its_next_turn_does_not_rest_at_its_old_prompt(serve):
    server = serve()
    other, chat = Chat(server, "other"), Chat(server, "chat")
    slow = chat.start(400, reply_tokens=60)
    server.step()
    chat.turn(700)
    other.turn(200)
    finish(server, slow)
    assert victims(server, 1) == [384]


def test_a_request_that_ends_late_leaves_the_most_recent_snapshot(serve):
    server = serve()
    slow, quick = Chat(server, "slow"), Chat(server, "quick")
    slow.start(200, reply_tokens=40)
    server.step()
    quick.start(330, reply_tokens=4)
    finish(server, quick.req)
    finish(server, slow.req)
    assert victims(server, 2) == [320, 192]
    stock = serve("stock")
    slow, quick = Chat(stock, "slow"), Chat(stock, "quick")
    slow.start(200, reply_tokens=40)
    stock.step()
    quick.start(330, reply_tokens=4)
    finish(stock, slow.req)
    assert victims(stock, 2) == [192, 320]


def test_a_reply_is_stored_until_it_is_known_that_none_is_matched(serve):
    server = serve()
    Chat(server, "first").turn(200, reply_tokens=100)
    assert depths(server) == [192, 256]
    learned_that_replies_are_not_matched(server)
    Chat(server, "second").turn(200, reply_tokens=100)
    assert depths(server) == [192, 192, 256]


def test_one_reply_in_so_many_is_stored_all_the_same(serve):
    server = serve(slots=100)
    learned_that_replies_are_not_matched(server)
    for n in range(policy.SAMPLE_EVERY):
        Chat(server, f"chat {n}").turn(200, reply_tokens=100)
    assert depths(server) == [192] * policy.SAMPLE_EVERY + [256]


def test_a_refused_reply_gives_all_its_slots_and_kv_back(serve):
    server = serve()
    learned_that_replies_are_not_matched(server)
    chat = Chat(server, "chat")
    chat.turn(200, reply_tokens=150)
    server.check()
    assert server.pool.mamba_allocator.available_size() == server.setup.slots - 1
    assert server.kv.available_size() == server.setup.kv_tokens - 192


def test_the_next_turn_passes_an_unmatched_reply_by_and_it_goes_first(serve):
    server = serve()
    other, chat = Chat(server, "other"), Chat(server, "chat")
    other.turn(330)
    chat.turn(200, reply_tokens=100)
    chat.turn(500)
    assert policy_of(server).ledger.of_replies.met.unused == 1
    # The reply, then the prompt it belongs to; the other conversation stays.
    assert sorted(victims(server, 2)) == [192, 256]


def test_matched_replies_are_continued_from_and_in_the_end_replace_their_prompts(serve):
    server = serve(slots=40)
    chat = Chat(server, "chat")
    chat.turn(200, reply_tokens=100)
    req = chat.follow_up(150)
    assert req.cached_tokens == 256
    met = policy_of(server).ledger.of_replies.met
    assert (met.used, met.unused) == (1, 0)
    met.settle(used=policy.NUM_FIRST)
    Chat(server, "trusting").turn(340, reply_tokens=200)
    order = victims(server, 9)
    assert order.index(320) < order.index(512)
    met.settle(unused=policy.NUM_FIRST)
    Chat(server, "doubting").turn(600, reply_tokens=200)
    order = victims(server, 9)
    assert order.index(768) < order.index(576)


def test_evicted_conversations_take_their_next_snapshot_at_the_prompts_end(serve):
    cached = {}
    for name in ("stock", "turntail"):
        server = serve(name)
        chat = Chat(server, name)
        chat.turn(400)
        chat.turn(800)
        lose_snapshots(server)  # KV of the first turn stays
        assert depths(server) == []
        assert chat.turn(1_000).cached_tokens == 0
        cached[name] = chat.turn(1_200).cached_tokens
        server.check()
    assert cached == {"stock": 384, "turntail": 960}


def lose_snapshots(server):
    """Evict states until none is left, as when slots are needed elsewhere."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    server.cache.evict(EvictParams(num_tokens=0, mamba_num=len(server.snapshots())))


def test_a_shared_prompt_gets_its_snapshot_where_conversations_part(serve):
    server = serve()
    for n in range(3):
        Chat(server, f"chat {n}", system_tokens=300).turn(500 + n)
    assert depths(server) == [256, 448, 448]
    assert Chat(server, "next", system_tokens=300).turn(480).cached_tokens == 256


def test_a_lost_snapshot_of_a_shared_prompt_is_taken_again_where_they_part(serve):
    server = serve()
    chats = [Chat(server, f"chat {n}", system_tokens=300) for n in range(3)]
    for n, chat in enumerate(chats):
        chat.turn(500 + n)
        if n:
            chat.turn(700)  # so that its KV stays when its snapshot goes
    fork = next(node for node, tokens in server.snapshots() if len(tokens) == 256)
    component = policy_of(server)
    tree = server.cache.tree_core
    frees: dict = {component.component_type: []}
    tree._evict_component_and_detach_lru(fork, component, frees, {}, tracker=None)
    server.cache._free_values(frees, {})
    Chat(server, "next", system_tokens=300).turn(900)
    assert 256 in depths(server)
    server.check()


def test_a_snapshot_taken_too_late_costs_one_turn_and_not_two(serve):
    cached = {}
    for name in ("stock", "turntail"):
        server = serve(name)
        chat = Chat(server, name)
        chat.turn(400)
        chat.turn(641)  # its snapshot at 640 holds a token the next turn will not have
        assert chat.turn(900).cached_tokens == 384
        cached[name] = chat.turn(1_100).cached_tokens
    assert cached == {"stock": 576, "turntail": 896}


def test_a_snapshot_that_may_be_too_late_leaves_the_one_before_in_its_place(serve):
    server = serve()
    other, chat = Chat(server, "other"), Chat(server, "chat")
    other.turn(200)
    chat.turn(400)
    chat.turn(641)
    assert victims(server, 1) == [192]
    chat.turn(760, drop=0)
    assert victims(server, 2) == [384, 640]


def test_the_margin_keeps_the_snapshot_before_what_is_rendered_differently(serve):
    server = serve("turntail+margin")
    chat = Chat(server, "chat")
    chat.turn(641)
    assert depths(server) == [576]
    assert chat.turn(900).cached_tokens == 576
    server.check()


def test_without_turntail_the_margin_moves_nothing(serve, replay_server):
    server = serve("stock")
    server.setup = dataclasses.replace(
        server.setup, policy=dataclasses.replace(server.setup.policy, margin=True)
    )
    Chat(server, "chat").turn(641)
    assert depths(server) == [640]


def test_the_margin_leaves_chunks_and_branch_points_where_they_are(serve):
    server = serve("turntail+margin", chunk_tokens=512)
    Chat(server, "long").turn(1_024)
    assert depths(server) == [512, 960]
    Chat(server, "some tokens more than its chunks").turn(1_030)
    assert depths(server) == [512, 512, 960, 960]
    a, b = Chat(server, "a", system_tokens=324), Chat(server, "b", system_tokens=324)
    a.turn(450)
    b.turn(325)
    assert 320 in depths(server)


def test_a_conversation_that_ends_a_path_again_gets_the_evicted_leafs_place(serve):
    server = serve()
    chat, other = Chat(server, "chat"), Chat(server, "other")
    chat.turn(400)
    chat.turn(700)
    other.turn(200)
    leaf = next(node for node, tokens in server.snapshots() if len(tokens) == 640)
    tree = server.cache.tree_core
    result = tree.evict_device_leaf(leaf.id, False)  # as KV pressure would take it
    server.cache._free_values(result.device_frees, result.host_frees)
    assert victims(server, 2) == [384, 192]
    assert list(policy_of(server).ledger.turns.values()) == [2, 1]  # the turns it had in all
    other.turn(500)
    assert victims(server, 3) == [192, 384, 448]
    server.check()


def test_under_pressure_a_conversation_that_saves_little_makes_room(serve):
    server = serve()
    learner = policy_of(server).ledger.of_returns
    Chat(server, "long").turn(700)
    learner.mean_saved = 16 * 640
    Chat(server, "short").turn(140)
    assert victims(server, 2) == [640, 128]
    learner.in_time.settle(used=50, unused=5)
    Chat(server, "another").turn(140)
    Chat(server, "another long").turn(700)
    assert victims(server, 4) == [128, 640, 128, 640]


def test_pressure_spares_a_snapshot_where_requests_part(serve):
    server = serve()
    learner = policy_of(server).ledger.of_returns
    Chat(server, "first", system_tokens=70).turn(700)
    learner.mean_saved = 16 * 4_000
    learner.in_time.settle(used=50, unused=5)
    Chat(server, "second", system_tokens=70).turn(701)  # rests where the two part
    assert depths(server) == [64, 640]
    assert victims(server, 2) == [640, 64]


def test_a_retracted_request_finds_its_prompts_snapshot_again(serve):
    server = serve()
    chat, other = Chat(server, "chat"), Chat(server, "other")
    chat.start(400, reply_tokens=80)
    server.step()
    server.step()
    server.retract(chat.req)
    other.turn(200)
    finish(server, chat.req)
    server.check()
    assert chat.req.cached_tokens == 0  # it was all new when it came
    assert server.num_prefilled < 400 + 200 + 100


def test_an_aborted_request_leaves_its_prompts_snapshot(serve):
    server = serve()
    learned_that_replies_are_not_matched(server)
    chat = Chat(server, "chat")
    chat.start(200, reply_tokens=150)
    for _ in range(40):
        server.step()
    server.abort(chat.req)
    finish(server, chat.req)
    server.check()
    assert depths(server) == [192]
    assert len(chat.req.output_ids) < 150


def test_a_request_aborted_between_its_chunks_leaves_the_chunks_it_had(serve):
    server = serve(chunk_tokens=256)
    chat = Chat(server, "chat")
    chat.start(900)
    server.step()
    server.step()
    server.abort(chat.req)
    server.step()
    server.check()
    assert depths(server) == [256]  # the second chunk was not handed over yet


def test_stripped_thinking_does_not_store_a_state_under_the_wrong_tokens(serve):
    """``--strip-thinking-cache`` hands over fewer tokens than the state has seen."""
    broken = serve("stock")
    run_with_fewer_tokens_handed_over(broken)
    with pytest.raises(AssertionError, match="stores a state of"):
        broken.check()
    server = serve()
    run_with_fewer_tokens_handed_over(server)
    server.check()


def run_with_fewer_tokens_handed_over(server):
    chat = Chat(server, "chat")
    chat.start(475, reply_tokens=100)
    chat.req.effective_kv_committed_len = lambda: len(chat.req.origin_input_ids)
    finish(server, chat.req)


def test_a_flush_forgets_everything(serve):
    server = serve()
    chat = Chat(server, "chat")
    chat.turn(400, reply_tokens=100)
    chat.turn(700)
    server.cache.reset()
    server.pool.clear()
    server.kv.clear()
    ledger = policy_of(server).ledger
    assert ledger == type(ledger)()
    chat.turn(900)
    server.check()


def test_the_ledger_names_only_nodes_that_are_in_the_tree(serve):
    server = serve(slots=12, max_running=2)
    chats = [Chat(server, f"chat {n}", system_tokens=100 * (n % 2)) for n in range(6)]
    for length in (250, 500, 641, 900):
        for chat in chats:
            chat.turn(length, reply_tokens=40)
    ledger = policy_of(server).ledger
    arena = server.cache.tree_core._node_arena.keys()
    stored = {node.id for node, _ in server.snapshots()}
    assert ledger.lost.keys() | ledger.turns.keys() <= arena
    assert (
        ledger.superseded_by.keys()
        | ledger.resting.keys()
        | ledger.replies.keys()
        | ledger.replies_of.keys()
    ) <= stored
    assert not ledger.lost.keys() & stored


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"enable_hierarchical_cache": True}, "HiCache"),
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
        ({"is_hybrid_ssm": False}, "no linear-attention states"),
    ],
)
def test_the_factory_refuses_before_it_builds(serve, change, name):
    server = serve()
    ctx = context_of(server)
    with pytest.raises(UserError, match=name):
        factory()(dataclasses.replace(ctx, **change))


@pytest.mark.parametrize(
    ("argument", "value", "name"),
    [
        ("enable_int8_mamba_checkpoint", True, "int8 checkpoints"),
        ("enable_session_radix_cache", True, "--enable-session-radix-cache"),
        ("disaggregation_mode", "prefill", "--disaggregation-mode"),
        ("enable_unified_memory", True, "--enable-unified-memory"),
    ],
)
def test_the_factory_reads_what_it_refuses_from_the_servers_arguments(serve, argument, value, name):
    server = serve()
    ctx = context_of(server)
    arguments = SimpleNamespace(**{**vars(ctx.server_args), argument: value})
    with pytest.raises(UserError, match=name):
        factory()(dataclasses.replace(ctx, server_args=arguments))


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("SGLANG_EXPERIMENTAL_CPP_RADIX_TREE", "1", "the C\\+\\+ tree"),
        ("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "rust", "'rust'"),
    ],
)
def test_the_factory_reads_the_kind_of_tree_from_the_environment(
    serve, monkeypatch, variable, value, name
):
    ctx = context_of(serve())
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=name):
        factory()(ctx)


def test_the_factory_refuses_an_sglang_whose_cache_is_another(serve, monkeypatch):
    ctx = context_of(serve())
    walk = next(seam for seam in SEAMS if seam.name == "pools.turn_tail_walk")
    margin = next(seam for seam in SEAMS if seam.name == MARGIN_SEAM)
    monkeypatch.setitem(hooking._installed, margin.name, hooking.Installed(margin, skipped="gone"))
    assert factory()(ctx)  # snapshots then stay where stock puts them
    monkeypatch.setitem(hooking._installed, walk.name, hooking.Installed(walk, skipped="changed"))
    with pytest.raises(UserError, match="hook pools.turn_tail_walk: found changed"):
        factory()(ctx)


def make_cache():
    from sglang_mi300a.pools import stock

    return stock.make_turn_tail_cache


def context_of(server):
    return server.build_context


def factory():
    from sglang.srt.mem_cache.registry import get_radix_cache_factory

    return get_radix_cache_factory(BACKEND)


def test_every_seam_of_turntail_is_in_this_sglang_and_takes_what_is_needed():
    tree = plugin.installed_sglang()
    pinned = json.loads(hook_fit.pin([seam.target for seam in SEAMS], tree, "0.5.18"))["targets"]
    for seam in SEAMS:
        assert set(getattr(seam, "needs", ())) <= set(pinned[seam.target]["parameters"])
    names = [seam.name for seam in SEAMS]
    assert len(set(names)) == len(names)


def test_every_override_of_turntail_is_among_its_seams(serve):
    component = policy_of(serve())
    stock_class = type(component).__mro__[1]
    overridden = {
        name
        for name, value in vars(type(component)).items()
        if callable(value) and hasattr(stock_class, name) and not name.startswith("__")
    }
    assert overridden == {
        seam.target.rsplit(".", 1)[1] for seam in SEAMS if seam.why.startswith("TurnTail overrides")
    }
