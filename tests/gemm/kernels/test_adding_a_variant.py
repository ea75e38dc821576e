"""The example in csrc/README.md, done: two rows make a right kernel that keeps its bounds."""

import re
import shutil

import pytest

from sglang_mi300a.gemm.kernels.catalogue import KERNELS, SkinnyKernel
from tests import repository
from tests.gemm.kernels import counting, running, test_static_budget
from tests.gfx942 import room, toolchain
from tests.gfx942.machine import Machine

PAGE = (repository.ROOT / "csrc/README.md").read_text(encoding="utf-8")
(COMPILED,) = re.findall(r"^X\(.*\)$", PAGE, re.M)
(ROW,) = re.findall(r"^SkinnyKernel\((.*)\),$", PAGE, re.M)
KERNEL = SkinnyKernel(*(int(number) for number in ROW.split(",")))
LAST = re.compile(r"(#define SKINNY_VARIANTS\(X\)(?:.*\\\n)+.*\))\n")


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """The room's code object with the row of the page added."""
    csrc = tmp_path_factory.mktemp("added") / "csrc"
    shutil.copytree(repository.ROOT / "csrc", csrc)
    source = csrc / "gemm/skinny.hip"
    text, count = LAST.subn(rf"\1 \\\n  {COMPILED}\n", source.read_text(encoding="utf-8"))
    assert count == 1
    source.write_text(text, encoding="utf-8")
    return Machine(toolchain.compile_hip(csrc / "gemm/gemm.hip"))


def test_both_rows_of_the_page_name_a_kernel_that_is_not_there_yet(extended):
    assert KERNEL not in KERNELS
    assert set(extended.code.kernels) == {kernel.name for kernel in (*KERNELS, KERNEL)}


def test_the_added_kernel_computes_products(extended):
    for num_tokens in (1, 17, 33):
        ran = running.run(KERNEL, num_tokens, (32, 16), 2048, on=extended)
        for out, wanted in zip(ran.outs, ran.wanted, strict=True):
            got = room.from_bf16(out)
            assert room.relative_l2(got, wanted) <= running.RELATIVE_L2


def test_the_added_kernel_keeps_the_bounds_of_its_row(extended):
    test_static_budget.test_no_kernel_spills_and_as_many_workgroups_fit_as_the_catalogue_says(
        extended, KERNEL
    )
    test_static_budget.test_the_ring_is_full_at_every_wait(extended, KERNEL)
    assert KERNEL.weight_bytes_under_way >= 48 * 1024
    assert counting.workgroups_per_cu(KERNEL, extended) == KERNEL.workgroups_per_cu
