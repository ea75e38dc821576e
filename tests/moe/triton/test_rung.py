"""What the Triton rung takes, and how it cuts a layer."""

from dataclasses import replace

import pytest
import torch

from sglang_mi300a.moe import triton_rung
from sglang_mi300a.moe.rungs import ExpertSizes
from sglang_mi300a.moe.triton_rung import TritonRung
from tests.moe.triton import interpreted

SERVED = ExpertSizes(num_experts=512, hidden=4096, inner=256, top_k=10, layout="stream/1")


def test_it_passes_the_self_test_of_the_ladder(interpreter):
    assert interpreter(interpreted.why_not, SERVED) is None
    test = interpreter(interpreted.self_test, replace(SERVED, inner=128))
    assert test.passed, test.in_words()


def test_no_tokens_give_no_rows(interpreter):
    assert interpreter(interpreted.result_of_no_tokens, SERVED) == (0, 4096)


def test_a_cpu_that_does_not_interpret_is_refused():
    assert TritonRung().can_run(torch.device("cpu"), SERVED) == "device cpu"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"activations": torch.float32}, "activations torch.float32"),
        ({"layout": "stream/9"}, "layout stream/9"),
        ({"inner": 192}, "192 neurons of an expert; multiples of 512 and 128"),
        ({"inner": 640}, "640 neurons of an expert; multiples of 512 and 512"),
        ({"hidden": 1152}, "hidden size 1152"),
        ({"hidden": 1152, "inner": 640, "layout": "plain/1"}, None),
    ],
)
def test_what_it_does_not_take_it_says_by_number(change, words, interpreter):
    said = interpreter(interpreted.why_not, replace(SERVED, **change))
    assert said is None if words is None else words in said


@pytest.mark.parametrize("on_amd", [True, False])
@pytest.mark.parametrize(
    ("hidden", "inner"), [(4096, 128), (4096, 256), (4096, 1024), (1152, 640), (7168, 2048)]
)
def test_runs_of_weight_rows_divide_every_layer(hidden, inner, on_amd):
    sizes = ExpertSizes(8, hidden, inner, 2, "plain/1")
    for num_tokens in (1, 16, 337, 8192):
        shape = triton_rung.launch_shape(num_tokens, sizes, on_amd=on_amd)
        assert 2 * inner % shape.gate_up_rows == 0
        assert hidden % (shape.down_rows * shape.down_parts) == 0
        assert min(shape.gate_up_rows, shape.down_rows) >= triton_rung.ITEM_ROWS


def test_shapes_are_listed_by_the_units_they_are_for():
    limits = [most for most, _ in triton_rung._BY_UNITS]
    assert limits == sorted(limits)
    by_tokens = [triton_rung.launch_shape(m, SERVED, on_amd=False) for m in (1, 16, 337)]
    assert by_tokens == [shape for _, shape in triton_rung._BY_UNITS]


def test_a_launch_depends_on_the_number_of_tokens_and_on_no_id():
    shape = triton_rung.launch_shape(16, SERVED, on_amd=False)
    launches = triton_rung.launches(SERVED, 16, shape, keeps_subnormals=True)
    assert [(one.kernel, one.grid) for one in launches] == [
        ("count_pairs", (512 + 16 * 4,)),
        ("place_pairs", (512,)),
        ("gate_up", (4, 160)),
        ("down", (8, 160)),
        ("sum_slots", (16, 4)),
    ]
