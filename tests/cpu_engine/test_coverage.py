"""What the stand-in for SGLang's kernels covers, and how it says what it does not."""

from __future__ import annotations

import textwrap

import pytest

from sglang_mi300a.cpu_engine import coverage
from tests.cpu_engine import standin_process


def test_every_covered_name_has_its_function_and_stands_once() -> None:
    names = [(each.way, each.name) for each in coverage.COVERED]
    assert len(set(names)) == len(names)
    for each in coverage.COVERED:
        assert each.function.__name__ == each.name


def test_the_operator_that_would_turn_amx_on_is_not_covered() -> None:
    assert "convert_weight_packed" not in {each.name for each in coverage.COVERED}


@pytest.mark.parametrize("error", [coverage.UncoveredImport, coverage.UncoveredOperator])
def test_what_is_not_covered_counts_as_not_implemented(error: type[Exception]) -> None:
    assert issubclass(error, NotImplementedError)


IN_A_SERVER = """
import torch, sgl_kernel, sgl_kernel.mamba
from sglang_mi300a.cpu_engine import coverage

def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def from_import():
    from sgl_kernel import nonesuch

for each in coverage.COVERED:
    if each.way == "torch.ops.sgl_kernel":
        assert callable(getattr(torch.ops.sgl_kernel, each.name)), each
    else:
        module = sgl_kernel if each.way == "sgl_kernel" else sgl_kernel.mamba
        assert getattr(module, each.name) is each.function, each
"""


def test_an_uncovered_name_is_refused_by_name_with_those_that_are_covered() -> None:
    code = """
    print(error_of(lambda: torch.ops.sgl_kernel.fused_experts_cpu))
    print(error_of(lambda: sgl_kernel.nonesuch))
    print(error_of(lambda: sgl_kernel.mamba.nonesuch))
    print(error_of(from_import))
    print(hasattr(torch.ops.sgl_kernel, "convert_weight_packed"))
    """
    got = standin_process.output(IN_A_SERVER + textwrap.dedent(code)).splitlines()
    operator, name, mamba, imported, has_amx = got
    assert operator.startswith("UncoveredOperator: torch.ops.sgl_kernel.fused_experts_cpu is not")
    assert "decode_attention_cpu, extend_attention_cpu" in operator
    assert name.startswith("UncoveredImport: sgl_kernel.nonesuch is not covered")
    assert "verify_tree_greedy_cpu" in name
    assert mamba.startswith("UncoveredImport: sgl_kernel.mamba.nonesuch is not covered")
    assert imported == name
    assert has_amx == "False"


def test_an_argument_of_a_wrong_kind_is_refused_by_the_operator_s_schema() -> None:
    code = """
    print(error_of(lambda: torch.ops.sgl_kernel.fused_sigmoid_mul_cpu(torch.zeros(1), "gate")))
    """
    got = standin_process.output(IN_A_SERVER + textwrap.dedent(code))
    assert "Expected a value of type 'Tensor' for argument 'gate'" in got


def test_stock_sglang_finds_all_it_needs_to_serve_the_model_with_drafts_and_no_amx() -> None:
    code = """
    import sglang.srt.managers.scheduler
    import sglang.srt.models.qwen3_5, sglang.srt.models.qwen3_5_mtp
    import sglang.srt.layers.attention.linear.gdn_backend
    import sglang.srt.layers.attention.intel_amx_backend
    import sglang.srt.speculative.eagle_worker_v2
    import sglang.srt.speculative.multi_layer_eagle_worker_v2
    from sglang.srt.utils.common import cpu_has_amx_support, is_cpu
    print(is_cpu(), cpu_has_amx_support())
    """
    got = standin_process.output(IN_A_SERVER + textwrap.dedent(code))
    assert got.splitlines()[-1] == "True False"
