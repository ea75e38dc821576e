"""Result files of TunableOp and AITER: rendered from a table, read back, and every defect named."""

import json

import pytest

from sglang_mi300a import tables
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import aiter_csv, tunableop_csv, tuned_table
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuned_table import VALIDATORS, Choice
from tests.gemm.sample_tables import DEVICE, MADE, ROWS, table
from tests.gemm.standin_tunableop import STACK

GFX942 = {"arch": "gfx942", "visible_cus": 228}


def tunableop_text():
    return tunableop_csv.render(table())


def read_tunableop(text, where="t.csv"):
    return tunableop_csv.parse(text.encode() if isinstance(text, str) else text, where)


def test_tunableops_file_has_the_five_validators_then_its_rows_in_milliseconds():
    assert tunableop_text().splitlines() == [
        *(f"Validator,{name},{value}" for name, value in STACK.items()),
        "GemmTunableOp_BFloat16_TN,tn_32_4_4096_ld_4096_4096_32,Gemm_Rocblas_7,0.0075",
        "GemmTunableOp_BFloat16_TN,tn_512_16_4096_ld_4096_4096_512,Gemm_Rocblas_12,0.0081",
        "GemmTunableOp_BFloat16_TN,tn_512_64_4096_ld_4096_4096_512,Gemm_Hipblaslt_3,0.0105",
    ]
    assert tunableop_text().endswith("\n")


def test_what_is_rendered_is_read_back():
    read = read_tunableop(tunableop_text())
    assert read.validators == STACK
    assert {cell: (one.solution, one.us) for cell, one in read.rows.items()} == {
        cell: (one.solution, one.us) for cell, one in ROWS.items() if one.by_tunableop
    }


def test_tunableops_own_order_and_other_operations_are_no_fault():
    head, rows = tunableop_text().splitlines()[:5], tunableop_text().splitlines()[5:]
    other = "GemmTunableOp_float_NT,nt_8_8_8_ld_8_8_8,Gemm_Rocblas_1,0.1"
    read = read_tunableop("\n".join([*head, *rows[::-1], other]) + "\n")
    assert set(read.rows) == {cell for cell, one in ROWS.items() if one.by_tunableop}
    assert read.num_of_other_operations == 1


def swapped(text, old, new):
    assert old in text
    return text.replace(old, new, 1)


ROW = "GemmTunableOp_BFloat16_TN,tn_32_4_4096_ld_4096_4096_32,Gemm_Rocblas_7,0.0075\n"
BAD_TUNABLEOP = {
    "CRLF": (lambda t: t.replace("\n", "\r\n"), "line 1: found a carriage return (CRLF"),
    "one CRLF": (lambda t: swapped(t, "0.0075\n", "0.0075\r\n"), "line 6: found a carriage return"),
    "BOM": (lambda t: "\N{BOM}" + t, "a byte-order mark (EF BB BF)"),
    "cut after line 2": (
        lambda t: "".join(t.splitlines(keepends=True)[:2]),
        "no validator HIPBLASLT_VERSION, GCN_ARCH_NAME, ROCBLAS_VERSION (is the file cut?)",
    ),
    "cut inside a line": (lambda t: t[:-5], "a last line without its end"),
    "cut below the validators": (
        lambda t: "".join(t.splitlines(keepends=True)[:5]), "no row of GemmTunableOp_BFloat16_TN",
    ),
    "unknown solution": (
        lambda t: swapped(t, "Gemm_Rocblas_7", "Gemm_Cublas_7"), "line 6: found solution 'Gemm_Cub"
    ),
    "second row": (lambda t: t + ROW, "line 9: found a second row for tn_32_4_4096"),
    "inf": (lambda t: swapped(t, "0.0075", "inf"), "line 6: found time inf"),
    "nan": (lambda t: swapped(t, "0.0075", "nan"), "line 6: found time nan"),
    "negative": (lambda t: swapped(t, "0.0075", "-1"), "line 6: found time -1"),
    "columns reordered": (
        lambda t: swapped(t, "Gemm_Rocblas_7,0.0075", "0.0075,Gemm_Rocblas_7"),
        "line 6: found time 'Gemm_Rocblas_7'; supported: milliseconds in the last of four columns",
    ),
    "no time": (lambda t: swapped(t, "Rocblas_7,0.0075", "Rocblas_7"), "line 6: found 3 fields"),
    "a row of other strides": (
        lambda t: swapped(t, "ld_4096_4096_32", "ld_4096_8192_32"), "line 6: found key"
    ),
    "an unknown validator": (
        lambda t: swapped(t, "PT_VERSION", "TORCH"), "line 1: found validator TORCH"
    ),
    "a validator twice": (
        lambda t: t.splitlines(keepends=True)[0] + t, "line 2: found a second PT_VERSION"
    ),
    "a validator below rows": (
        lambda t: "".join(t.splitlines(keepends=True)[1:]) + t.splitlines(keepends=True)[0],
        "validator PT_VERSION below rows",
    ),
    "an empty version": (
        lambda t: swapped(t, "PT_VERSION,2.9.0", "PT_VERSION,"), "line 1: found Validator,PT_VERS"
    ),
    "another file": (lambda t: "hello\n" + t, "line 1: found 'hello'"),
    "nothing": (lambda t: "\n", "line 1: found ''"),
    "no ASCII": (lambda t: swapped(t, "7.0.0.0", "7.0.0.0\N{EN DASH}"), "byte 0xe2"),
}  # fmt: skip


