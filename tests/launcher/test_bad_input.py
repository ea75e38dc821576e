"""What does not fit is refused by name, unlaunched; HIP's errors carry four facts."""

import dataclasses
import pickle

import pytest
import torch

from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import kernels
from sglang_mi300a.launcher.failure import LauncherError
from sglang_mi300a.launcher.signature import Scalar, Signature
from tests.launcher import sample, standin

GOOD = {
    "x": torch.ones(4, 64),
    "row_scale": torch.ones(4),
    "out": torch.empty(4, 64),
    "factor": 1.0,
    "rows": 4,
    "columns": 64,
}

HOST = torch.device("cpu")


@pytest.mark.parametrize(
    ("argument", "value", "found"),
    [
        ("x", torch.ones(4, 64, dtype=torch.bfloat16), "torch.bfloat16"),
        ("x", torch.ones(4 * 64), r"shape \(256,\)"),
        ("x", torch.ones(64, 4).T, r"strides \(1, 4\)"),
        ("x", torch.ones(4 * 64 + 1)[1:].view(4, 64), "address 0x"),
        ("x", torch.ones(4, 64, device="meta"), "a tensor on meta"),
        ("x", [1.0], "a list"),
        ("x", None, "a NoneType"),
        ("row_scale", torch.ones(5), r"shape \(5,\).*rows=4"),
        ("out", torch.empty(4, 65), r"shape \(4, 65\).*columns=64"),
        ("factor", "1", "a str"),
        ("factor", True, "a bool"),
        ("factor", 1e39, r"1e\+39"),
        ("rows", 4.0, "a float"),
        ("rows", 1 << 31, "2147483648"),
        ("rows", 5, "5.*supported: 4, as in the shapes"),
        ("columns", torch.tensor(64), "a Tensor"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(module, hip, argument, value, found):
    arguments = tuple((GOOD | {argument: value}).values())
    with pytest.raises(UserError, match=f"kernel scale_rows, argument {argument}: found {found}"):
        module.kernel(sample.SCALE_ROWS).launch((1,), arguments)
    assert hip.launches == []


def test_the_number_of_arguments_must_fit(module, hip):
    with pytest.raises(UserError, match="found 5 arguments; supported: x, row_scale, out"):
        module.kernel(sample.SCALE_ROWS).launch((1,), tuple(GOOD.values())[:5])
    assert hip.launches == []


@pytest.mark.parametrize("grid", [(), (0,), (1, 0), (-1,), (1, 1, 1, 1), (1 << 32,), (1 << 24,)])
def test_a_grid_that_no_hardware_has_is_refused(module, hip, grid):
    with pytest.raises(UserError, match="kernel scale_rows: found grid"):
        module.kernel(sample.SCALE_ROWS).launch(grid, tuple(GOOD.values()))
    assert hip.launches == []


@pytest.mark.parametrize("num_bytes", [-1, 65537])
def test_more_lds_than_there_is_is_refused(module, hip, num_bytes):
    with pytest.raises(UserError, match=f"found {num_bytes} bytes of dynamic LDS"):
        module.kernel(sample.SCALE_ROWS).launch(
            (1,), tuple(GOOD.values()), dynamic_lds_bytes=num_bytes
        )
    assert hip.launches == []


def changed(index, **changes):
    arguments = list(sample.SCALE_ROWS.arguments)
    arguments[index] = dataclasses.replace(arguments[index], **changes)
    return dataclasses.replace(sample.SCALE_ROWS, arguments=tuple(arguments))


def swapped():
    x, row_scale, *rest = sample.SCALE_ROWS.arguments
    return dataclasses.replace(sample.SCALE_ROWS, arguments=(row_scale, x, *rest))


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        (swapped(), r"argument 0: x pointer 8 B \(declared row_scale pointer 8 B\)"),
        (changed(3, type="f64"), r"argument 3: factor by_value 4 B \(declared factor by_value 8 B"),
        (changed(0, name="input"), r"argument 0: x pointer 8 B \(declared input"),
        (
            dataclasses.replace(sample.SCALE_ROWS, arguments=sample.SCALE_ROWS.arguments[:-1]),
            r"6 arguments \(declared 5\)",
        ),
        (dataclasses.replace(sample.SCALE_ROWS, threads=512), "at most 256 threads"),
        (dataclasses.replace(sample.SCALE_ROWS, threads=96), "96 threads, waves of 64"),
        (dataclasses.replace(sample.SCALE_ROWS, kernel="scale_columns"), "no such kernel"),
    ],
)
def test_a_declaration_that_is_not_the_kernels_is_refused_when_it_is_looked_up(
    module, declared, found
):
    with pytest.raises(UserError, match=found):
        module.kernel(declared)


@pytest.mark.parametrize(
    "function", ["hipModuleLaunchKernel", "hipStreamIsCapturing", "hipGetDevice"]
)
def test_a_failed_launch_says_kernel_grid_code_and_text(module, hip, function):
    kernel = module.kernel(sample.SCALE_ROWS)
    hip.fail_next(function, 701)
    with pytest.raises(LauncherError) as caught:
        kernel.launch((2, 3), tuple(GOOD.values()))
    error = caught.value
    assert (error.call, error.kernel, error.code) == (function, "scale_rows", 701)
    assert (error.grid, error.block) == ((2, 3, 1), (256, 1, 1))
    assert (error.name, error.text) == ("hipErrorLaunchOutOfResources", "out of resources")
    assert str(error) == (
        f"{function} of kernel scale_rows, grid 2 x 3 x 1 of 256 x 1 x 1 threads: "
        "HIP error 701 (hipErrorLaunchOutOfResources): out of resources"
    )
    assert kernel.num_launches == 0
    kernel.launch((1,), tuple(GOOD.values()))  # the next one is none the worse
    assert kernel.num_launches == 1


def test_an_error_that_was_raised_is_not_left_behind_for_torch_to_find(module, hip):
    hip.fail_next("hipModuleLaunchKernel", 719)
    with pytest.raises(LauncherError):
        module.kernel(sample.SCALE_ROWS).launch((1,), tuple(GOOD.values()))
    assert hip.call("hipPeekAtLastError") == 0


def test_an_error_that_hip_has_no_name_for_keeps_its_number(module, hip):
    hip.fail_next("hipModuleLaunchKernel", 12345)
    with pytest.raises(LauncherError, match="HIP error 12345 .hipErrorUnknown."):
        module.kernel(sample.SCALE_ROWS).launch((1,), tuple(GOOD.values()))


def test_a_launcher_error_survives_the_way_between_processes(module, hip):
    hip.fail_next("hipModuleLaunchKernel", 719)
    with pytest.raises(LauncherError) as caught:
        module.kernel(sample.SCALE_ROWS).launch((1,), tuple(GOOD.values()))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.code) == (str(caught.value), 719)


