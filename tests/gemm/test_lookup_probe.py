"""A rank's proof that its products are served from the table fails where they are not."""

import inspect
import os

import pytest
import torch

from sglang_mi300a import settings
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import live_stack, lookup_probe, staging
from sglang_mi300a.gemm.shape_grid import Cell
from tests.gemm.sample_tables import ROWS, table
from tests.gemm.standin_tunableop import TunableOpOf29, TunableOpOf213

BOTH = pytest.mark.parametrize("torch_tunable", [TunableOpOf29, TunableOpOf213])


@pytest.fixture
def applied(tmp_path):
    return staging.apply(table(), tmp_path / "tables", 4)


def served_by(tunable, error=1e-3):
    """Return products that a TunableOp makes, with an error of the results."""

    def product(cell):
        tunable.product(*cell)
        return error

    return product


def loaded(applied, torch_tunable=TunableOpOf213, ordinal=0):
    tunable = torch_tunable(applied.environment(), ordinal)
    live_stack.check(tunable, applied, ordinal, [])
    return tunable


@BOTH
def test_a_product_of_the_table_is_looked_up_and_found(applied, torch_tunable):
    tunable = loaded(applied, torch_tunable, 2)
    asked = []

    def product(cell):
        asked.append((cell, tunable.product(*cell)))
        return 1e-3

    said = lookup_probe.prove(tunable, applied.table, product)
    assert said == "32 x 4096, M 4: looked up and found, Gemm_Rocblas_7"
    assert asked == [(Cell(32, 4096, 5), "Default"), (Cell(32, 4096, 4), "Gemm_Rocblas_7")]


def test_recording_is_off_again_and_leaves_no_file_and_no_variable(applied, monkeypatch, tmp_path):
    monkeypatch.setenv(settings.UNTUNED_FILE, "theirs.csv")
    monkeypatch.chdir(tmp_path)
    tunable = loaded(applied)
    lookup_probe.prove(tunable, applied.table, served_by(tunable))
    tunable.product(1, 1, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tables"]
    assert os.environ[settings.UNTUNED_FILE] == "theirs.csv"
    monkeypatch.delenv(settings.UNTUNED_FILE)
    with settings.untuned_products_into(tmp_path / "x.csv"):
        assert os.environ[settings.UNTUNED_FILE] == str(tmp_path / "x.csv")
    assert settings.UNTUNED_FILE not in os.environ


def test_a_tunableop_that_is_off_is_caught(applied):
    off = TunableOpOf213({**applied.environment(), "PYTORCH_TUNABLEOP_ENABLED": "0"})
    off.tuning_enable(False)
    with pytest.raises(UserError, match="it did not see a product with M 5, for which"):
        lookup_probe.prove(off, applied.table, served_by(off))


def test_products_that_go_past_tunableop_are_caught(applied):
    with pytest.raises(UserError, match="it did not see a product"):
        lookup_probe.prove(loaded(applied), applied.table, lambda cell: 1e-3)


@BOTH
def test_a_file_that_was_not_read_is_caught(applied, torch_tunable):
    unread = torch_tunable(applied.environment())
    unread.tuning_enable(False)
    with pytest.raises(UserError, match="found no row, though Gemm_Rocblas_7 was read"):
        lookup_probe.prove(unread, applied.table, served_by(unread))


def test_a_product_that_is_spelled_otherwise_than_the_table_is_caught(applied):
    tunable = loaded(applied)

    def transposed(cell):
        tunable.product(cell.m, cell.k, cell.n)
        return 1e-3

    with pytest.raises(UserError, match="it did not see a product"):
        lookup_probe.prove(tunable, applied.table, transposed)


def test_a_solution_that_the_library_lacks_is_named(tmp_path):
    rows = dict(ROWS)
    cell = Cell(32, 4096, 4)
    rows[cell] = type(rows[cell])("library", "Gemm_Rocblas_999", "measured", 7.5, 65.0)
    applied = staging.apply(table(rows), tmp_path / "tables", 1)
    tunable = loaded(applied)
    with pytest.raises(UserError, match="32 x 4096, M 4: found Gemm_Rocblas_999 failed"):
        lookup_probe.prove(tunable, applied.table, served_by(tunable))


@pytest.mark.parametrize("error", [0.1, float("nan")])
def test_a_solution_that_is_wrong_here_is_named(applied, error):
    tunable = loaded(applied)
    with pytest.raises(UserError, match="Gemm_Rocblas_7 is wrong here: relative L2"):
        lookup_probe.prove(tunable, applied.table, served_by(tunable, error))


def test_recording_that_was_on_before_is_told_how_to_be_turned_off(applied, monkeypatch, tmp_path):
    tunable = loaded(applied)
    monkeypatch.setenv(settings.UNTUNED_FILE, str(tmp_path / "theirs.csv"))
    tunable.record_untuned_enable(True)
    tunable.product(1, 1, 1)
    with pytest.raises(UserError, match="unset PYTORCH_TUNABLEOP_RECORD_UNTUNED"):
        lookup_probe.prove(tunable, applied.table, served_by(tunable))


def test_a_table_without_a_row_of_tunableops_has_nothing_to_probe(tmp_path):
    ours = {cell: row for cell, row in ROWS.items() if not row.by_tunableop}
    applied = staging.apply(table(ours), tmp_path / "tables", 1)
    said = lookup_probe.prove(loaded(applied), applied.table, None)
    assert said == "no row of TunableOp's to probe"


def test_the_product_of_the_probe_is_one_that_sglang_makes(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self, raising=True)
    assert lookup_probe.run_product(Cell(32, 64, 4)) < 4e-3


def test_the_real_interface_has_every_function_that_the_stand_in_has():
    real = torch.cuda.tunable
    names = {name for name in vars(TunableOpOf213) if not name.startswith("_")}
    assert {"get_results", "get_validators", "read_file", "record_untuned_enable"} < names
    for name in names - {"product", "exit"}:  # what the process does, not the interface
        ours = inspect.signature(getattr(TunableOpOf213, name)).parameters
        theirs = inspect.signature(getattr(real, name)).parameters
        assert len(theirs) == len(ours) - 1, name
