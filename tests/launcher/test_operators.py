"""Operators that launch kernels, as torch.compile, fake tensors and graph capture see them."""

import pytest
import torch

from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import kernels, operators
from tests.launcher import sample


def scaled(x: torch.Tensor, row_scale: torch.Tensor, factor: float) -> torch.Tensor:
    """Launch ``scale_rows`` into a new tensor."""
    out = torch.empty_like(x)
    kernel = kernels.load(sample.code(), x.device, THROUGH[0]).kernel(sample.SCALE_ROWS)
    kernel.launch(sample.workgroups(x.numel()), (x, row_scale, out, factor, *x.shape))
    return out


def scaled_fake(x: torch.Tensor, row_scale: torch.Tensor, factor: float) -> torch.Tensor:
    """Return a tensor like ``x``."""
    return torch.empty_like(x)


def add_into(x: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """Launch ``add_table`` into a given tensor."""
    kernel = kernels.load(sample.code(), x.device, THROUGH[0]).kernel(sample.ADD_TABLE)
    kernel.launch(sample.workgroups(len(x)), (x, table, out, len(x), len(table)))


def add_into_fake(x: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """Return nothing."""


THROUGH = []  # the binding of the running test


@pytest.fixture(scope="session")
def scale():
    return operators.define("test_scale_rows", scaled, fake=scaled_fake)


@pytest.fixture(scope="session")
def add():
    return operators.define("test_add_table", add_into, fake=add_into_fake, mutates=["out"])


@pytest.fixture(autouse=True)
def _on_the_binding(through):
    THROUGH[:] = [through]


def test_an_operator_computes_what_its_kernel_computes(scale):
    x, row_scale = torch.randn(3, 50), torch.randn(3)
    assert torch.equal(scale(x, row_scale, 2.0), sample.scaled_rows(x, row_scale, 2.0))
    assert torch.ops.sglang_mi300a.test_scale_rows.default is scale


def test_an_operator_writes_what_it_says_it_mutates(add):
    x, table, out = torch.randn(70), torch.randn(3), torch.empty(70)
    assert add(x, table, out) is None
    assert torch.equal(out, sample.table_added(x, table))
    assert operators.schemas()["test_add_table"] == (
        "test_add_table(Tensor x, Tensor table, Tensor(a2!) out) -> ()"
    )


def test_torch_finds_schema_fake_and_body_to_agree(scale, add):
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    of_scale = (torch.randn(3, 5), torch.randn(3), 0.5)
    of_add = (torch.randn(9), torch.randn(2), torch.empty(9))
    passed = torch.library.opcheck(scale, of_scale, test_utils=checks)
    passed |= torch.library.opcheck(add, of_add, test_utils=checks)
    assert set(passed.values()) == {"SUCCESS"}


def test_a_tensor_without_memory_gets_a_result_without_a_launch(scale, hip):
    with torch._subclasses.FakeTensorMode():
        out = scale(torch.empty(6, 7), torch.empty(6), 1.0)
    assert (out.shape, out.dtype) == ((6, 7), torch.float32)
    assert hip.launches == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_sees_one_node_and_keeps_what_is_around_it(scale, add, hip, dynamic):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def layer(x, row_scale, table):
        out = torch.empty_like(x)
        add(scale(x + 1, row_scale, 0.5).view(-1), table, out.view(-1))
        return out * 2

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (4, 4, 6) if dynamic else (4, 4):
        x, row_scale, table = torch.randn(rows, 8), torch.randn(rows), torch.randn(5)
        scaled_by_reference = sample.scaled_rows(x + 1, row_scale, 0.5)
        expected = sample.table_added(scaled_by_reference.view(-1), table).view(rows, 8) * 2
        assert torch.equal(compiled(x, row_scale, table), expected)
    (graph,) = graphs
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert called.count(scale) == 1
    assert called.count(add) == 1


def test_functionalisation_keeps_the_write(scale, add):
    def layer(x, table):
        out = torch.zeros_like(x)
        add(x, table, out)
        return out + 1

    torch._dynamo.reset()
    x, table = torch.randn(40), torch.randn(3)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, table), sample.table_added(x, table) + 1)


def test_an_operator_is_captured_whole(scale, hip):
    x, row_scale = hip.copy(torch.randn(3, 50)), hip.copy(torch.randn(3))
    scale(x, row_scale, 1.0)  # loads
    with hip.capture() as graph:
        out = scale(x, row_scale, 4.0)
    x.normal_()
    graph.replay()
    assert torch.equal(out, sample.scaled_rows(x, row_scale, 4.0))


def test_bad_input_is_refused_through_an_operator_too(scale):
    with pytest.raises(UserError, match=r"argument row_scale: found shape \(4,\)"):
        scale(torch.ones(3, 5), torch.ones(4), 1.0)


def test_a_name_is_given_once(scale):
    with pytest.raises(ValueError, match="operator test_scale_rows is defined already"):
        operators.define("test_scale_rows", scaled, fake=scaled_fake)


def test_mutating_what_is_no_parameter_is_refused():
    with pytest.raises(ValueError, match="nothing"):
        operators.define("test_wrong", scaled, fake=scaled_fake, mutates=["nothing"])
    assert "test_wrong" not in operators.schemas()
