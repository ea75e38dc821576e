"""A table is used whole or refused whole, with the row and what was found."""

import json
from pathlib import Path

import pytest

from sglang_mi300a import shipped, tables
from sglang_mi300a.device import Accelerator
from sglang_mi300a.errors import UserError

MI300A = Accelerator(0, "AMD Instinct MI300A", "gfx942", 228, True, 0)
DATA = {
    "schema": 1,
    "op": "an_op",
    "device": {"name": "AMD Instinct MI300A", "arch": "gfx942", "visible_cus": 228},
    "software": {"rocm": "7.0.0", "hipblaslt": "100"},
    "made": {"by": "sglang-mi300a tune moe", "samples": 30},
    "key": ["n", "m"],
    "columns": ["n", "m", "variant", "basis", "us", "stock_us"],
    "rows": [
        [512, 1, "a", "measured", 9.8, 14.1],
        [512, 16, "b", "model", 10.4, None],
        [4096, 1, "a", "imported", 10.0, None],
    ],
}


def text(**change):
    return json.dumps({**DATA, **change})


def with_row(*values):
    return text(rows=[list(values)])


def test_a_table_is_read_by_key_and_rendered_canonically():
    table = tables.parse(text(), "t.json")
    assert table.rows[512, 16]["variant"] == "b"
    rendered = tables.render(table)
    assert tables.parse(rendered, "t.json") == table
    assert tables.render(tables.parse(rendered, "t.json")) == rendered
    assert rendered.count("\n  [") == 3


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (text().replace(",", ",\r\n", 1), "a carriage return"),
        ("\ufeff" + text(), "no JSON"),
        (text()[:80], "no JSON"),
        ("[]", "schema None"),
        (text(schema=2), "schema 2"),
        (text(extra=1), "extra"),
        (text(device={"name": "", "arch": "gfx942", "visible_cus": 228}), "device"),
        (text(device={"name": "x", "arch": "gfx942"}), "device"),
        (text(columns=["m", "n", "variant", "basis", "us", "stock_us"]), "columns"),
        (text(columns=["n", "m", "variant", "basis", "us"]), "columns"),
        (text(key=[]), "key"),
        (text(rows=[DATA["rows"][1], DATA["rows"][0]]), r"row 1: found key \(512, 1\) after"),
        (text(rows=[DATA["rows"][0], DATA["rows"][0]]), "row 1: found key"),
        (with_row(512, 1, "a", "measured", 14.1, 14.1), "14.1 us is not faster than stock's 14.1"),
        (with_row(512, 1, "a", "measured", 9.8, None), "stock_us None"),
        (with_row(512, 1, "a", "guessed", 9.8, 14.1), "basis 'guessed'"),
        (with_row(512, 1, "a", "model", -1.0, None), "us -1.0"),
        (text().replace("9.8", "Infinity"), "us inf"),
        (text().replace("9.8", "NaN"), "us nan"),
        (with_row(512, 1, "a", "model", "9", None), "us '9'"),
        (with_row(512, 1, "a"), "supported: 6 values"),
    ],
)
def test_a_broken_table_is_refused_with_what_was_found(broken, found):
    with pytest.raises(UserError, match=found) as refused:
        tables.parse(broken, "t.json")
    assert "table t.json" in str(refused.value)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    with pytest.raises(UserError, match="not readable"):
        tables.load(tmp_path / "none.json")
    (tmp_path / "t.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8 at byte 0"):
        tables.load(tmp_path / "t.json")


def test_a_table_fits_its_own_device_and_software_only():
    table = tables.parse(text(), "t.json")
    software = {"rocm": "7.0.0", "hipblaslt": "100", "torch": "2.9"}
    assert table.misfits(MI300A, software) == []
    assert table.misfits(MI300A, {**software, "rocm": "7.0.1"}) == [
        "rocm: table '7.0.0', here '7.0.1'"
    ]
    mi300x = Accelerator(0, "AMD Instinct MI300X", "gfx942", 304, False, 0)
    assert table.misfits(mi300x, software) == [
        "name: table 'AMD Instinct MI300A', here 'AMD Instinct MI300X'",
        "visible_cus: table 228, here 304",
    ]


def test_a_models_rows_do_not_depend_on_software():
    table = tables.parse(text(rows=[DATA["rows"][1]]), "t.json")
    assert table.misfits(MI300A, {}) == []


def test_constants_have_no_times_and_those_that_were_fitted_are_their_softwares():
    untimed = {"key": ["constant"], "columns": ["constant", "value", "basis"]}
    rows = [["hbm_tb_s", 3.1, "fitted"], ["overlap", 1.99, "model"]]
    with pytest.raises(UserError, match="hold basis, us, stock_us"):
        tables.parse(text(**untimed, rows=rows), "t.json")
    table = tables.parse(text(op=tables.CONSTANTS, **untimed, rows=rows), "t.json")
    assert [row["value"] for row in table.rows.values()] == [3.1, 1.99]
    assert table.misfits(MI300A, {**DATA["software"], "rocm": "7.0.1"}) == [
        "rocm: table '7.0.0', here '7.0.1'"
    ]
    rows[0][-1] = "guessed"
    with pytest.raises(UserError, match="basis 'guessed'"):
        tables.parse(text(op=tables.CONSTANTS, **untimed, rows=rows), "t.json")


def misspelled(folder: Path) -> list[str]:
    """Tables below a folder that are not in canonical spelling; each must load."""
    paths = sorted(folder.rglob("*.json"))
    return [str(p) for p in paths if tables.render(tables.load(p)) != p.read_text("utf-8")]


def test_every_shipped_table_loads_and_is_spelled_canonically(tmp_path):
    assert misspelled(shipped.tuning_tables()) == []
    (tmp_path / "t.json").write_text(text())
    assert misspelled(tmp_path) == [str(tmp_path / "t.json")]
