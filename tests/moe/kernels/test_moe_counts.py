"""The committed counts and predictions are those of the code object, and keep the bars."""

import copy
import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import moe_counts
from sglang_mi300a import code_objects
from sglang_mi300a.cost_model import MACHINE
from sglang_mi300a.moe.kernels import catalogue, prediction, published
from tests import repository
from tests.gfx942.machine import Machine

RESULT = repository.ROOT / "benchmarks/results/moe_counts.json"
SERVED = [
    kernel
    for kernel in catalogue.MATRIX_KERNELS
    if kernel.weights != "bf16" and kernel.inner in (0, moe_counts.SERVED.inner)
]
REST = [kernel for kernel in catalogue.MATRIX_KERNELS if kernel not in SERVED]


@pytest.fixture(scope="module")
def committed():
    return json.loads(RESULT.read_text())


@pytest.fixture(scope="module")
def shipped():
    """The code object that the wheel carries, and the LLVM that made it."""
    code = code_objects.load("moe")
    return Machine(Path(code.where)), _llvm(" ".join(code.made_by))


def _llvm(text):
    return re.search(r"clang version (\d+)", text)[1]


def check_counts(kernel, committed, shipped):
    on, llvm = shipped
    if llvm != _llvm(committed["compiler"]):
        pytest.skip(f"built by LLVM {llvm}, the result by {committed['compiler']}")
    (row,) = [row for row in committed["kernels"] if row["name"] == kernel.name]
    assert moe_counts.kernel_row(kernel, on) == row


@pytest.mark.parametrize("kernel", SERVED, ids=lambda k: k.name)
def test_a_served_kernel_executes_what_the_result_says(kernel, committed, shipped):
    check_counts(kernel, committed, shipped)
    assert any(row["name"] == kernel.name for row in committed["kernels"])


@pytest.mark.slow
@pytest.mark.parametrize("kernel", REST, ids=lambda k: k.name)
def test_every_other_kernel_executes_what_the_result_says(kernel, committed, shipped):
    check_counts(kernel, committed, shipped)
    assert any(row["name"] == kernel.name for row in committed["kernels"])


def test_the_result_has_every_matrix_kernel(committed):
    names = [row["name"] for row in committed["kernels"]]
    assert names == [kernel.name for kernel in catalogue.MATRIX_KERNELS]


def test_the_predictions_follow_from_the_counts(committed):
    rows = list(moe_counts.predicted_rows(committed["kernels"], moe_counts.SERVED))
    assert rows == committed["predicted"]
    assert committed["model"] == MACHINE.digest
    assert [row["m"] for row in rows] == [*moe_counts.TOKENS, *moe_counts.TOKENS]


def test_no_bar_is_missed(committed):
    assert moe_counts.missed(committed) == []


def test_the_published_kernels_stand_beside(committed):
    times = {row["m"]: round(row["us"]) for row in committed["published"]}
    assert times == {16: 146, 64: 434, 337: 664, 919: 1167, 2048: 2202}
    assert len(times) == sum(one.kernels == "grid" for one in published.TIMINGS)


@pytest.mark.parametrize(
    ("place", "name", "worse"),
    [
        ("kernels", "valu_per_weight", 2.71),
        ("kernels", "segments_per_weight_load", 64),
        ("kernels", "ring_bytes_per_cu", 36_863),
        ("kernels", "spills", 1),
        ("predicted", "us", 611),
    ],
)
def test_every_bar_bites_each_row_it_is_for(place, name, worse, committed):
    judged = 0
    for number, row in enumerate(committed[place]):
        changed = copy.deepcopy(committed)
        changed[place][number][name] = worse
        if place == "kernels" and name == "valu_per_weight" and row["decode"] == "bf16":
            continue
        if name == "valu_per_weight" and row["inner"] != moe_counts.SERVED.inner:
            continue
        if place == "predicted" and row["m"] not in moe_counts.MOST_US[row["layout"]]:
            continue
        assert len(moe_counts.missed(changed)) == 1
        judged += 1
    assert judged >= 8


def test_a_missed_bar_is_exit_code_1(committed, monkeypatch, capsys):
    changed = copy.deepcopy(committed)
    changed["kernels"][0]["spills"] = 3
    monkeypatch.setattr(sys, "argv", ["moe_counts.py", "--json"])
    monkeypatch.setattr(moe_counts, "result", lambda shape: changed)
    assert moe_counts.main() == 1
    assert "moe_gate_up_16_subnormals: 3 spilled registers" in capsys.readouterr().err
    monkeypatch.setattr(moe_counts, "result", lambda shape: committed)
    assert moe_counts.main() == 0
    assert json.loads(capsys.readouterr().out) == committed


def test_people_see_the_prediction_beside_the_published_time(committed, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["moe_counts.py"])
    monkeypatch.setattr(moe_counts, "result", lambda shape: committed)
    moe_counts.main()
    out = capsys.readouterr().out
    assert re.search(r"stream/1 +337 +16 +\d+\.\d +memory +663\.8 +313", out)


def test_a_smaller_grid_has_fewer_bytes_under_way(committed):
    kernel = catalogue.matrix_kernel("gate_up", "subnormals", 16, 256)
    counts = prediction.counts_of(committed["kernels"])[kernel.name]
    work = prediction.routing(337, 16, moe_counts.SERVED)
    full = prediction.stream_kernel(kernel, counts, 256).predict(work)
    half = prediction.stream_kernel(kernel, counts, 256, groups_per_cu=1).predict(work)
    assert half.terms_us["ring"] == pytest.approx(2 * full.terms_us["ring"])
    assert half.us > full.us
