"""Measured layers stand beside what the model says of the very same launches."""

import json
from dataclasses import replace

import pytest

from sglang_mi300a import tables
from sglang_mi300a.errors import UserError
from sglang_mi300a.moe.kernels import candidates, measured, prediction
from tests import repository


@pytest.fixture(scope="module")
def counts():
    path = repository.ROOT / "benchmarks/results/moe_counts.json"
    return prediction.counts_of(json.loads(path.read_text())["kernels"])


@pytest.fixture(scope="module")
def shipped():
    return tables.load(repository.ROOT / "tuning_tables/moe" / candidates.FILE)


def as_measured(table, us=lambda row: row["us"], *, shape="TP4"):
    """Return a table whose rows of one shape and the MXFP4 decode count as measured."""
    rows = {
        key: {**row, "basis": "measured", "us": us(row), "stock_us": 1e6}
        for key, row in table.rows.items()
        if row["shape"] == shape and row["weights"] == "subnormals"
    }
    return replace(table, rows=rows)


def test_a_table_of_the_model_is_predicted_as_it_stands(shipped, counts):
    rows = measured.of_table(as_measured(shipped), counts, "t")
    assert len(rows) == len(candidates.TOKENS)
    assert all(abs(row.ratio() - 1) < 0.005 for row in rows)
    assert all(row.is_inside() for row in rows)


def test_rows_that_were_not_measured_are_left_out(shipped, counts):
    assert measured.of_table(shipped, counts, "t") == []


def test_the_band_is_wider_for_few_tokens(shipped, counts):
    rows = measured.of_table(as_measured(shipped, lambda row: row["us"] * 1.35), counts, "t")
    assert {row.num_tokens for row in rows if row.is_inside()} == {1, 2, 4, 8}


def test_a_row_of_unknown_kernels_is_refused(shipped, counts):
    table = as_measured(shipped)
    key, row = next(iter(table.rows.items()))
    with pytest.raises(UserError, match="kernels and shapes that this version ships"):
        measured.of_table(replace(table, rows={key: {**row, "tile": 48}}), counts, "t")
    with pytest.raises(UserError, match="no shape"):
        measured.of_table(replace(table, rows={key: {**row, "experts": 64}}), counts, "t")
