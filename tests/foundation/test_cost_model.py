"""The cost model gives what it gave when it was accepted, and behaves as time does."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_mi300a import cost_model
from sglang_mi300a.cost_model import MACHINE, StreamCounts, StreamKernel
from sglang_mi300a.moe.kernels import published


@pytest.mark.parametrize("timing", published.TIMINGS, ids=lambda t: f"{t.kernels} {t.num_tokens}")
def test_a_published_timing_gets_the_accepted_prediction(timing):
    assert published.predicted_us(timing) == pytest.approx(timing.model_us, rel=5e-3)


def test_all_thirteen_are_within_eleven_percent_of_what_was_measured():
    errors = [published.predicted_us(one) / one.measured_us - 1 for one in published.TIMINGS]
    assert len(errors) == 13
    assert math.sqrt(sum(error**2 for error in errors) / 13) < 0.045
    assert max(map(abs, errors)) < 0.11


def test_the_constants_are_frozen():
    assert (MACHINE.scattered_clk, MACHINE.overlap, MACHINE.eager_us) == (2.15, 1.99, 47)
    assert MACHINE.digest == "60db09298180d59a"


def test_the_real_router_is_matched_where_its_numbers_are_published():
    def at(num_tokens):
        return cost_model.lognormal_routing(
            num_tokens,
            16,
            sigma=published.POPULARITY_SIGMA,
            share=published.LOAD_SHARE,
            local=published.LOCAL_EXPERTS,
        )

    for num_tokens, experts in ((256, 115), (512, 122), (1024, 128)):
        assert at(num_tokens).experts == pytest.approx(experts, rel=0.02)
    for num_tokens, units in ((1024, 1.56), (2048, 2.65)):
        assert at(num_tokens).units / published.LOCAL_EXPERTS == pytest.approx(units, rel=0.03)


def test_uniform_routing_is_exact_where_it_can_be_counted_by_hand():
    one = cost_model.uniform_routing(1, 16)
    assert (one.experts, one.units, one.rows) == pytest.approx((10, 10, 10))
    two = cost_model.uniform_routing(2, 16)
    assert two.experts == pytest.approx(512 * (1 - (502 / 512) ** 2))
    rank = cost_model.uniform_routing(4, 1, local=128)
    assert rank.units == pytest.approx(rank.rows) == pytest.approx(10)


def test_a_counted_routing_cuts_each_experts_rows():
    routing = cost_model.counted_routing(40, 16, [0, 1, 16, 17, 40])
    assert (routing.experts, routing.units, routing.rows) == (4, 1 + 1 + 2 + 3, 74)
    assert cost_model.counted_routing(3, 16, [0, 0]).rows_of_unit == 0


def test_lognormal_routing_of_equal_experts_is_uniform():
    same = cost_model.lognormal_routing(64, 16, sigma=0.0, share=1.0, local=128)
    want = cost_model.uniform_routing(64, 16, local=128)
    assert (same.experts, same.units) == pytest.approx((want.experts, want.units))
    certain = cost_model.lognormal_routing(8, 16, sigma=0.0, share=100.0, local=2)
    assert (certain.experts, certain.units, certain.rows) == pytest.approx((2, 2, 16))


STREAM = StreamKernel(
    item=StreamCounts(vector=2960, matrix=512, segments=1096),
    switch=StreamCounts(vector=100, matrix=0, segments=10, row_segments=128),
    weight_bytes=69_632,
    items_per_unit=16,
    workers_per_group=1,
    groups_per_cu=2,
    bytes_under_way=52_224,
    token_bytes=8192,
    row_bytes=512,
)
"""About this package's first stage."""


@given(st.integers(1, 1500), st.integers(1, 500))
def test_more_tokens_take_longer(num_tokens, more):
    fewer = STREAM.predict(cost_model.uniform_routing(num_tokens, 16))
    greater = STREAM.predict(cost_model.uniform_routing(num_tokens + more, 16))
    assert greater.us > fewer.us


@pytest.mark.parametrize(
    ("change", "term"),
    [
        ({"bytes_under_way": 1024}, "ring"),
        ({"weight_bytes": 696_320}, "memory"),
        ({"item": StreamCounts(29_600, 512, 1096)}, "issue+address"),
        ({"item": StreamCounts(2960, 512, 40_000)}, "issue+address"),
        ({"item": StreamCounts(2960, 4000, 1096)}, "matrix"),
    ],
)
def test_what_grows_binds_and_costs(change, term):
    routing = cost_model.uniform_routing(337, 16)
    base, grown = STREAM.predict(routing), replace(STREAM, **change).predict(routing)
    assert base.binds == "memory"
    assert grown.binds == term
    assert grown.us > base.us


def test_a_launch_of_nothing_much_costs_its_start():
    routing = cost_model.counted_routing(1, 16, [1])
    start = MACHINE.start_us + MACHINE.us(MACHINE.start_clk)
    assert start < STREAM.predict(routing).us < 2 * start + 3
    nothing = STREAM.predict(cost_model.counted_routing(1, 16, [0]))
    assert (nothing.us, nothing.binds) == (start, "latency")


def test_the_band_is_the_overlap_exponents():
    prediction = STREAM.predict(cost_model.uniform_routing(337, 16))
    low, high = prediction.band_us
    assert low < prediction.us < high
    assert high / low == pytest.approx(1.25 / 0.91)
    for exponent, edge in ((1.3, high), (3.0, low)):
        there = STREAM.predict(
            cost_model.uniform_routing(337, 16), replace(MACHINE, overlap=exponent)
        )
        assert there.us == pytest.approx(edge, rel=0.05)
