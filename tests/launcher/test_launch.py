"""From a Python call to executed machine code and back, through both bindings."""

import dataclasses
import struct

import pytest
import torch

from sglang_mi300a.launcher import kernels
from sglang_mi300a.launcher.failure import LauncherError
from tests.launcher import sample

HOST = torch.device("cpu")


def scale_rows(module, x, row_scale, factor, **how):
    """Launch the kernel; return its output."""
    out = torch.full_like(x, float("nan"))
    arguments = (x, row_scale, out, factor, *x.shape)
    module.kernel(sample.SCALE_ROWS).launch(sample.workgroups(x.numel()), arguments, **how)
    return out


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 85), (4, 64), (5, 103), (2, 513)])
def test_a_kernel_computes_what_its_reference_says(module, rows, columns):
    x, row_scale = torch.randn(rows, columns), torch.randn(rows)
    out = scale_rows(module, x, row_scale, 0.375)
    assert torch.equal(out, sample.scaled_rows(x, row_scale, 0.375))


def test_arguments_of_every_width_arrive_bit_for_bit(module):
    out = torch.zeros(6, dtype=torch.int32)
    wide, real = 0xFEDC_BA98_7654_3210, -1.0 / 3.0
    module.kernel(sample.MIXED_WIDTHS).launch((1,), (out, -5, wide, real, None))
    words = [word & 0xFFFFFFFF for word in out.tolist()]
    low, high = struct.unpack("<II", struct.pack("<d", real))
    assert words == [0xFFFFFFFB, 0x7654_3210, 0xFEDC_BA98, low, high, 1]


def test_a_pointer_that_is_given_is_not_null(module):
    out = torch.zeros(6, dtype=torch.int32)
    module.kernel(sample.MIXED_WIDTHS).launch((1,), (out, 0, 0, 0.0, torch.zeros(4)))
    assert out[5] == 0


def test_the_runtime_gets_the_grid_and_the_block_that_were_declared(module, hip):
    hip.execute(lambda launch: None)
    module.kernel(sample.MIXED_WIDTHS).launch(
        (3, 2, 7), (torch.zeros(6, dtype=torch.int32), 0, 0, 0.0, None), dynamic_lds_bytes=512
    )
    (launch,) = hip.launches
    assert (launch.grid, launch.block, launch.dynamic_lds_bytes) == ((3, 2, 7), (64, 1, 1), 512)


def test_a_module_is_loaded_once_a_device(module, through, hip):
    again = kernels.load(sample.code(), HOST, through)
    assert again is module
    assert again.kernel(sample.SCALE_ROWS) is module.kernel(sample.SCALE_ROWS)
    assert hip.num_modules == 1


def test_launches_are_counted(module):
    kernel = module.kernel(sample.SCALE_ROWS)
    x = torch.ones(2, 2)
    for _ in range(3):
        scale_rows(module, x, torch.ones(2), 1.0)
    assert kernel.num_launches == 3


def test_a_launch_calls_nothing_that_allocates_or_waits(module, hip):
    scale_rows(module, torch.ones(2, 2), torch.ones(2), 1.0)
    for function in ("hipMalloc", "hipFree", "hipDeviceSynchronize", "hipStreamSynchronize"):
        assert hip.calls(function) == 0
    assert hip.calls("hipModuleLaunchKernel") == 1


def test_the_calling_threads_device_is_put_back(through, hip):
    hip.library.mi300aStandinSetDevices(2)
    number = through.load(1, sample.image())
    layout = sample.SCALE_ROWS.layout(sample.code())
    kernel = through.kernel(number, "scale_rows", layout)
    hip.execute(lambda launch: None)
    through.launch(kernel, (1, 1, 1), (256, 1, 1), 0, 0, (0, 0, 0, 0, 0, 0))
    assert hip.launches[0].device == 1
    assert hip.calls("hipSetDevice") == 4  # there and back, for the load and for the launch


def test_a_kernel_that_writes_an_input_is_caught_by_its_declaration(module, hip):
    # The executor makes read-only what the signature does not call written.
    x, out, *rest = (sample.SCALE_ROWS.arguments[i] for i in (0, 2, 3, 4, 5))
    row_scale = sample.SCALE_ROWS.arguments[1]
    wrong = dataclasses.replace(
        sample.SCALE_ROWS,
        arguments=(x, row_scale, dataclasses.replace(out, written=False), *rest),
    )
    arguments = (torch.ones(1, 1), torch.ones(1), torch.ones(1, 1), 1.0, 1, 1)
    with pytest.raises(LauncherError, match="hipErrorLaunchFailure"):
        module.kernel(wrong).launch((1,), arguments)
    (fault,) = hip.faults
    assert type(fault).__name__ == "ReadOnly"
    hip.faults.clear()
