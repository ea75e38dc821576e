"""The committed counts and predictions are those of the code object, and keep the bars."""

import copy
import json
import re

import pytest

from benchmarks import gemm_counts
from sglang_mi300a import code_objects, shipped
from sglang_mi300a.gemm.kernels import catalogue, prediction
from tests import repository
from tests.gemm.kernels import counting

RESULT = repository.ROOT / "benchmarks/results/gemm_counts.json"


@pytest.fixture(scope="module")
def committed():
    return json.loads(RESULT.read_text())


def test_result_and_counts_are_what_the_benchmark_writes(committed):
    made_by = re.search(r"clang version (\d+)", " ".join(code_objects.load("gemm").made_by))[1]
    if made_by != re.search(r"clang version (\d+)", committed["compiler"])[1]:
        pytest.skip(f"built by LLVM {made_by}, the result by {committed['compiler']}")
    assert gemm_counts.result() == committed
    path = shipped.tuning_tables() / prediction.COUNTS_FILE
    assert path.read_text() == gemm_counts.counts_file()


def test_no_bar_is_missed_and_a_worse_result_is_noticed(committed):
    assert list(gemm_counts.missed(committed)) == []
    worse = copy.deepcopy(committed)
    row = next(row for row in worse["predicted"] if row["m"] == 48 and row["way"] == "paired")
    row["ms_per_forward"] = 3.2
    worse["kernels"][0]["spills"] = 1
    assert len(list(gemm_counts.missed(worse))) == 2


def test_pairs_save_a_launch_for_each_layer_that_has_them(committed):
    rows = {(row["way"], row["m"]): row for row in committed["predicted"]}
    assert rows["apart", 16]["launches"] - rows["paired", 16]["launches"] == 45 + 60
    assert rows["paired", 16]["ms_per_forward"] < rows["apart", 16]["ms_per_forward"]
    assert rows["apart", 16]["launches"] - rows["served", 16]["launches"] == 45 + 2 * 60


def test_the_choice_is_the_fastest_kernel_and_none_where_none_fits():
    choice = prediction.best(48, 5120, 4096)
    others = [
        prediction.predict(kernel, counting.counted(kernel), 48, 5120, 4096).us
        for kernel in catalogue.that_take(5120, 4096)
    ]
    assert choice.prediction.us == min(others)
    assert prediction.best(48, 33, 4096) is None


def test_time_grows_with_tokens_and_never_undercuts_the_memory():
    for n, k in ((5120, 4096), (4096, 256), (62080, 4096)):
        times = [prediction.best(m, n, k).prediction.us for m in (1, 16, 48, 128, 256)]
        assert times == sorted(times)
        assert times[0] > n * k * 2 / 3.5e6
