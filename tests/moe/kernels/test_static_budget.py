"""What each built kernel may use, and whether its ring of loads is full at every wait.

The counts are of the code object itself, executed; the sizes are those that are served. A kernel
that computes the right thing slowly fails here: a compiler that spills, sinks arithmetic past a
branch or waits for one load too many changes nothing else.
"""

from collections import Counter
from dataclasses import replace

import pytest

from sglang_mi300a.moe.kernels import catalogue
from tests.gfx942 import room
from tests.moe.kernels import counting, running

KERNELS = catalogue.MATRIX_KERNELS
ALL = (*KERNELS, *catalogue.TIMED_KERNELS)
KIB = 1024

# Vector instructions a weight, at 16 and at 32 tokens, everything included. Reading 1 KiB costs a
# wave about as long as 2 of them a weight, so beyond that the decode binds, not memory.
VALU_A_WEIGHT = {
    ("gate_up", "subnormals"): (1.5, 1.8),
    ("gate_up", "bf8"): (2.1, 2.4),
    ("gate_up", "bf16"): (0.1, 0.1),
    ("down", "subnormals"): (1.6, 2.0),
    ("down", "bf8"): (2.2, 2.7),
    ("down", "bf16"): (0.2, 0.3),
}
UNPACKED = 0.07
"""More of them with compilers after LLVM 19, which split a packed multiply-add into two where both
fit into the time that a matrix instruction takes anyway."""

SHORT_ROWS = 0.25
"""More of them where K is 128: the same stores for half the weights."""


@pytest.fixture(params=room.COMPILERS)
def built(request):
    """The code object of each compiler at hand."""
    return running.machine(request.param)


def test_the_catalogue_lists_what_the_code_object_has(built):
    assert set(built.code.kernels) == {k.name for k in ALL} | set(catalogue.OTHER_KERNELS)


@pytest.mark.parametrize("name", [k.name for k in ALL] + list(catalogue.OTHER_KERNELS))
def test_no_kernel_spills_or_uses_scratch(built, name):
    facts = built.kernel(name)
    assert (facts.vgpr_spills, facts.sgpr_spills, facts.scratch_bytes, facts.agprs) == (0, 0, 0, 0)


@pytest.mark.parametrize("kernel", ALL, ids=lambda k: k.name)
def test_as_many_workgroups_fit_a_compute_unit_as_the_catalogue_says(built, kernel):
    facts = built.kernel(kernel.name)
    assert facts.vgprs <= kernel.registers
    assert facts.lds_bytes == kernel.lds_bytes
    assert facts.most_threads == kernel.threads
    assert kernel.workgroups_per_cu * kernel.waves <= counting.waves_by_registers(kernel.registers)
    assert kernel.workgroups_per_cu * kernel.lds_bytes <= catalogue.LDS_BYTES


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_enough_bytes_are_under_way(kernel):
    # 3.5 TB/s over 228 compute units is 15.4 KB a microsecond, and a load takes 0.6 to 1.5 of them
    # under load; beyond 64 KiB nothing is gained. At three waves a SIMD 12 * 3 records must do.
    three_waves = kernel.op == "down" and kernel.token_tile == 32 and kernel.inner <= 256
    assert kernel.bytes_under_way >= (36 if three_waves else 48) * KIB


@pytest.mark.parametrize("compiler", room.COMPILERS)
@pytest.mark.parametrize("kernel", ALL, ids=lambda k: k.name)
def test_the_ring_is_full_at_every_wait(kernel, compiler):
    left = [records for _, records in counting.waits(kernel, running.machine(compiler))]
    values = kernel.item_rows * min(kernel.inner or 512, 512)  # of an item, a wave
    record_values = 16 * (32 if kernel.weights == "bf16" else 128)
    assert len(left) >= values // record_values  # each record is waited for
    assert min(left) >= kernel.ring - 1


