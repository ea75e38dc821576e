"""From Python to machine code: the operator, the launcher, a stand-in HIP, the interpreter."""

import pytest
import torch

from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import skinny
from sglang_mi300a.gemm.kernels import catalogue
from tests.launcher import standin

KERNEL = "gemm_skinny_16x16_w2"
K = catalogue.named(KERNEL).k_multiple


@pytest.fixture
def hip():
    """The stand-in runtime, as new."""
    if torch.version.hip is not None:
        pytest.skip("this torch has a HIP runtime of its own")
    with standin.fresh() as fresh:
        yield fresh


def tensors(num_tokens=5, n=32, k=K):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, k, generator=generator).bfloat16() for rows in (num_tokens, n))
    return x, weight, torch.full((num_tokens, n), float("nan"), dtype=torch.bfloat16)


@pytest.mark.usefixtures("hip")
def test_one_and_two_products_through_the_launcher():
    x, weight, out = tensors()
    _, second, second_out = tensors(n=16)
    skinny.product(x, weight, out, second, second_out, KERNEL)
    for got, w in ((out, weight), (second_out, second)):
        torch.testing.assert_close(got.float(), x.float() @ w.float().T, rtol=2**-7, atol=1e-2)


def test_no_tokens_launch_nothing(hip):
    x, weight, out = tensors(num_tokens=0)
    skinny.product(x, weight, out, None, None, KERNEL)
    assert hip.launches == []


@pytest.mark.usefixtures("hip")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kernel": "gemm_skinny_7x7"}, "gemm_skinny_7x7"),
        ({"weight": torch.zeros(17, K).bfloat16()}, "[17, 256]"),
        ({"second_out": torch.zeros(5, 16).bfloat16()}, "weights or result alone"),
        ({"out": torch.zeros(5, 16).bfloat16()}, "16"),
        ({"x": torch.zeros(5, K)}, "float32"),
        ({"x": torch.zeros(K, 5).bfloat16().T}, "contiguous"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_launched(hip, change, words):
    x, weight, out = tensors()
    given = {"x": x, "weight": weight, "out": out, "second_weight": None, "second_out": None}
    with pytest.raises(UserError) as refused:
        skinny.product(**{**given, "kernel": KERNEL, **change})
    assert words in str(refused.value)
    assert out.isnan().all()


def test_compilers_see_one_call_that_writes_its_results():
    schema = str(skinny.product._schema)
    assert "Tensor(a2!) out" in schema
    x, weight, out = tensors()
    meta = [tensor.to("meta") for tensor in (x, weight, out)]
    assert skinny.product(*meta, None, None, KERNEL) is None
