"""The real model's sizes, by hand, and the rules at their edges."""

import pytest

from sglang_mi300a.pools.pool_sizes import (
    RankSizes,
    Scheduler,
    default_chunk_tokens,
    effective_fraction,
    request_table_bytes,
    resolved_strategy,
)
from tests.pools.plan import models

REAL = models.dims()


def test_the_real_model_has_45_states_and_15_layers_of_kv():
    assert (REAL.num_linear_layers, REAL.num_attention_layers) == (45, 15)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        # 45 layers of 16 x 128 x 128 states and 3,072 channels x 3 columns in bfloat16.
        ("float32", 45 * (16 * 128 * 128 * 4 + 3072 * 3 * 2)),
        ("bfloat16", 45 * (16 * 128 * 128 * 2 + 3072 * 3 * 2)),
    ],
)
def test_a_state_of_the_real_model(dtype, expected):
    assert RankSizes(REAL, 4, dtype).state_bytes == expected
    assert expected in (48_015_360, 24_422_400)


def test_the_replay_record_is_20_992_bytes_a_layer():
    assert RankSizes(REAL, 4).replay_bytes(4) == 45 * 20_992


def test_a_token_costs_16_384_bytes_with_the_draft_and_15_360_without():
    sizes = RankSizes(REAL, 4)
    assert sizes.budget_token_bytes(with_draft=True) == 16_384
    assert sizes.budget_token_bytes(with_draft=False) == 15_360


def test_without_replay_verification_keeps_four_states_a_request():
    sizes = RankSizes(REAL, 4)
    with_replay = sizes.verify_scratch_bytes(48, 4, replay=True)
    without = sizes.verify_scratch_bytes(48, 4, replay=False)
    assert with_replay == 49 * 45 * 3072 * 6 * 2
    assert without - with_replay == 49 * 4 * 45 * 16 * 128 * 128 * 4
    assert sizes.verify_scratch_bytes(48, 0, replay=False) == 0


@pytest.mark.parametrize(
    ("scheduler", "slots"),
    [
        (Scheduler(overlap=True), 5),
        (Scheduler(overlap=False), 4),
        (Scheduler(overlap=True, strategy="extra_buffer_lazy"), 4),
        (Scheduler(overlap=False, strategy="no_buffer"), 3),
        (Scheduler(overlap=True, radix_cache=False), 1),
        (Scheduler(overlap=True, skip_decode_lock=True), 4),
    ],
)
def test_slots_a_request_by_scheduler_mode(scheduler, slots):
    assert scheduler.slots_per_request == slots


def test_paging_or_overlap_takes_snapshots_and_neither_does_not():
    assert resolved_strategy("auto", overlap=False, page_tokens=16) == ("extra_buffer", False)
    assert resolved_strategy("auto", overlap=True, page_tokens=1) == ("extra_buffer", True)
    assert resolved_strategy("auto", overlap=False, page_tokens=1) == ("no_buffer", False)


def test_a_row_of_the_request_table_has_room_for_what_a_step_may_drop():
    def row(drafts, page):
        full = request_table_bytes(
            0, 1000, Scheduler(overlap=True, strategy="no_buffer"), draft_tokens=drafts,
            draft_steps=max(0, drafts - 1), page_tokens=page,
        )  # fmt: skip
        return full // 4 - 1 - 1000  # in tokens, without the slot's index

    assert row(0, 16) == 4
    assert row(4, 1) == 8
    assert row(4, 16) == 2 * 4 + 15


@pytest.mark.parametrize(
    ("passed", "aiter", "context", "effective"),
    [
        (0.72, True, 262144, 0.612),
        (0.85, True, 8193, 0.7225),
        (0.85, True, 8192, 0.85),
        (0.85, False, 262144, 0.85),
    ],
)
def test_aiter_takes_a_part_of_the_memory_fraction(passed, aiter, context, effective):
    found = effective_fraction(passed, aiter=aiter, context_tokens=context)
    assert found == pytest.approx(effective, rel=1e-12)  # one floating multiplication


def test_an_mi300a_prefills_8192_tokens_a_pass_unless_told():
    assert default_chunk_tokens(128_200_000_000) == 8192
