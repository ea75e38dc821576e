"""The state stored at a moved position is, bit for bit, the one computed from scratch.

SGLang's own backend computes the states here: where it copies them from and to (its metadata for
tracking), its linear-attention layer, and its batch under TurnTail's hook. Its kernels are the CPU
engine's operators in float32.
"""

from __future__ import annotations

import importlib
import random
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.pools.turn_tail.conftest import Chat, depths

HEADS, D_K, D_V, WIDTH, CHUNK = 2, 8, 8, 4, 64
CHANNELS = 2 * HEADS * D_K + HEADS * D_V
NUM_EMBEDDINGS = 4099


class Layer:
    """One linear-attention layer with random weights, as SGLang's backend expects it."""

    layer_id = 0
    num_q_heads = num_k_heads = num_v_heads = HEADS
    head_q_dim = head_k_dim = D_K
    head_v_dim = D_V
    q_dim = k_dim = HEADS * D_K
    v_dim = HEADS * D_V
    bias = None
    activation = "silu"

    def __init__(self) -> None:
        random_ = torch.Generator().manual_seed(5)
        self.conv_weights = torch.randn(CHANNELS, WIDTH, generator=random_)
        self.A_log = torch.randn(HEADS, generator=random_)
        self.dt_bias = torch.randn(HEADS, generator=random_)
        self.qkv = torch.randn(NUM_EMBEDDINGS, CHANNELS, generator=random_)
        self.a = torch.randn(NUM_EMBEDDINGS, HEADS, generator=random_)
        self.b = torch.randn(NUM_EMBEDDINGS, HEADS, generator=random_)


@pytest.fixture(scope="module")
def gdn(replay_server):
    return importlib.import_module("sglang.srt.layers.attention.linear.gdn_backend")


@pytest.fixture(scope="module")
def layer(gdn):
    return Layer()


def backend_on(gdn: Any, pool: Any) -> Any:
    backend = object.__new__(gdn.GDNAttnBackend)
    backend.device, backend.topk, backend.req_to_token_pool = "cpu", 1, pool
    backend.conv_states_shape = pool.mamba_pool.mamba_cache.conv[0].shape
    triton = gdn.LinearAttnKernelBackend.TRITON  # on a CPU: the operators under that name
    backend.kernel_dispatcher = gdn.GDNKernelDispatcher(triton, triton)
    return backend


def prefill(backend: Any, layer: Layer, tokens: Any, **batch: Any) -> None:
    lengths = batch["extend_seq_lens"]
    forward_batch = SimpleNamespace(
        batch_size=len(lengths),
        forward_mode=importlib.import_module(
            "sglang.srt.model_executor.forward_batch_info"
        ).ForwardMode.EXTEND,
        extend_start_loc=torch.cumsum(lengths, 0) - lengths,
        extend_seq_lens_cpu=lengths.tolist(),
        spec_info=None,
        _original_batch_size=None,
        **batch,
    )
    backend.init_forward_metadata(forward_batch)
    ids = torch.tensor(tokens) % NUM_EMBEDDINGS
    backend.forward_extend(layer, forward_batch, layer.qkv[ids], layer.a[ids], layer.b[ids])


def from_scratch(gdn: Any, layer: Layer, server: Any, tokens: array[int]) -> tuple[Any, Any]:
    """Return convolution and recurrent state behind ``tokens``, in one pass from zeros."""
    pool = SimpleNamespace(
        mamba_pool=SimpleNamespace(
            mamba_cache=SimpleNamespace(conv=[torch.zeros(1, 1, CHANNELS, WIDTH - 1)])
        ),
        get_mamba_indices=lambda indices: indices,
        translate_mamba_indices=lambda indices: indices,
        mamba2_layer_cache=lambda _: states,
    )
    states = SimpleNamespace(
        conv=[torch.zeros(1, CHANNELS, WIDTH - 1)], temporal=torch.zeros(1, HEADS, D_V, D_K)
    )
    prefill(
        backend_on(gdn, pool),
        layer,
        tokens,
        req_pool_indices=torch.tensor([0]),
        extend_seq_lens=torch.tensor([len(tokens)]),
        extend_prefix_lens=torch.tensor([0]),
        mamba_track_mask=None,
        mamba_track_indices=None,
        mamba_track_seqlens=None,
    )
    return states.conv[0][0], states.temporal[0]


