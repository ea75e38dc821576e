"""Which dense products our kernels make: what a table says, what the model says, what passed."""

import dataclasses
import json

import pytest
import torch

from sglang_mi300a import fitted_constants, settings
from sglang_mi300a.cost_model import MACHINE
from sglang_mi300a.gemm import hooks, own_products, padding, skinny
from sglang_mi300a.gemm.kernels import catalogue, prediction
from sglang_mi300a.gemm.own_products import OwnProducts, SelfTest
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuned_table import Choice
from tests.gemm.sample_tables import REFITTED, constants
from tests.launcher import standin

N, N_2, K = 64, 32, 256
ALL = SelfTest(frozenset(kernel.name for kernel in catalogue.KERNELS), {})
CPU = torch.device("cpu")


def weight(n=N, seed=1):
    return torch.randn(n, K, generator=torch.Generator().manual_seed(seed)).bfloat16()


def rows(m=5):
    return weight(m, 2)


@pytest.fixture
def launches():
    """What was launched: the kernel and the rows of each matrix."""
    return []


@pytest.fixture
def run(launches):
    def product(x, w, out, w_2, out_2, kernel):
        launches.append((kernel, len(w), len(w_2) if w_2 is not None else 0))
        for result, matrix in ((out, w), (out_2, w_2)):
            if result is not None:
                result.copy_(x.float() @ matrix.float().T)

    return product


@pytest.fixture
def own(run, monkeypatch):
    """This process's products, begun with every kernel and no table."""
    found = OwnProducts()
    found.begin(run, ALL)
    monkeypatch.setattr(own_products, "_of_this_process", found)
    return found


def test_nothing_is_made_before_it_is_begun():
    assert OwnProducts().product(rows(), weight(), None) is None


def test_the_fastest_kernel_by_the_model_makes_small_products(own, launches):
    x, w = rows(), weight()
    torch.testing.assert_close(own.product(x, w, None), (x.float() @ w.float().T).bfloat16())
    assert launches == [(prediction.best(5, N, K).kernel.name, N, 0)]
    assert own.report["products"] == {f"{N}x{K}x5": launches[0][0]}


@pytest.mark.parametrize(
    ("x", "w", "bias"),
    [
        (rows(257), weight(), None),
        (rows(0), weight(), None),
        (rows(), weight(), torch.zeros(N)),
        (rows().float(), weight().float(), None),
        (rows()[:, ::2], weight()[:, :128].contiguous(), None),
        (rows(), weight(33), None),
        (rows(), None, None),
        (rows().unsqueeze(0), weight(), None),
    ],
)
def test_what_is_not_ours_is_left_to_stock(own, launches, x, w, bias):
    assert own.product(x, w, bias) is None
    assert launches == []


LIBRARY = Choice("library", "Gemm_Hipblaslt_1", "measured", 5.0, 9.0)
OURS = Choice("kernel", "kernel/gemm_skinny_64x16_w2", "measured", 5.0, 9.0)


def test_a_measured_row_wins_over_the_model(run, launches):
    own = OwnProducts()
    settled = frozenset({Cell(N, K, 32)})
    own.begin(run, ALL, {Cell(N, K, 16): LIBRARY, Cell(N, K, 64): OURS}, settled)
    assert own.product(rows(5), weight(), None) is None  # padded to 16, the library's
    assert own.product(rows(20), weight(), None) is None  # stock was found as fast at 32
    own.product(rows(40), weight(), None)
    assert launches == [("gemm_skinny_64x16_w2", N, 0)]
    own.product(rows(65), weight(), None)  # beyond the table
    assert len(launches) == 2


ROUTER = (512, 4096)
M = 129
"""Rows for which the constants of a refit take another kernel for the fastest."""


def router_product(own):
    """Make the product of the router's weight and so many rows."""
    n, k = ROUTER
    return own.product(torch.zeros(M, k).bfloat16(), torch.zeros(n, k).bfloat16(), None)


def fastest(machine):
    counts = prediction.shipped_counts()
    us = {
        kernel.name: prediction.predict(kernel, counts[kernel.name], M, *ROUTER, machine).us
        for kernel in catalogue.that_take(*ROUTER)
    }
    return min(us, key=us.get)


def test_the_constants_of_a_refit_choose_where_no_table_does(run, launches):
    own = OwnProducts()
    for machine in (REFITTED, MACHINE):
        own.begin(run, ALL, machine=machine)
        router_product(own)
        assert own.report["model"] == machine.digest
    assert [name for name, *_ in launches] == [fastest(REFITTED), fastest(MACHINE)]
    assert fastest(REFITTED) != fastest(MACHINE)


