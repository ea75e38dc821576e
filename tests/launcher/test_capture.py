"""Launches in captured graphs: nothing that a capture forbids, and memory that outlives Python."""

import gc

import pytest
import torch

from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import kernels, owners, streams
from sglang_mi300a.launcher.failure import LauncherError
from tests.launcher import sample, standin

HOST = torch.device("cpu")


def add_table(through, x, table, out):
    module = kernels.load(sample.code(), HOST, through)
    grid = sample.workgroups(len(x))
    module.kernel(sample.ADD_TABLE).launch(grid, (x, table, out, len(x), len(table)))


@pytest.fixture
def tensors(hip):
    """An input, an output, and a table on the runtime's memory."""
    x, out = hip.copy(torch.randn(300)), hip.empty((300,))
    return x, hip.copy(torch.randn(7)), out


def test_a_captured_launch_runs_when_the_graph_is_replayed_and_not_before(through, hip, tensors):
    x, table, out = tensors
    kernels.load(sample.code(), HOST, through)
    with hip.capture() as graph:
        add_table(through, x, table, out)
    assert hip.launches == []
    assert out.isnan().all()
    for _ in range(2):
        x.normal_()
        graph.replay()
        assert torch.equal(out, sample.table_added(x, table))


def test_a_stream_that_is_given_is_taken_instead_of_the_current_one(module, hip, tensors):
    x, table, out = tensors
    kernel = module.kernel(sample.ADD_TABLE)
    stream = hip.stream()
    hip.begin_capture(stream)
    kernel.launch((2,), (x, table, out, 300, 7), stream=stream)
    assert hip.end_capture(stream)[0] == 0
    assert hip.launches == []
    with pytest.raises(LauncherError, match="invalid resource handle"):
        kernel.launch((2,), (x, table, out, 300, 7), stream=12345)


def captured_and_forgotten(through, hip):
    """Capture a launch, drop every reference to its workspace and kernel; return what is left."""
    x, out = hip.copy(torch.randn(300)), hip.empty((300,))
    table = hip.copy(torch.randn(7))
    expected = sample.table_added(x, table)
    address = table.data_ptr()
    with hip.capture() as graph:
        add_table(through, x, table, out)
    del table
    kernels._modules.clear()  # even the registry's references to modules and kernels
    gc.collect()
    return graph, x, out, expected, address


def test_a_graph_outlives_every_python_reference_to_what_it_captured(module, through, hip):
    graph, _x, out, expected, address = captured_and_forgotten(through, hip)
    assert not hip.is_freed(address)
    graph.replay()
    assert torch.equal(out, expected)


def test_without_the_owner_list_the_same_graph_reads_freed_memory(
    module, through, hip, monkeypatch
):
    monkeypatch.setattr(owners, "keep", lambda tensor: None)
    graph, _x, out, expected, address = captured_and_forgotten(through, hip)
    assert hip.is_freed(address)
    graph.replay()
    assert not torch.equal(out, expected)
    assert out.isnan().all()  # what the stand-in poisons freed memory with


def test_a_module_that_a_graph_captured_cannot_be_unloaded(module, through, hip, tensors):
    number = module.number
    with hip.capture() as graph:
        add_table(through, *tensors)
    with pytest.raises(UserError, match="a graph captured one of its kernels"):
        through.unload(number)
    graph.replay()


def test_only_workspaces_are_kept_and_only_in_a_capture(module, through, hip, tensors):
    x, table, out = tensors
    add_table(through, x, table, out)
    assert owners.kept_bytes() == 0
    for _ in range(2):
        with hip.capture():
            add_table(through, x, table, out)
    assert owners.kept_bytes() == table.nbytes


def test_what_is_released_is_freed(module, through, hip):
    *_, address = captured_and_forgotten(through, hip)
    owners.release()
    gc.collect()
    assert hip.is_freed(address)


def test_a_launch_does_nothing_that_spoils_a_capture(module, through, hip, tensors):
    kernel = module.kernel(sample.ADD_TABLE)  # looked up before, as at start-up
    x, table, out = tensors
    with hip.capture() as graph:  # its end fails if the capture was spoilt
        for _ in range(5):
            kernel.launch(sample.workgroups(300), (x, table, out, 300, 7))
    graph.replay()
    assert len(hip.launches) == 5


@pytest.mark.parametrize(
    "spoil",
    [
        lambda hip: hip.empty((4,)),
        lambda hip: hip.check("hipFree", None),
        lambda hip: hip.check("hipDeviceSynchronize"),
    ],
    ids=["malloc", "free", "wait"],
)
def test_the_stand_in_refuses_what_hip_refuses_in_a_capture(through, hip, spoil):
    stream = hip.stream()
    hip.begin_capture(stream)
    with pytest.raises(AssertionError, match="hipErrorStreamCaptureUnsupported"):
        spoil(hip)
    assert hip.end_capture(stream) == (standin.CAPTURE_INVALIDATED, None)


def test_loading_in_a_capture_is_refused_by_name(through, hip):
    stream = hip.stream()
    hip.begin_capture(stream)
    with pytest.raises(LauncherError, match="hipModuleLoadData: HIP error 900") as caught:
        kernels.load(sample.code(), HOST, through)
    assert caught.value.code == standin.CAPTURE_UNSUPPORTED


def test_launching_on_a_spoilt_capture_is_refused_by_name(module, hip, tensors):
    x, table, out = tensors
    kernel = module.kernel(sample.ADD_TABLE)
    stream = hip.stream()
    hip.begin_capture(stream)
    assert hip.call("hipDeviceSynchronize") == standin.CAPTURE_UNSUPPORTED
    with (
        streams.on_host_stream(stream),
        pytest.raises(LauncherError, match="hipErrorStreamCaptureInvalidated"),
    ):
        kernel.launch((2,), (x, table, out, 300, 7))


def test_captured_memory_cannot_be_used_from_outside_until_the_capture_ends(module, hip, tensors):
    x, table, out = tensors
    kernel = module.kernel(sample.ADD_TABLE)
    arguments = (x, table, out, 300, 7)
    stream = hip.stream()
    hip.begin_capture(stream)
    with streams.on_host_stream(stream):
        kernel.launch((2,), arguments)
    with pytest.raises(LauncherError, match="hipErrorStreamCaptureIsolation"):
        kernel.launch((2,), arguments)
    assert hip.end_capture(stream)[0] == standin.CAPTURE_INVALIDATED
    kernel.launch((2,), arguments)
    assert torch.equal(out, sample.table_added(x, table))


def test_a_stream_is_captured_once_at_a_time(hip):
    stream = hip.stream()
    hip.begin_capture(stream)
    with pytest.raises(AssertionError, match="hipErrorIllegalState"):
        hip.begin_capture(stream)