@pytest.mark.parametrize("defect", BAD_TUNABLEOP)
def test_a_tunableop_file_with_a_defect_is_refused_whole(defect):
    spoil, message = BAD_TUNABLEOP[defect]
    with pytest.raises(UserError) as refusal:
        read_tunableop(spoil(tunableop_text()))
    assert message in str(refusal.value)
    assert "t.csv" in str(refusal.value)


@pytest.mark.parametrize("name", VALIDATORS)
def test_each_missing_validator_is_named(name):
    lines = tunableop_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith(f"Validator,{name},"))
    with pytest.raises(UserError, match=f"no validator {name} "):
        read_tunableop(text)


def aiter_text():
    return aiter_csv.render(table())


def test_aiters_file_names_the_device_and_hands_tunableops_products_to_torch():
    header, *rows = aiter_text().splitlines()
    assert header == ",".join(aiter_csv.COLUMNS)
    assert all(row.startswith("gfx942,228,") for row in rows)
    fields = [dict(zip(aiter_csv.COLUMNS, row.split(","), strict=True)) for row in rows]
    assert [(f["N"], f["K"], f["M"], f["libtype"]) for f in fields] == [
        ("32", "4096", "4", "torch"),
        ("512", "4096", "16", "torch"),
        ("512", "4096", "64", "torch"),
        ("5120", "4096", "256", "asm"),
    ]
    assert (fields[3]["solidx"], fields[3]["splitK"], fields[3]["kernelName"]) == (
        "3", "2", "a_kernel",
    )  # fmt: skip


def test_an_aiter_row_is_read_back():
    read = aiter_csv.parse(aiter_text().encode(), "a.csv", **GFX942)
    assert read[Cell(5120, 4096, 256)].solution == "aiter/asm/3/2/a_kernel"
    assert read[Cell(5120, 4096, 256)].us == 41.0


BAD_AITER = {
    "CRLF": (lambda t: t.replace("\n", "\r\n"), "a carriage return"),
    "BOM": (lambda t: "\N{BOM}" + t, "a byte-order mark"),
    "no us column": (lambda t: swapped(t, ",us,", ",time,"), "line 1: found columns"),
    "no gfx column": (
        lambda t: "".join(x.split(",", 1)[1] for x in t.splitlines(True)), "line 1: found columns"
    ),
    "columns reordered": (lambda t: swapped(t, "M,N,K", "N,M,K"), "line 1: found columns"),
    "row for 304 CUs": (
        lambda t: swapped(t, "gfx942,228,4,", "gfx942,304,4,"),
        "line 2: found a row for gfx942 with 304 CUs; supported: gfx942, 228 CUs",
    ),
    "row for gfx950": (lambda t: swapped(t, "gfx942,228", "gfx950,256"), "a row for gfx950"),
    "second row": (lambda t: t + t.splitlines(True)[1], "line 6: found a second row"),
    "inf": (lambda t: swapped(t, ",7.5,", ",inf,"), "line 2: found us inf"),
    "negative": (lambda t: swapped(t, ",7.5,", ",-7.5,"), "line 2: found us -7.5"),
    "unknown library": (lambda t: swapped(t, ",asm,", ",magic,"), "found libtype 'magic'"),
    "with a bias": (lambda t: swapped(t, "4096,False", "4096,True"), "line 2: found bias True"),
    "a field too few": (lambda t: swapped(t, ",7.5,", ","), "line 2: found 17 fields"),
    "cut inside a line": (lambda t: t[:-2], "a last line without its end"),
    "header alone": (lambda t: t.splitlines(True)[0], "no rows"),
}  # fmt: skip


