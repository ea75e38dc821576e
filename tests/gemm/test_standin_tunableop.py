"""The stand-in TunableOp answers as a real one did on an accelerator (E2)."""

import json

import pytest

from sglang_mi300a import settings
from sglang_mi300a.gemm import tunableop_csv
from sglang_mi300a.gemm.shape_grid import Cell
from tests import repository
from tests.gemm.standin_tunableop import TunableOpOf213, UnknownSolutionError

RECORDED = json.loads((repository.ROOT / "benchmarks/results/tunableop_reading.json").read_text())
READ = {
    name: case
    for name, case in RECORDED["cases"].items()
    if "tuning" not in name and not name.startswith("record")
}


def standin(tmp_path, text):
    path = tmp_path / "t0.csv"
    if text is not None:
        path.write_bytes(text.encode())
    environment = {
        "PYTORCH_TUNABLEOP_ENABLED": "1",
        "PYTORCH_TUNABLEOP_TUNING": "0",
        "PYTORCH_TUNABLEOP_FILENAME": str(tmp_path / "t%d.csv"),
    }
    versions = {"PT_VERSION": RECORDED["torch"].partition("+")[0]}
    tunable = TunableOpOf213(environment, 0, versions)
    tunable.tuning_enable(False)
    return tunable, path


@pytest.mark.parametrize("name", READ)
def test_it_takes_and_drops_the_files_that_a_real_one_took_and_dropped(name, tmp_path):
    case = READ[name]
    tunable, path = standin(tmp_path, case["after"])
    if case["exit_code"]:
        with pytest.raises(UnknownSolutionError):
            tunable.product(512, 4096, 16)
        return
    tunable.product(512, 4096, 16)
    assert [list(row) for row in tunable.get_results()] == case["rows"]
    assert path.name == case["filename"]
    assert not case["changed"]
    tunable.exit()
    assert path.exists() == (case["after"] is not None)
    assert case["after"] is None or path.read_bytes() == case["after"].encode()


@pytest.mark.parametrize("name", ["record then", "record first"])
def test_it_writes_down_the_products_that_a_real_one_wrote_down(name, tmp_path):
    case = RECORDED["cases"][name]
    tunable, _ = standin(tmp_path, case["after"])
    with settings.untuned_products_into(tmp_path / "untuned.csv"):
        tunable.record_untuned_enable(name == "record first")
        tunable.product(512, 4096, 16)
        tunable.record_untuned_enable(True)
        tunable.product(512, 4096, 16)
        tunable.product(512, 4096, 17)
        tunable.record_untuned_enable(False)
    assert (tmp_path / "untuned0.csv").read_text().splitlines() == case["untuned"]
    assert [list(row) for row in tunable.get_results()] == case["rows"]


def test_a_real_one_writes_down_a_product_without_a_row_and_none_whose_row_it_found():
    def lines(*row_counts):
        cells = [Cell(512, 4096, m) for m in row_counts]
        return [f"{tunableop_csv.OPERATION},{tunableop_csv.key_of(cell)}" for cell in cells]

    assert RECORDED["cases"]["record then"]["untuned"] == lines(17)
    assert RECORDED["cases"]["record first"]["untuned"] == lines(16, 17)


def test_the_recording_holds_what_it_is_to_prove():
    assert len(READ["as written"]["rows"]) == 1
    dropped = ("CRLF", "byte-order mark", "one version unlike", "a version too many")
    assert all(READ[name]["rows"] == [] for name in dropped)
    assert READ["unknown solution"]["exit_code"] != 0


def test_a_real_one_spells_a_product_as_this_package_does():
    ((operation, key, *_),) = RECORDED["cases"]["no file, tuning on"]["rows"]
    assert operation == tunableop_csv.OPERATION
    assert key == tunableop_csv.key_of(Cell(512, 4096, 16))
