"""Skinny products: every variant, the model's true K, all small batches, in every wave order.

The weight rows are cut to a few items; how many there are is a number that the kernel is given.
"""

import numpy as np
import pytest

from sglang_mi300a.gemm.kernels import catalogue
from tests.gemm.kernels import running
from tests.gfx942 import room

KS = (256, 2048, 4096, 8192)
"""Of the model's products on a rank of four; 8192 is the draft's fc."""

TOKENS = (1, 2, 3, 15, 16, 17, 48, 64, 100, 192, 256)
CASES = [(kernel, k) for kernel in catalogue.KERNELS for k in KS if kernel.takes(32, k)]


def check(ran):
    for out, wanted in zip(ran.outs, ran.wanted, strict=True):
        got = room.from_bf16(out)
        rounded = room.from_bf16(room.to_bf16(wanted))
        assert room.relative_l2(got, rounded) <= running.BEFORE_ROUNDING
        assert room.relative_l2(got, wanted) <= running.RELATIVE_L2


@pytest.mark.parametrize(("kernel", "k"), CASES, ids=lambda v: getattr(v, "name", v))
def test_products_are_those_of_float32(kernel, k):
    for num_tokens in TOKENS:
        check(running.run(kernel, num_tokens, (2 * kernel.rows,), k))


@pytest.mark.parametrize("kernel", catalogue.KERNELS, ids=lambda kernel: kernel.name)
def test_two_matrices_of_one_input_make_one_launch(kernel):
    for ns in ((kernel.rows, 3 * kernel.rows), (2 * kernel.rows, kernel.rows)):
        check(running.run(kernel, 17, ns, kernel.k_multiple))


@pytest.mark.parametrize("kernel", catalogue.KERNELS, ids=lambda kernel: kernel.name)
def test_the_same_bits_come_out_whatever_the_scheduling(kernel):
    shape = (kernel.tokens + 5, (2 * kernel.rows, kernel.rows), 2 * kernel.k_multiple)
    first = running.run(kernel, *shape)
    for order, seed in (("reverse", 0), ("random", 1), ("random", 2), ("forward", 0)):
        again = running.run(kernel, *shape, order=order, seed=seed)
        for one, other in zip(first.outs, again.outs, strict=True):
            assert np.array_equal(one, other)


def test_what_is_no_number_stays_in_its_row():
    kernel = catalogue.KERNELS[2]
    x = np.array(running.random_bits(3, 4096, 1))
    x[1, 7], x[2, 9] = 0x7F80, 0x7FC0
    weights, out = running.random_bits(16, 4096, 2, 0.02), np.zeros((3, 16), np.uint16)
    arguments = [weights, out, 32, None, None, 0, x, 8192, 3, 8192, 1]
    values = [np.uint32(a) if isinstance(a, int) else a for a in arguments]
    running.machine().launch(kernel.name, (1, 1), (kernel.threads,), values)
    got = room.from_bf16(out)
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1:]).all()  # infinity too: what is 2^112 or more is rounded to NaN


def test_every_product_of_the_model_has_a_kernel_for_each_batch():
    shapes = ((5120, 4096), (4608, 4096), (4096, 2048), (4096, 256), (512, 4096), (32, 4096))
    for n, k in (*shapes, (62080, 4096), (4096, 8192)):
        assert catalogue.that_take(n, k), (n, k)
    assert not catalogue.that_take(33, 4096)
    assert not catalogue.that_take(32, 4096 + 32)