@pytest.mark.parametrize("function", ["hipModuleLoadData", "hipGetDevice"])
def test_a_failed_load_says_what_failed(through, hip, function):
    through.open_runtime()
    hip.fail_next(function, 2)
    with pytest.raises(LauncherError, match=f"{function}: HIP error 2 .hipErrorOutOfMemory."):
        kernels.load(sample.code(), HOST, through)
    assert kernels.load(sample.code(), HOST, through).number >= 0


def test_a_kernel_that_hip_does_not_find_is_named(through, hip):
    module = kernels.load(sample.code(), HOST, through)
    hip.fail_next("hipModuleGetFunction", 500)
    with pytest.raises(LauncherError, match="hipModuleGetFunction of kernel scale_rows: HIP err"):
        module.kernel(sample.SCALE_ROWS)


def test_a_code_object_that_the_device_cannot_run_is_refused_by_hip(through, hip):
    image = bytearray(sample.image())
    image[48] = 0x3F  # EF_AMDGPU_MACH of gfx90a
    with pytest.raises(LauncherError, match="hipModuleLoadData.*hipErrorNoBinaryForGpu") as caught:
        through.load(0, bytes(image))
    assert caught.value.code == standin.NO_BINARY_FOR_GPU


def test_a_device_that_is_not_there_is_refused(through, hip):
    with pytest.raises(LauncherError, match="hipSetDevice: HIP error 101"):
        through.load(1, sample.image())
    with pytest.raises(UserError, match="found device -1"):
        through.load(-1, sample.image())