@pytest.mark.parametrize("defect", BAD_AITER)
def test_an_aiter_file_with_a_defect_is_refused_whole(defect):
    spoil, message = BAD_AITER[defect]
    with pytest.raises(UserError) as refusal:
        aiter_csv.parse(spoil(aiter_text()).encode(), "a.csv", **GFX942)
    assert message in str(refusal.value)


def test_a_table_is_spelled_in_one_way_and_read_back():
    text = tables.render(table())
    assert tuned_table.choices(tuned_table.read(text, "t.json")) == dict(sorted(ROWS.items()))
    assert tables.render(tuned_table.read(text, "t.json")) == text


def data(**changes):
    found = json.loads(tables.render(table()))
    found.update(changes)
    return json.dumps(found)


def rows(change):
    found = json.loads(tables.render(table()))["rows"]
    change(found)
    return found


def set_cell(row, column, value):
    def change(found):
        found[row][column] = value

    return rows(change)


BAD_TABLES = {
    "CRLF": (lambda: data().replace(", ", ",\r\n"), "a carriage return"),
    "BOM": (lambda: "\N{BOM}" + data(), "no JSON (Unexpected UTF-8 BOM"),
    "cut after line 2": (
        lambda: "".join(tables.render(table()).splitlines(keepends=True)[:2]), "no JSON ("
    ),
    "inf": (lambda: data(rows=set_cell(0, 6, float("inf"))), "us inf"),
    "newer": (lambda: data(schema=2), "schema 2; supported: schema 1; do: upgrade sglang-mi300a"),
    "device name empty": (lambda: data(device={**DEVICE, "name": ""}), "none empty"),
    "another operation": (lambda: data(op="moe"), "operation moe"),
    "columns reordered": (
        lambda: data(columns=["n", "k", "m", "solution", "choice", "basis", "us", "stock_us"]),
        "in this order",
    ),
    "a version missing": (
        lambda: data(software={k: v for k, v in STACK.items() if k != "ROCM_VERSION"}),
        "no ROCM_VERSION under software",
    ),
    "no date": (lambda: data(made={"by": "me"}), "when (date)"),
    "no rows": (lambda: data(rows=[]), "no rows"),
    "unsorted": (lambda: data(rows=rows(lambda r: r.reverse())), "unique and sorted"),
    "doubled": (lambda: data(rows=rows(lambda r: r.insert(0, r[0]))), "unique and sorted"),
    "not faster than stock": (lambda: data(rows=set_cell(0, 6, 99.0)), "not faster than stock's"),
    "negative": (lambda: data(rows=set_cell(0, 6, -1)), "us -1"),
    "unknown choice": (lambda: data(rows=set_cell(0, 3, "magic")), "choice 'magic'"),
    "unknown solution": (lambda: data(rows=set_cell(0, 4, "Gemm_X_1")), "solution 'Gemm_X_1'"),
    "a kernel by a library": (
        lambda: data(rows=set_cell(0, 4, "kernel/tile64")), "solution 'kernel/tile64'"
    ),
    "a pair that does not add up": (
        lambda: data(rows=[[96, 256, 4, "kernel", "kernel/a/64+31", "measured", 5.0, 9.0]]),
        "two sizes that add up to n = 96",
    ),
    "a pair of one": (
        lambda: data(rows=[[96, 256, 4, "kernel", "kernel/a/96+0", "measured", 5.0, 9.0]]),
        "two sizes that add up to n = 96",
    ),
    "no size": (lambda: data(rows=set_cell(0, 2, 0)), "whole numbers of at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("defect", BAD_TABLES)
def test_a_table_with_a_defect_is_refused_whole(defect):
    spoil, message = BAD_TABLES[defect]
    with pytest.raises(UserError) as refusal:
        tuned_table.read(spoil(), "t.json")
    assert message in str(refusal.value)


def test_a_row_no_faster_than_stock_cannot_be_made():
    slow = {Cell(8, 8, 8): Choice("library", "Gemm_Rocblas_1", "measured", 5.0, 5.0)}
    with pytest.raises(UserError, match="not faster"):
        tuned_table.make(slow, device=DEVICE, validators=STACK, made=MADE)
