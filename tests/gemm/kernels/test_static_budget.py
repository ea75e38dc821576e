"""What each built kernel may use, and whether its ring of loads is full at every wait."""

from collections import Counter

import pytest

from sglang_mi300a.gemm.kernels import catalogue
from tests.gemm.kernels import counting, running
from tests.gfx942 import room

KERNELS = catalogue.KERNELS
BY_NAME = {"argvalues": KERNELS, "ids": lambda kernel: kernel.name}


@pytest.fixture(params=room.COMPILERS)
def built(request):
    """The code object of each compiler at hand."""
    return running.machine(request.param)


def test_the_catalogue_lists_what_the_code_object_has(built):
    assert set(built.code.kernels) == {kernel.name for kernel in KERNELS}


@pytest.mark.parametrize("kernel", **BY_NAME)
def test_no_kernel_spills_and_as_many_workgroups_fit_as_the_catalogue_says(built, kernel):
    facts = built.kernel(kernel.name)
    assert (facts.vgpr_spills, facts.sgpr_spills, facts.scratch_bytes, facts.agprs) == (0, 0, 0, 0)
    assert facts.vgprs <= kernel.registers
    assert facts.lds_bytes == kernel.lds_bytes
    assert facts.most_threads == kernel.threads
    assert counting.workgroups_per_cu(kernel, built) >= kernel.workgroups_per_cu


@pytest.mark.parametrize("kernel", **BY_NAME)
def test_the_loop_holds_matrix_instructions_and_loads_and_no_vector_arithmetic(built, kernel):
    mix = Counter(kind for _, kind in counting.loop(kernel, built))
    tiles = kernel.tokens // 16, kernel.rows // 16
    assert mix["mfma"] == 2 * kernel.ring * tiles[0] * tiles[1]
    assert mix["vmem_load"] == kernel.ring * sum(tiles)
    assert mix["valu"] == mix["scratch"] == mix["vmem_atomic"] == 0


@pytest.mark.parametrize("kernel", **BY_NAME)
def test_the_ring_is_full_at_every_wait(built, kernel):
    a_step = kernel.tokens // 16 + kernel.rows // 16
    others = (kernel.ring - 1) * a_step
    waits = [line.wait["vmcnt"] for line, _ in counting.loop(kernel, built) if "vmcnt" in line.wait]
    assert len(waits) >= kernel.ring
    assert min(waits) == others  # all but the step that is needed
    assert max(waits) < others + a_step


@pytest.mark.parametrize("kernel", **BY_NAME)
def test_enough_weight_bytes_are_under_way_in_full_segments(kernel):
    assert kernel.weight_bytes_under_way >= 48 * 1024
    assert counting.segments_per_weight_load(kernel) == 16