def test_a_gpus_tensors_are_refused_where_there_is_only_the_stand_in(through, hip):
    with pytest.raises(UserError, match="found device cuda:0; supported: cpu"):
        kernels.load(sample.code(), torch.device("cuda", 0), through)


def test_numbers_that_name_nothing_are_refused(through, hip):
    module = through.load(0, sample.image())
    layout = sample.SCALE_ROWS.layout(sample.code())
    kernel = through.kernel(module, "scale_rows", layout)
    through.unload(module)
    shapes = ((1, 1, 1), (64, 1, 1), 0, 0)
    with pytest.raises(UserError, match="found kernel .*its module was unloaded"):
        through.launch(kernel, *shapes, (0,) * 6)
    with pytest.raises(UserError, match=f"found module {module}; supported: not loaded"):
        through.unload(module)
    with pytest.raises(UserError, match="not loaded"):
        through.kernel(10**6, "scale_rows", layout)
    with pytest.raises(UserError, match="not looked up"):
        through.launch(10**6, *shapes, (0,) * 6)


@pytest.mark.parametrize(
    ("layout", "found"),
    [
        (((0, 3),), "argument 0: 3 bytes"),
        (((0, 8), (4, 4)), "argument 1: offset 4"),
        (((0, 8), (1020, 8)), "argument 1: offset 1020"),
    ],
)
def test_an_argument_block_that_cannot_be_is_refused(through, hip, layout, found):
    module = through.load(0, sample.image())
    with pytest.raises(UserError, match=f"kernel scale_rows: found {found}"):
        through.kernel(module, "scale_rows", layout)


def test_values_that_do_not_fit_their_bytes_are_refused(through, hip):
    module = through.load(0, sample.image())
    kernel = through.kernel(module, "scale_rows", ((0, 8), (8, 4)))
    shapes = ((1, 1, 1), (64, 1, 1), 0, 0)
    with pytest.raises(UserError, match="found 1 arguments; supported: the kernel has 2"):
        through.launch(kernel, *shapes, (0,))
    with pytest.raises(UserError, match="found argument 1: value 0x100000000; supported: it has 4"):
        through.launch(kernel, *shapes, (0, 1 << 32))


def test_a_block_of_over_a_thousand_threads_is_refused(through, hip):
    module = through.load(0, sample.image())
    kernel = through.kernel(module, "scale_rows", ())
    for block in ((1025, 1, 1), (64, 64, 1), (0, 1, 1), (1 << 31, 1 << 31, 4)):
        with pytest.raises(UserError, match="a workgroup has 1 to 1024 threads"):
            through.launch(kernel, (1, 1, 1), block, 0, 0, ())


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("i32", -(1 << 31), (1 << 31) - 1),
        ("u32", 0, (1 << 32) - 1),
        ("i64", -(1 << 63), (1 << 63) - 1),
        ("u64", 0, (1 << 64) - 1),
    ],
)
def test_integers_are_taken_to_the_ends_of_their_range_and_no_further(kind, low, high):
    one = Signature("any", (Scalar("n", kind),), threads=64)
    mask = (1 << 8 * one.arguments[0].size_bytes) - 1
    assert one.bits((low,), HOST) == (low & mask,)
    assert one.bits((high,), HOST) == (high,)
    for outside in (low - 1, high + 1):
        with pytest.raises(UserError, match="kernel any, argument n"):
            one.bits((outside,), HOST)