def test_a_measured_row_wins_over_the_constants_of_a_refit(run, launches):
    own = OwnProducts()
    own.begin(run, ALL, {Cell(*ROUTER, 192): OURS}, machine=REFITTED)
    router_product(own)
    own.begin(run, ALL, {Cell(*ROUTER, 192): LIBRARY}, machine=REFITTED)
    assert router_product(own) is None
    assert launches == [(OURS.kernel, ROUTER[0], 0)]
    assert OURS.kernel != fastest(REFITTED)


def test_where_a_refits_kernel_was_dropped_its_next_best_serves(run, launches):
    own, best = OwnProducts(), fastest(REFITTED)
    own.begin(run, SelfTest(ALL.usable - {best}, {best: "wrong"}), machine=REFITTED)
    router_product(own)
    ((name, *_),) = launches
    assert name != best


def test_two_products_of_one_input_are_one_launch(own, launches):
    first, second = weight(), weight(N_2, 3)
    own.pair(first, second)
    x = rows()
    for w in (first, second, first, second):
        torch.testing.assert_close(own.product(x, w, None), (x.float() @ w.float().T).bfloat16())
    assert [launch[1:] for launch in launches] == [(N, N_2)] * 2


def test_a_pair_that_does_not_follow_is_given_up_and_said(own, launches):
    first, second, other = weight(), weight(N_2, 3), weight(N, 4)
    own.pair(first, second)
    x = rows()
    own.product(x, first, None)
    got = own.product(x, other, None)
    torch.testing.assert_close(got, (x.float() @ other.float().T).bfloat16())
    own.product(x, first, None)
    assert [launch[1:] for launch in launches] == [(N, N_2), (N, 0), (N, 0)]
    assert own.report["pairs"].startswith("given up")


def test_a_later_input_is_never_answered_from_an_earlier_one(own):
    first, second = weight(), weight(N_2, 3)
    own.pair(first, second)
    own.product(rows(), first, None)
    later = rows(6)
    got = own.product(later, second, None)
    torch.testing.assert_close(got, (later.float() @ second.float().T).bfloat16())


def test_hooks_ask_our_kernels_before_stock(own, launches):
    class Layer:
        weight = weight()

    def stock(*_):
        raise AssertionError("not asked")

    class Logits:
        use_fp32_lm_head, rl_on_policy_target = False, None

    hooks._linear(stock, None, Layer(), rows())
    hooks._lm_head(stock, Logits(), rows(), Layer())
    linear = torch.nn.Linear(K, N, bias=False, dtype=torch.bfloat16)
    padding.pad_module(linear)
    linear(rows())
    assert len(launches) == 3


def test_a_head_in_float32_is_left_to_stock(own, launches):
    class Logits:
        use_fp32_lm_head, rl_on_policy_target = True, None

    class Layer:
        weight = weight()

    assert hooks._lm_head(lambda *_: "stock's", Logits(), rows(), Layer()) == "stock's"
    assert launches == []


def test_every_shipped_kernel_passes_the_test_through_the_launcher():
    if torch.version.hip is not None:
        pytest.skip("this torch has a HIP runtime of its own")
    with standin.fresh():
        test = own_products.self_test(skinny.product, CPU)
    assert (test.usable, test.dropped) == (ALL.usable, {})


def test_a_kernel_that_is_wrong_is_dropped_and_said(run, monkeypatch):
    bad = catalogue.KERNELS[0].name

    def wrong(x, w, out, w_2, out_2, kernel):
        run(x, w, out, w_2, out_2, kernel)
        if kernel == bad:
            out[0, 0] += 10

    monkeypatch.setattr(own_products, "_of_this_process", OwnProducts())
    record = settings.Resolved("", "gfx942", "", 1, 1, 1, False, 0, 0, 0, "")
    assert own_products.start(record, wrong, CPU) == []  # the launcher did not ask for kernels
    record.gemm["kernels"] = "own"
    (line,) = own_products.start(record, wrong, CPU)
    assert line.startswith(f"dense kernel {bad} is not used: relative L2 ")
    assert own_products.of_this_process().report["dropped"].keys() == {bad}
    assert own_products.of_this_process().product(rows(), weight(), None) is not None


def test_a_rank_chooses_by_the_constants_that_the_launcher_hands_it(run, launches, monkeypatch):
    monkeypatch.setattr(own_products, "_of_this_process", OwnProducts())
    record = settings.Resolved("", "gfx942", "", 1, 1, 1, False, 0, 0, 0, "")
    handed = fitted_constants.values(constants())
    record.gemm.update(padding.as_record({}, None, kernels="own", constants=handed))
    sent = settings.Resolved(**json.loads(json.dumps(dataclasses.asdict(record))))
    assert own_products.start(sent, run, CPU) == []
    launches.clear()
    router_product(own_products.of_this_process())
    assert launches == [(fastest(REFITTED), ROUTER[0], 0)]
