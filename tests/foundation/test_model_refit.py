"""The constants that made times are found again; what times do not tell is held, and said."""

import math
import random
from dataclasses import replace

import pytest

from sglang_mi300a import model_refit
from sglang_mi300a.cost_model import MACHINE, uniform_routing
from sglang_mi300a.model_refit import LIMITS, Measurement
from sglang_mi300a.moe.kernels import prediction

TP4 = next(shape for shape in prediction.SHAPES if shape.name == "TP4")
TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048)
COUNTS = prediction.shipped_counts()


def measurements(true, parts=prediction.PARTS, tokens=TOKENS, noise=0.0, seed=0):
    """Times that a machine with other constants would give."""
    drawn = random.Random(seed)
    found = []
    for part in parts:
        for num_tokens in tokens:
            work = uniform_routing(num_tokens, 16, local=TP4.experts)

            def predict(machine, part=part, work=work):
                return prediction.part_us(part, work, "subnormals", TP4.inner, COUNTS, machine)

            us = predict(true) * math.exp(drawn.gauss(0, noise))
            found.append(Measurement(part, num_tokens, part, us, predict, (-9, 25)))
    return found


OTHER = replace(MACHINE, hbm_tb_s=3.05, overlap=1.6, scattered_clk=2.9, start_us=4.0)


@pytest.mark.parametrize(
    "true",
    [OTHER, replace(MACHINE, hbm_tb_s=4.2, overlap=2.7), MACHINE],
    ids="other two same".split(),
)
def test_the_constants_that_made_the_times_are_found_again(true):
    found = model_refit.refit(measurements(true))
    for name in LIMITS:
        assert getattr(found.machine, name) == pytest.approx(getattr(true, name), rel=5e-3)
    assert found.after < 1e-3
    assert found.largest < 5e-3
    assert (found.held, found.at_limit) == ((), ())
    assert MACHINE.digest == "60db09298180d59a"


def test_noise_leaves_residuals_of_its_size_and_constants_within_their_errors():
    found = model_refit.refit(measurements(OTHER, noise=0.03))
    assert 0.02 < found.after < 0.04
    assert found.after < found.before
    for name, error in found.errors.items():
        off = math.log(getattr(found.machine, name) / getattr(OTHER, name))
        assert abs(off) < 4 * error
        assert error < model_refit.MOST_ERROR


def test_what_the_times_do_not_tell_keeps_its_value():
    """Without the checkpoint's order no segment of weights is scattered."""
    true = replace(MACHINE, hbm_tb_s=3.0)
    found = model_refit.refit(measurements(true, parts=("loads_only", "gate_up")))
    assert "scattered_clk" in found.held
    assert found.machine.scattered_clk == MACHINE.scattered_clk
    assert found.machine.hbm_tb_s == pytest.approx(3.0, rel=0.02)
    assert set(found.errors) == set(LIMITS) - set(found.held)


def test_a_constant_at_the_end_of_what_is_allowed_is_said():
    found = model_refit.refit(measurements(replace(MACHINE, hbm_tb_s=0.8)))
    assert found.at_limit
    assert found.machine.hbm_tb_s >= LIMITS["hbm_tb_s"][0]
    assert found.largest > 0.1


def test_too_few_times_or_batch_sizes_give_no_constants():
    rows = measurements(OTHER)
    assert model_refit.refit(rows[: model_refit.FEWEST_ROWS - 1]) is None
    assert model_refit.refit(measurements(OTHER, tokens=(1, 64, 256)) * 4) is None


def test_the_band_has_two_ends():
    (row,) = measurements(MACHINE, parts=("down",), tokens=(64,))
    for factor, is_inside in ((0.90, False), (0.92, True), (1.24, True), (1.26, False)):
        assert replace(row, us=row.us * factor).is_inside() is is_inside
