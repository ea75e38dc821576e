"""Attention against a softmax written out position by position in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sglang_mi300a.cpu_engine.operators import attention

# A float32 softmax over at most a dozen keys.
TOLERANCE = 1e-5

D, D_V, SCALE = 6, 4, 0.37


class Cache:
    """A paged cache whose requests' slots are scattered, filled with random keys and values."""

    def __init__(self, kv_heads: int, requests: int = 4, pool_len: int = 16) -> None:
        generator = torch.Generator().manual_seed(kv_heads)
        slots = requests * pool_len
        self.k = torch.randn(slots, kv_heads, D, generator=generator)
        self.v = torch.randn(slots, kv_heads, D_V, generator=generator)
        shuffled = torch.randperm(slots, generator=generator)
        self.req_to_token = shuffled.view(requests, pool_len).int()

    def slot(self, request: int, position: int) -> int:
        return int(self.req_to_token[request, position])


def _attend(
    q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], cap: float = 0.0
) -> torch.Tensor:
    """Return one token's heads ``[q_heads, D_V]``; keys are ``[kv_heads, D]`` each."""
    q_heads, kv_heads = len(q), len(keys[0])
    out = torch.zeros(q_heads, D_V, dtype=torch.float64)
    for head in range(q_heads):
        group = head // (q_heads // kv_heads)
        logits = [float(q[head].double() @ key[group].double()) * SCALE for key in keys]
        if cap:
            logits = [cap * math.tanh(logit / cap) for logit in logits]
        weights = [math.exp(logit - max(logits)) for logit in logits]
        for weight, value in zip(weights, values, strict=True):
            out[head] += weight / sum(weights) * value[group].double()
    return out


def _extend(cache: Cache, q: torch.Tensor, lengths: list[int], new: list[int], **more: Any) -> Any:
    """Run the operator with the new tokens in the cache already; return its output."""
    out = torch.full((len(q), q.shape[1], D_V), 9.0)
    arguments = {
        "q_extend": q,
        "k_extend": None,
        "v_extend": None,
        "o_extend": out,
        "k_buffer": cache.k,
        "v_buffer": cache.v,
        "req_to_token": cache.req_to_token,
        "req_pool_indices": torch.arange(len(lengths)),
        "seq_lens": torch.tensor(lengths),
        "extend_seq_lens": torch.tensor(new, dtype=torch.int32),
        "extend_start_loc": torch.tensor([sum(new[:i]) for i in range(len(new))]).int(),
        "max_len_extend": max(new, default=0),
        "sm_scale": SCALE,
        "logit_cap": 0.0,
        "is_cross_attn": False,
        "sliding_window_size": 0,
        "encoder_lens": None,
        "sinks": None,
        "tree_mask": None,
        **more,
    }
    attention.extend_attention_cpu(**arguments)
    return out


def _queries(tokens: int, q_heads: int) -> torch.Tensor:
    return torch.randn(tokens, q_heads, D, generator=torch.Generator().manual_seed(tokens))


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(1, 1), (4, 2), (6, 1)])
@pytest.mark.parametrize(
    ("lengths", "new"),
    [([1], [1]), ([7], [7]), ([9, 4, 12], [1, 4, 5]), ([5, 6], [0, 2])],
    ids=str,
)
@pytest.mark.parametrize("cap", [0.0, 0.5])
def test_new_tokens_see_their_prefix_and_those_before_them(
    q_heads: int, kv_heads: int, lengths: list[int], new: list[int], cap: float
) -> None:
    cache, q = Cache(kv_heads), _queries(sum(new), q_heads)
    out = _extend(cache, q, lengths, new, logit_cap=cap)
    row = 0
    for request, (length, count) in enumerate(zip(lengths, new, strict=True)):
        for position in range(length - count, length):
            slots = [cache.slot(request, at) for at in range(position + 1)]
            wanted = _attend(q[row], [cache.k[s] for s in slots], [cache.v[s] for s in slots], cap)
            torch.testing.assert_close(out[row].double(), wanted, atol=TOLERANCE, rtol=0)
            row += 1


def test_keys_and_values_of_new_tokens_may_come_along_unstored() -> None:
    cache, q, kv_heads = Cache(2), _queries(5, 4), 2
    lengths, new = [6, 3], [3, 2]
    wanted = _extend(cache, q, lengths, new)
    k, v = torch.zeros(5, kv_heads * D), torch.zeros(5, kv_heads * D_V)
    row = 0
    for request, (length, count) in enumerate(zip(lengths, new, strict=True)):
        for position in range(length - count, length):
            slot = cache.slot(request, position)
            k[row], v[row] = cache.k[slot].flatten(), cache.v[slot].flatten()
            cache.k[slot] = cache.v[slot] = 1e9
            row += 1
    assert torch.equal(_extend(cache, q, lengths, new, k_extend=k, v_extend=v), wanted)