@pytest.mark.parametrize("compiler", room.COMPILERS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_a_record_is_sixteen_segments(kernel, compiler):
    counters, _ = counting.busy_run(kernel, running.machine(compiler))
    often, steady = counting.steady_lines(counters)
    records = [line.pc for line, _ in steady if counting.is_record(line)]
    use = [one for one in counters.memory if one.line.pc in records]
    # The last item of each worker fills the ring with nothing.
    nothing = kernel.ring * counters.waves
    loads = often * len(records) - nothing
    assert sum(one.segments for one in use) == 16 * loads


@pytest.mark.parametrize("compiler", room.COMPILERS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_executed_instructions_a_weight_stay_in_the_budget(kernel, compiler):
    counters, weights = counting.busy_run(kernel, running.machine(compiler))
    by_lane = weights / catalogue.LANES
    limit = VALU_A_WEIGHT[kernel.op, kernel.weights][kernel.token_tile == 32]
    if kernel.inner == 128:
        limit += SHORT_ROWS * kernel.token_tile / 16
    if compiler not in ("clang-19", "clang"):
        limit += UNPACKED
    assert counters.by_class["valu"] / by_lane <= limit
    assert counters.by_class["mfma"] / by_lane == kernel.token_tile / 64


@pytest.mark.parametrize("compiler", room.COMPILERS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_the_loop_holds_nothing_but_its_work(kernel, compiler):
    counters, _ = counting.busy_run(kernel, running.machine(compiler))
    _, steady = counting.steady_lines(counters)
    mix = Counter(kind for _, kind in steady)
    records = sum(counting.is_record(line) for line, _ in steady)
    blocks = 1 if kernel.weights == "bf16" else 4
    assert mix["mfma"] == records * blocks * 2 * kernel.token_tile // 16
    scales = 0 if kernel.weights == "bf16" else records
    tokens = kernel.token_tile // 16 if kernel.op == "gate_up" else 0
    assert mix["vmem_load"] == records + scales + tokens
    assert mix["scratch"] == mix["vmem_atomic"] == mix["message"] == 0
    # Scalar work is one stream's bookkeeping; it issues beside the vector unit.
    assert mix["salu"] + mix["branch"] <= 64
    # Idle issue slots that the matrix unit's latency leaves in one wave; others fill them.
    idle = sum(int(line.operands[0]) + 1 for line, kind in steady if kind == "nop")
    if kernel.weights != "bf16":
        assert idle <= (mix["valu"] + mix["mfma"]) / 4


@pytest.mark.parametrize("compiler", room.COMPILERS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_the_next_unit_is_asked_for_early_and_waited_for_late(kernel, compiler):
    counters, _ = counting.busy_run(kernel, running.machine(compiler))
    _, steady = counting.steady_lines(counters)
    kinds = [kind for _, kind in steady]
    assert kinds.count("smem") == 1
    asked = kinds.index("smem")
    behind = steady[asked:] + steady[:asked]
    waited = next(k for k, (line, _) in enumerate(behind) if "lgkmcnt" in line.wait)
    between = [kind for _, kind in behind[:waited]].count("mfma")
    assert between >= kinds.count("mfma") / 2


@pytest.mark.parametrize("compiler", room.COMPILERS)
@pytest.mark.parametrize("kernel", catalogue.TIMED_KERNELS, ids=lambda k: k.name)
def test_a_kernel_that_times_a_part_does_that_part(kernel, compiler):
    on = running.machine(compiler)
    found = counting.counted(kernel, on)
    served = counting.counted(
        catalogue.matrix_kernel("gate_up", "subnormals", kernel.token_tile, 0), on
    )
    if kernel.weights == "loads_only":
        assert found.item.matrix == 0
        assert found.item.vector < served.item.vector / 10
        assert found.item.segments == served.item.segments
        assert found.switch.row_segments == served.switch.row_segments
    else:
        assert found.segments_per_weight_load == 64
        # Of 8 waves: 8 loads of 64 segments, and two of scales, of 16.
        assert found.item.scattered_segments == 8 * (8 * 64 + 2 * 16)
        assert found.item.matrix == served.item.matrix
        assert found.item.vector == pytest.approx(served.item.vector, rel=0.03)


def test_a_drained_ring_would_be_noticed():
    """Stores and token loads do not count as records: a ring of eight is not seen in a four."""
    kernel = catalogue.matrix_kernel("down", "subnormals", 16, 256)
    with pytest.raises(AssertionError):
        test_the_ring_is_full_at_every_wait(replace(kernel, ring=8), room.COMPILERS[0])
