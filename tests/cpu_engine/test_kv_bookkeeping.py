"""Slot bookkeeping against a model of it in plain lists and dictionaries."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_mi300a.cpu_engine.operators import kv_bookkeeping

REQUESTS, POOL_LEN = 5, 12


def _table() -> torch.Tensor:
    return torch.arange(100, 100 + REQUESTS * POOL_LEN, dtype=torch.int32).view(REQUESTS, POOL_LEN)


spans = st.lists(
    st.tuples(st.integers(0, POOL_LEN), st.integers(0, POOL_LEN)).map(sorted),
    max_size=REQUESTS,
)


@given(spans=spans, order=st.permutations(range(REQUESTS)))
def test_new_slots_are_entered_at_the_positions_of_each_request(
    spans: list[list[int]], order: list[int]
) -> None:
    rows = order[: len(spans)]
    wanted = {(r, p): int(_table()[r, p]) for r in range(REQUESTS) for p in range(POOL_LEN)}
    slots = iter(range(1000, 2000))
    given_out = []
    for row, (first, last) in zip(rows, spans, strict=True):
        for position in range(first, last):
            wanted[row, position] = next(slots)
            given_out.append(wanted[row, position])
    table = _table()
    starts, ends = torch.tensor([s[0] for s in spans]), torch.tensor([s[1] for s in spans])
    kv_bookkeeping.assign_req_to_token_pool_cpu(
        torch.tensor(rows), table, starts, ends, torch.tensor(given_out).long(), POOL_LEN
    )
    got = {(r, p): int(table[r, p]) for r in range(REQUESTS) for p in range(POOL_LEN)}
    assert got == wanted


@given(spans=spans, order=st.permutations(range(REQUESTS)))
def test_slots_are_looked_up_request_after_request(
    spans: list[list[int]], order: list[int]
) -> None:
    rows, table = order[: len(spans)], _table()
    wanted = []
    for row, (first, last) in zip(rows, spans, strict=True):
        wanted.extend(int(table[row, position]) for position in range(first, last))
    out = torch.full((REQUESTS * POOL_LEN,), -7)
    kv_bookkeeping.assign_extend_cache_locs_cpu(
        torch.tensor(rows),
        table,
        torch.tensor([s[0] for s in spans]),
        torch.tensor([s[1] for s in spans]),
        out,
        POOL_LEN,
    )
    assert out.tolist() == wanted + [-7] * (len(out) - len(wanted))
    assert torch.equal(table, _table())


def test_draft_slots_lie_behind_the_committed_ones() -> None:
    out = torch.zeros(2 * 2 * 3, dtype=torch.long)
    kv_bookkeeping.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor([3, 1]), _table(), torch.tensor([5, 0]), out, POOL_LEN, 2, 3
    )
    first = 100 + 3 * POOL_LEN + 5
    second = 100 + 1 * POOL_LEN
    assert out.tolist() == [*range(first, first + 6), *range(second, second + 6)]


def test_each_drafted_branch_has_a_row_of_committed_and_own_slots() -> None:
    table, topk, steps = _table(), 2, 3
    lengths, requests = [5, 1], [3, 1]
    rows = kv_bookkeeping.build_draft_decode_metadata_cpu(
        table, torch.tensor(requests), torch.tensor(lengths), topk, steps, POOL_LEN
    )
    assert rows.dtype == table.dtype
    assert len(rows) == 4
    for i, (request, length) in enumerate(zip(requests, lengths, strict=True)):
        for branch in range(topk):
            own = length + branch * steps
            wanted = [
                *table[request, :length].tolist(),
                *table[request, own : own + steps].tolist(),
            ]
            row = rows[i * topk + branch].tolist()
            assert row[: length + steps] == wanted
            assert not any(row[length + steps :])


def test_no_requests_draft_no_rows() -> None:
    nothing = torch.zeros(0, dtype=torch.long)
    rows = kv_bookkeeping.build_draft_decode_metadata_cpu(
        _table(), nothing, nothing, 1, 3, POOL_LEN
    )
    assert len(rows) == 0


def test_accepted_slots_are_gathered_in_front() -> None:
    out = torch.full((6,), -7)
    kv_bookkeeping.fill_accept_out_cache_loc_cpu(
        torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32),
        torch.tensor([50, 51, 52, 53, 54, 55]),
        out,
    )
    assert out.tolist() == [50, 52, 53, -7, -7, -7]


def test_the_bonus_token_is_the_last_accepted_one() -> None:
    bonus = torch.zeros(3, dtype=torch.int32)
    accepted = torch.tensor([10, 11, 12, 20, 0, 0, 30, 31, 0])
    kv_bookkeeping.fill_bonus_tokens_cpu(accepted, torch.tensor([3, 1, 2]), bonus, 3)
    assert bonus.tolist() == [12, 20, 31]


def test_ids_are_shifted_and_the_next_token_put_at_the_end() -> None:
    ids = torch.tensor([1, 2, 3, 4, 5, 6])
    kv_bookkeeping.rotate_input_ids_cpu(
        ids, torch.tensor([0, 3, 3]), torch.tensor([3, 0, 3]), torch.tensor([[77], [88], [99]])
    )
    assert ids.tolist() == [2, 3, 77, 5, 6, 99]


def test_the_next_token_may_go_to_another_place() -> None:
    ids = torch.tensor([1, 2, 3, 4])
    kv_bookkeeping.rotate_input_ids_cpu(
        ids, torch.tensor([0]), torch.tensor([4]), torch.tensor([77]), torch.tensor([1])
    )
    assert ids.tolist() == [2, 77, 4, 4]


@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=9, unique_by=lambda pair: pair[0]
    )
)
def test_rows_are_moved_in_every_buffer_as_if_all_were_read_first(
    pairs: list[tuple[int, int]],
) -> None:
    buffers = [
        torch.arange(9 * 4, dtype=torch.float32).view(9, 4),
        torch.arange(9 * 6, dtype=torch.bfloat16).view(9, 2, 3),
    ]
    wanted = [buffer.clone() for buffer in buffers]
    for buffer, original in zip(wanted, [each.clone() for each in buffers], strict=True):
        for target, source in pairs:
            buffer[target] = original[source]
    kv_bookkeeping.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        torch.tensor([buffer[0].nbytes for buffer in buffers]),
        torch.tensor([pair[0] for pair in pairs], dtype=torch.long),
        torch.tensor([pair[1] for pair in pairs], dtype=torch.long),
    )
    for buffer, expected in zip(buffers, wanted, strict=True):
        assert torch.equal(buffer, expected)