def test_drafted_tokens_see_their_prefix_and_what_the_tree_mask_says() -> None:
    cache, lengths, new = Cache(2), [7, 9], [4, 4]
    q = _queries(8, 4)
    #   0 -> 1, 2;  1 -> 3        and       0 -> 1 -> 2 -> 3
    seen = [[[0], [0, 1], [0, 2], [0, 1, 3]], [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]]
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    for request in range(2):
        for token in range(4):
            mask[request, token, seen[request][token]] = True
    out = _extend(cache, q, lengths, new, tree_mask=mask.flatten())
    for request, (length, count) in enumerate(zip(lengths, new, strict=True)):
        for token in range(count):
            prefix = length - count
            places = [*range(prefix), *(prefix + other for other in seen[request][token])]
            slots = [cache.slot(request, at) for at in places]
            row = request * 4 + token
            wanted = _attend(q[row], [cache.k[s] for s in slots], [cache.v[s] for s in slots])
            torch.testing.assert_close(out[row].double(), wanted, atol=TOLERANCE, rtol=0)
    # The second request's tree is a chain: there the mask changes nothing.
    assert torch.equal(out[4:], _extend(cache, q, lengths, new)[4:])


def test_more_new_tokens_than_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="request 0 has 4 new of 3 tokens"):
        _extend(Cache(1), _queries(4, 1), [3], [4])


def _decode(cache: Cache, q: torch.Tensor, rows: list[int], lengths: list[int], **more: Any) -> Any:
    out = torch.full((len(q), q.shape[1], D_V), 9.0)
    arguments = {
        "query": q,
        "k_buffer": cache.k,
        "v_buffer": cache.v,
        "output": out,
        "key": None,
        "value": None,
        "loc": torch.zeros(len(q), dtype=torch.long),
        "attn_logits": torch.zeros(0),
        "req_to_token": cache.req_to_token,
        "req_pool_indices": torch.tensor(rows),
        "seq_lens": torch.tensor(lengths),
        "sm_scale": SCALE,
        "logit_cap": 0.0,
        "is_cross_attn": False,
        "sliding_window_size": 0,
        "encoder_lens": None,
        "sinks": None,
        **more,
    }
    attention.decode_attention_cpu(**arguments)
    return out


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(1, 1), (4, 2), (6, 1)])
@pytest.mark.parametrize("cap", [0.0, 0.5])
def test_decoding_stores_the_new_token_and_sees_all_of_its_row(
    q_heads: int, kv_heads: int, cap: float
) -> None:
    cache, q = Cache(kv_heads), _queries(3, q_heads)
    rows, lengths = [2, 0, 3], [1, 5, 16]
    slots = [cache.slot(row, n - 1) for row, n in zip(rows, lengths, strict=True)]
    key, value = torch.randn(3, kv_heads * D), torch.randn(3, kv_heads * D_V)
    before_k = cache.k.clone()
    out = _decode(
        cache, q, rows, lengths, key=key, value=value, loc=torch.tensor(slots), logit_cap=cap
    )
    for i, slot in enumerate(slots):
        assert torch.equal(cache.k[slot].flatten(), key[i])
        assert torch.equal(cache.v[slot].flatten(), value[i])
    untouched = [slot for slot in range(len(before_k)) if slot not in slots]
    assert torch.equal(cache.k[untouched], before_k[untouched])
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        seen = [cache.slot(row, at) for at in range(length)]
        wanted = _attend(q[i], [cache.k[s] for s in seen], [cache.v[s] for s in seen], cap)
        torch.testing.assert_close(out[i].double(), wanted, atol=TOLERANCE, rtol=0)


def test_decoding_gives_what_extending_by_one_gives() -> None:
    cache, q = Cache(2), _queries(2, 4)
    assert torch.equal(_decode(cache, q, [0, 1], [5, 9]), _extend(cache, q, [5, 9], [1, 1]))


def test_decoding_nothing_does_nothing() -> None:
    cache = Cache(1)
    before = cache.k.clone()
    empty = torch.zeros(0, D)
    _decode(cache, _queries(0, 1), [], [], key=empty, value=torch.zeros(0, D_V))
    assert torch.equal(cache.k, before)


def test_as_many_lengths_as_queries_are_needed() -> None:
    with pytest.raises(ValueError, match="2 queries, 1 sequence lengths, 1 rows"):
        _decode(Cache(1), _queries(2, 1), [0], [3])


@pytest.mark.parametrize(
    ("asked", "feature"),
    [
        ({"is_cross_attn": True}, "cross attention"),
        ({"encoder_lens": torch.ones(1)}, "cross attention"),
        ({"sliding_window_size": 5}, "a sliding window"),
        ({"sinks": torch.ones(1)}, "attention sinks"),
    ],
)
def test_what_other_models_need_is_refused_by_operator_and_feature(
    asked: dict[str, Any], feature: str
) -> None:
    with pytest.raises(NotImplementedError, match=f"extend_attention_cpu with {feature}"):
        _extend(Cache(1), _queries(1, 1), [1], [1], **asked)
    with pytest.raises(NotImplementedError, match=f"decode_attention_cpu with {feature}"):
        _decode(Cache(1), _queries(1, 1), [0], [1], **asked)
