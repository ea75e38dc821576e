"""Launches and parts of a layer, timed: what is launched is machine code, the times are made up."""

import pytest
import torch

from sglang_mi300a.cost_model import MACHINE
from sglang_mi300a.moe import layer_timing, part_timing
from sglang_mi300a.moe.kernels import prediction
from sglang_mi300a.moe.layer_timing import TimedLayer, Weights
from sglang_mi300a.moe.part_timing import PartTimes
from tests.moe.timing import TINY, FakedTimer

CPU = torch.device("cpu")


@pytest.mark.parametrize("decode", ["subnormals", "bf8"])
def test_every_part_is_a_launch_that_the_machine_code_executes(hip, decode):
    weights = layer_timing.random_weights(TINY, decode, CPU)
    timer = FakedTimer(hip, lambda kernel, groups: 10.0)
    times = part_timing.time_parts(weights, decode, 64, 16, timer, samples=3)
    assert [kernel for kernel, _ in timer.timed] == [
        "moe_sort_pairs",
        f"moe_gate_up_16_{decode}",
        f"moe_down_k256_16_{decode}",
        "moe_sum_slots",
        "moe_gate_up_16_loads_only",
        f"moe_gate_up_16_{decode}",
    ]
    assert set(times.measured_us) - set(times.predicted_us) == {"sort", "sum_slots"}
    assert times.layer_us == 40
    # 32 rows of 4096 by 17/32 bytes are an item; 16 of them an expert's first stage.
    assert times.first_stage_bytes == times.experts * 16 * 32 * 4096 * 17 / 32
    assert times.tb_s("loads_only") == pytest.approx(times.first_stage_bytes / 10e6)


def test_the_decode_alone_reads_one_expert_whatever_the_routing(hip):
    weights = layer_timing.random_weights(TINY, "subnormals", CPU)
    layer = TimedLayer(weights, "subnormals", 64, 16, FakedTimer(hip, lambda *_: 1.0))
    layer.sort_us(1)
    work = layer._buffers["work"].view(-1, 4)
    units = int(work[0, 0])
    rows = work[1 : 1 + units, 2].tolist()
    assert len(set(work[1 : 1 + units, 0].tolist())) == units > 1
    layer.read_one_expert_only()
    assert set(work[1 : 1 + units, 0].tolist()) == {0}
    assert work[1 : 1 + units, 2].tolist() == rows
    assert sum(rows) == sum(layer.rows_of_experts)


def test_the_routing_is_uniform_and_the_same_each_time(hip):
    weights = layer_timing.random_weights(TINY, "subnormals", CPU)
    timer = FakedTimer(hip, lambda *_: 1.0)
    first, again = (TimedLayer(weights, "subnormals", 300, 16, timer) for _ in range(2))
    assert torch.equal(first.ids, again.ids)
    chosen = first.ids.numpy()
    assert chosen.max() < TINY.experts
    for row in chosen:
        here = row[row >= 0]
        assert len(set(here.tolist())) == len(here)
    # 3000 choices among 512 experts: 23 are expected here, give or take 5.
    assert 8 <= sum(first.rows_of_experts) == (chosen >= 0).sum() <= 38


def test_the_checkpoints_order_is_timed_where_its_kernel_fits(hip):
    hip.execute(lambda launch: None)
    served = next(shape for shape in prediction.SHAPES if shape.name == "TP4")
    sizes = [512 * 512 * 4096 * 17 // 32, 512 * 4096 * 256 * 17 // 32]
    streams = (torch.empty((512, size // 512), dtype=torch.uint8) for size in sizes)
    timer = FakedTimer(hip, lambda *_: 1.0)
    times = part_timing.time_parts(Weights(*streams, served), "subnormals", 16, 32, timer, 1)
    assert ("moe_gate_up_32_checkpoint", 4) in timer.timed
    assert times.predicted_us["checkpoint"] > 1.3 * times.predicted_us["gate_up"]


def times_of(num_tokens, tile, **change):
    predicted = {
        "gate_up": 194.0, "down": 106.0, "loads_only": 169.0, "checkpoint": 290.0,
        "decode_only": 100.0,
    }  # fmt: skip
    measured = predicted | {"sort": 4.0, "sum_slots": 11.0} | change
    return PartTimes(num_tokens, tile, 511, 511 * 1.114e6, measured, predicted)


def test_a_device_like_the_model_leaves_it_standing():
    answers = part_timing.answers([times_of(337, 16), times_of(64, 16, loads_only=999.0)])
    assert [answer.holds for answer in answers] == [True] * 4
    assert answers[0].measured == answers[0].predicted == "1.49"
    assert answers[1].measured == "3.37 TB/s"


@pytest.mark.parametrize(
    ("change", "question"),
    [
        ({"checkpoint": 194.0}, 0),  # scattered segments cost nothing
        ({"loads_only": 200.0}, 1),  # 2.8 TB/s
        ({"decode_only": 130.0}, 2),
        ({"gate_up": 262.0, "checkpoint": 390.0}, 3),  # one after the other
    ],
)
def test_what_contradicts_the_model_is_named(change, question):
    answers = part_timing.answers([times_of(337, 16, **change)])
    assert [number for number, answer in enumerate(answers) if not answer.holds] == [question]


def test_the_faster_tile_answers():
    slow = times_of(337, 32, gate_up=300.0, loads_only=999.0)
    assert all(answer.holds for answer in part_timing.answers([slow, times_of(337, 16)]))


@pytest.mark.parametrize("exponent", [1.3, MACHINE.overlap, 3.0])
def test_the_overlap_exponent_is_found_again(exponent):
    both = (150**exponent + 100**exponent) ** (1 / exponent)
    assert part_timing.overlap_exponent(150, 100, both) == pytest.approx(exponent)


def test_the_ends_of_the_overlap_exponent():
    assert part_timing.overlap_exponent(150, 100, 250) == 1
    assert part_timing.overlap_exponent(150, 100, 300) == 1
    assert part_timing.overlap_exponent(150, 100, 150) is None
