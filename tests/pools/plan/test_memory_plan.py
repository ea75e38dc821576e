"""A plan's lines, its totals by how they are known, and the sizes it refuses."""

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import estimates
from sglang_mi300a.pools.byte_text import GB, GIB, both, size
from sglang_mi300a.pools.estimates import KINDS
from sglang_mi300a.pools.memory_plan import Line
from tests.pools.plan import models
from tests.pools.plan.models import asked, plan

NAMES = [
    "weights", "draft", "KV pool", "draft KV", "state slots", "verify scratch", "request tables",
    "graph pools", "activations", "host processes", "reserve",
]  # fmt: skip


def test_every_line_of_every_rank():
    made = plan()
    assert len(made.ranks) == 4
    for rank in made.ranks:
        assert [line.name for line in rank.lines] == NAMES
        assert all(line.amount.kind in KINDS and line.amount.source for line in rank.lines)


def test_the_real_models_lines_for_48_sessions():
    rank = plan().ranks[0]
    assert rank.line("weights").planned == 56_459_273_952
    assert rank.line("draft").planned == 3_353_396_224
    assert rank.line("KV pool").planned == (48 * 4096 + 16) * 15_360
    assert rank.line("draft KV").planned == (48 * 4096 + 16) * 1_024
    assert rank.line("state slots").planned == 193 * (48_015_360 + 944_640)
    assert rank.line("verify scratch").planned == 81_285_120
    assert rank.line("graph pools").planned == 16_040_000_000
    assert rank.line("host processes").planned == 8 * GB
    assert rank.line("reserve").planned == 15 * GIB


def test_totals_by_kind_add_up_and_ranges_enclose_what_is_planned():
    rank = plan().ranks[0]
    assert rank.of_kind(*KINDS) == rank.planned() == sum(line.planned for line in rank.lines)
    assert rank.of_kind("exact") < rank.of_kind("exact", "published") < rank.planned()
    assert rank.low < rank.planned() < rank.high
    for line in rank.lines:
        assert line.amount.low <= line.planned <= line.amount.high
        if line.amount.kind == "exact":
            assert line.amount.low == line.amount.high
        else:
            assert line.amount.low < line.amount.high


def test_without_drafts_nothing_is_planned_for_them():
    rank = plan(draft_tokens=0, draft_steps=0, replay=False).ranks[0]
    for name in ("draft", "draft KV", "verify scratch"):
        assert rank.line(name).planned == 0
    assert rank.line("state slots").planned == 193 * 48_015_360


def test_further_lines_are_counted():
    made = plan()
    extra = Line("second copy", "device", estimates.exact(GB, "of a projection"))
    more = type(made)(
        made.dims, 4, 1, made.weights, made.asked, made.host, made.reserve, extra=(extra,)
    )
    assert more.ranks[0].planned() == made.ranks[0].planned() + GB


@pytest.mark.parametrize(
    ("changes", "captured", "kind"),
    [
        ({}, 1024, "published"),
        ({"prefill_graph_tokens": 0}, 192, "estimate"),
        ({"prefill_graph_tokens": 0, "decode_graphs": False}, 0, "estimate"),
        ({"prefill_graph_tokens": 2048}, 2048, "estimate"),
    ],
)
def test_graph_pools_grow_with_the_largest_captured_graph(changes, captured, kind):
    made = plan(**changes)
    line = made.ranks[0].line("graph pools")
    assert made.asked.captured_tokens == captured
    assert line.planned == 16_040_000_000 * captured // 1024
    assert line.amount.kind == kind


def test_activations_grow_with_the_prefill_pass_and_with_the_rows_that_are_sampled():
    small = plan(48).ranks[0].line("activations").planned
    assert plan(48, chunk_tokens=8192).ranks[0].line("activations").planned > small
    assert plan(96).ranks[0].line("activations").planned > small


def test_the_memory_fraction_is_said_before_and_after_stock_scales_it():
    fraction = plan().fraction(128_200_000_000)
    assert (fraction.passed, fraction.kept) == (0.9, 0.85)
    assert fraction.effective == pytest.approx(0.765)  # a floating product
    assert fraction.needed_passed * 0.85 == pytest.approx(fraction.needed_effective)
    # weights, draft with what is lent, states, KV
    needed = 56_459_273_952 + 3_353_396_224 + 1_017_118_720 + 193 * 48_960_000 + 48 * 4096 * 16_384
    assert fraction.needed_effective == pytest.approx(needed / 128_200_000_000, rel=1e-12)
    plain = plan(aiter=False).fraction(128_200_000_000)
    assert plain.needed_passed == plain.needed_effective


def test_sizes_that_fit_each_other_pass():
    assert asked().check() is None
    assert plan().admitted_requests == 48


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"kv_tokens": 787_937},
            r"supported: 787,936 or 787,952; do: pass --max-total-tokens 787952",
        ),
        ({"kv_tokens": 787_951}, r"supported: 787,936 or 787,952"),
        ({"state_slots": 191}, r"would let 47 run.*at least 4 .*192.*--max-running-requests 47"),
        ({"state_slots": 239, "scheduler": models.BASE}, r"at least 5 a request.*240"),
        ({"state_slots": -1}, r"--max-mamba-cache-size: found -1; supported: 1 to"),
        ({"kv_tokens": -16}, r"--max-total-tokens: found -16"),
        ({"kv_tokens": 0}, r"--max-total-tokens: found 0"),
        ({"kv_tokens": 1 << 31}, r"--max-total-tokens: found 2,147,483,648"),
        ({"max_running_requests": 0}, r"--max-running-requests: found 0; supported: 1 to 4,096"),
        ({"max_running_requests": 5000}, r"--max-running-requests: found 5,000"),
        ({"session_tokens": 262_145}, r"--context: found 262,145; supported: 1 to 262,144"),
        ({"draft_steps": -1}, r"--mtp: found -1"),
        ({"state_dtype": "float8"}, r"--state-dtype: found 'float8'"),
        ({"page_tokens": 0}, r"--page-size: found 0"),
        ({"kv_tokens": 80}, r"fewer than two tokens.*at least 96"),
    ],
)
def test_sizes_that_cannot_be_are_refused_with_those_that_can(changes, words):
    with pytest.raises(UserError, match=words):
        asked(**changes).check()


def test_both_units_are_written_out():
    assert both(12_102_942_720) == "12.10 GB (11.27 GiB)"


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("15GiB", 15 << 30), ("8 GB", 8 * 10**9), ("1.5TB", 1500 * GB)]
)
def test_sizes_with_a_unit_are_read(text, num_bytes):
    assert size(text, where="--reserve") == num_bytes


@pytest.mark.parametrize("text", ["15", "15 G", "-1GB", "15gib", "KiB", "1KB"])
def test_sizes_without_a_known_unit_are_refused(text):
    with pytest.raises(UserError, match="--reserve: found.*GB = 10\\^9, GiB = 2\\^30"):
        size(text, where="--reserve")
