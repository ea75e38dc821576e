"""The MXFP4 format, against the specification's words and against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_mi300a import mxfp4


def value_by_the_specification(code: int) -> float:
    """E2M1: sign, two exponent bits with bias 1, one mantissa bit; exponent 0 is subnormal."""
    sign = -1.0 if code & 8 else 1.0
    exponent, mantissa = (code >> 1) & 3, code & 1
    if exponent == 0:
        return sign * mantissa * 0.5
    return sign * (1 + mantissa / 2) * 2.0 ** (exponent - 1)


def test_every_element_code_has_the_value_the_specification_gives():
    assert [value_by_the_specification(code) for code in range(16)] == list(mxfp4.element_values())


def test_every_scale_byte_is_a_power_of_two_and_0x00_is_the_subnormal_2_to_minus_127():
    values = mxfp4.scale_values()
    assert values[0] == np.float32(2.0**-127)
    assert all(float(values[byte]) == 2.0 ** (byte - 127) for byte in range(255))
    assert np.isnan(values[255])


def test_every_byte_times_every_finite_scale_is_exact_with_the_low_nibble_first():
    packed = np.tile(np.arange(256, dtype=np.uint8).reshape(16, 16), (253, 1))
    scales = np.repeat(np.arange(253, dtype=np.uint8), 16)[:, None]
    values = mxfp4.dequantise(packed, scales)
    for row in range(0, len(packed), 7):
        factor = 2.0 ** (int(scales[row, 0]) - 127)
        expected = [
            value_by_the_specification(nibble) * factor
            for byte in packed[row].tolist()
            for nibble in (byte & 15, byte >> 4)
        ]
        assert values[row].tolist() == expected


def test_shapes_that_do_not_belong_together_are_refused_with_both_shapes():
    with pytest.raises(ValueError, match=r"\(2, 16\).*\(2, 2\)"):
        mxfp4.dequantise(np.zeros((2, 16), np.uint8), np.zeros((2, 2), np.uint8))


@given(st.integers(0, 2**32 - 1))
def test_quantising_representable_values_gives_them_back(seed):
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 256, (3, 32), dtype=np.uint8)
    scales = rng.integers(60, 190, (3, 2), dtype=np.uint8)
    values = mxfp4.dequantise(packed, scales)
    assert (mxfp4.dequantise(*mxfp4.quantise(values)) == values).all()


@given(st.integers(0, 2**32 - 1), st.integers(-20, 20))
def test_quantising_is_no_worse_than_any_other_power_of_two_scale_with_nearest_elements(
    seed, power
):
    values = np.random.default_rng(seed).normal(size=(1, 32)).astype(np.float32) * 2.0**power
    got = mxfp4.dequantise(*mxfp4.quantise(values))
    error = float(((got - values).astype(np.float64) ** 2).sum())
    table = mxfp4.element_values().astype(np.float64)
    top = int(np.ceil(np.log2(np.abs(values).max() / 6.0)))
    for exponent in (top, top - 1):
        nearest = np.abs(values[0][:, None] / 2.0**exponent - table).argmin(axis=1)
        other = float(((table[nearest] * 2.0**exponent - values[0]) ** 2).sum())
        assert error <= other * (1 + 1e-6)  # both are sums of 32 float64 squares


def test_ties_round_to_the_even_code_and_large_values_saturate():
    row = np.zeros((1, 32), np.float32)
    row[0, :5] = [6.0, 0.25, 0.75, 2.5, -5.0]  # scale 1: midpoints of the codes
    packed, scales = mxfp4.quantise(row)
    assert scales.tolist() == [[127]]
    assert mxfp4.dequantise(packed, scales)[0, :5].tolist() == [6.0, 0.0, 1.0, 2.0, -4.0]


def test_an_all_zero_block_gets_the_neutral_scale():
    packed, scales = mxfp4.quantise(np.zeros((2, 64), np.float32))
    assert (packed == 0).all()
    assert (scales == mxfp4.SCALE_ONE).all()


def test_values_that_are_not_finite_and_odd_lengths_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        mxfp4.quantise(np.full((1, 32), np.inf, np.float32))
    with pytest.raises(ValueError, match="31 is not a multiple of 32"):
        mxfp4.quantise(np.zeros((1, 31), np.float32))


def test_a_nan_scale_is_refused_even_where_all_codes_are_zero():
    _, scan = mxfp4.scan_scales(np.zeros((1, 32), np.uint8), np.array([[127, 255]], np.uint8))
    assert scan.refused
    assert (scan.nan_blocks, scan.first_bad) == (1, 1)


@pytest.mark.parametrize("byte", [193, 254])
def test_a_scale_no_decode_takes_exactly_is_refused_with_a_nonzero_code_and_neutralised_without(
    byte,
):
    packed = np.zeros((1, 32), np.uint8)
    packed[0, 16:] = 0x80  # minus zero in the second block: still zero
    scales = np.array([[byte, byte]], np.uint8)
    stored, scan = mxfp4.scan_scales(packed, scales)
    assert not scan.refused
    assert scan.neutralised_blocks == 2
    assert (stored == mxfp4.SCALE_ONE).all()

    packed[0, 20] = 0x10
    _, scan = mxfp4.scan_scales(packed, scales)
    assert (scan.inexact_blocks, scan.first_bad) == (1, 1)


def test_scales_in_range_are_passed_through_without_a_copy():
    scales = np.array([[mxfp4.EXACT_SCALE_MIN, mxfp4.EXACT_SCALE_MAX]], np.uint8)
    stored, scan = mxfp4.scan_scales(np.full((1, 32), 0x77, np.uint8), scales)
    assert stored is scales
    assert not scan.refused