@pytest.fixture
def serve_states(replay_server, gdn, layer):
    """Return a function that starts a server which computes its prompts' states."""
    servers = []

    class StateServer(replay_server.Server):
        state_shape = replay_server.Mamba2StateShape(
            conv=[(CHANNELS, WIDTH - 1)], temporal=(HEADS, D_V, D_K), intermediate_size=1,
            conv_dim=CHANNELS, ssm_state_size=D_K, num_heads=HEADS, head_dim=D_V,
            state_size=D_K, conv_kernel=WIDTH,
        )  # fmt: skip

        def prefill_states(self, batch: Any) -> None:
            super().prefill_states(batch)
            states = self.pool.mamba_pool
            if batch.mamba_clear_indices is not None:
                states.clear_slots(batch.mamba_clear_indices)
            if batch.mamba_cow_src_indices is not None:
                states.copy_from(batch.mamba_cow_src_indices, batch.mamba_cow_dst_indices)
            prefill(
                backend_on(gdn, self.pool),
                layer,
                batch.prefill_input_ids_cpu.tolist(),
                req_pool_indices=batch.req_pool_indices,
                extend_seq_lens=torch.tensor(batch.extend_lens),
                extend_prefix_lens=torch.tensor(batch.prefix_lens),
                mamba_track_mask=batch.mamba_track_mask,
                mamba_track_indices=batch.mamba_track_indices,
                mamba_track_seqlens=batch.mamba_track_seqlens,
            )

    def start(policy: str, **sizes: Any) -> Any:
        setup = {"slots": 40, "max_running": 4, "kv_tokens": 16_000, **sizes}
        setup["policy"] = replay_server.POLICIES[policy]
        servers.append(StateServer(replay_server.Setup(**setup), random.Random(7)))
        return servers[-1]

    yield start
    for server in reversed(servers):
        server.close()


def assert_states_are_right(
    gdn: Any, layer: Layer, server: Any, replay_server: Any, *, tolerance: float = 0.0
) -> None:
    cache = server.pool.mamba_pool.mamba_cache
    for node, tokens in server.snapshots():
        slot = int(node.component_data[replay_server.MAMBA].value)
        conv, temporal = from_scratch(gdn, layer, server, tokens)
        assert torch.equal(cache.conv[0][0, slot], conv), len(tokens)
        difference = (cache.temporal[0, slot] - temporal).abs().max()
        assert difference <= tolerance, len(tokens)


@pytest.mark.parametrize("over", [0, 1, 7, 8, 63])
def test_a_moved_snapshot_equals_the_state_from_scratch(
    serve_states, gdn, layer, replay_server, over
):
    server = serve_states("turntail+margin")
    Chat(server, "chat").turn(320 + over)
    assert depths(server) == [320 if over >= 8 else 256]
    assert_states_are_right(gdn, layer, server, replay_server)


def test_it_does_behind_a_cached_prefix_and_in_a_batch_of_several(
    serve_states, gdn, layer, replay_server
):
    server = serve_states("turntail+margin", chunk_tokens=8_192)
    chats = [Chat(server, f"chat {n}") for n in range(3)]
    for lengths in ((130, 195, 257), (385, 450, 520), (641, 643, 1_700), (1_921, 900, 1_986)):
        for chat, length in zip(chats, lengths, strict=True):
            chat.start(length)
        assert server.step()[0] > max(lengths) - 1_000  # one pass for all three
        while any(server.step()[:2]):
            pass
        server.check()
        assert_states_are_right(gdn, layer, server, replay_server)
    assert chats[0].req.cached_tokens == 576  # 641 moved away from its prompt's end
    assert len(server.snapshots()) >= 12


def test_it_does_after_chunks(serve_states, gdn, layer, replay_server):
    server = serve_states("turntail+margin", chunk_tokens=256)
    chat = Chat(server, "chat")
    for length in (641, 1_281, 1_927):
        chat.turn(length)
        assert_states_are_right(gdn, layer, server, replay_server)
    assert chat.req.cached_tokens == 1_216
    assert depths(server)[-1] == 1_856


def test_it_does_where_passes_begin_off_the_grid(serve_states, gdn, layer, replay_server):
    """Then chunks are cut elsewhere than from scratch, and sums are rounded in another order."""
    server = serve_states("turntail+margin", chunk_tokens=208)
    chat = Chat(server, "chat")
    for length in (417, 700, 912):
        chat.turn(length)
        assert_states_are_right(gdn, layer, server, replay_server, tolerance=1e-5)
    assert any(depth % CHUNK for depth in depths(server))


def test_the_comparison_can_fail(serve_states, gdn, layer, replay_server):
    server = serve_states("turntail+margin")
    Chat(server, "chat").turn(320)
    node, _ = server.snapshots()[0]
    slot = int(node.component_data[replay_server.MAMBA].value)
    state = server.pool.mamba_pool.mamba_cache.temporal[0, slot]
    state[0, 0, 0] = torch.nextafter(state[0, 0, 0], torch.tensor(9.0))
    with pytest.raises(AssertionError):
        assert_states_are_right(gdn, layer, server, replay_server)


def test_a_snapshot_marked_one_grid_step_off_would_be_seen(
    serve_states, gdn, layer, replay_server, monkeypatch
):
    """Moving only the position the tree is told, and not where the kernels look, is wrong."""
    from sglang_mi300a.pools import stock

    def half_a_move(original: Any, batch: Any, req: Any) -> Any:
        entry = original(batch, req)
        req.mamba_last_track_seqlen -= CHUNK
        return entry

    monkeypatch.setattr(replay_server, "place_snapshot_with_margin", half_a_move)
    assert stock.place_snapshot_with_margin is not half_a_move
    server = serve_states("turntail+margin")
    Chat(server, "chat").turn(320)
    assert depths(server) == [256]
    with pytest.raises(AssertionError):
        assert_states_are_right(gdn, layer, server, replay_server)
