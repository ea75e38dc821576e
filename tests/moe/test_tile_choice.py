"""Tile and grid of a batch: what the shipped table says, and which table is asked."""

import importlib.util
from dataclasses import replace

import pytest

from sglang_mi300a import device, tables
from sglang_mi300a.cost_model import MACHINE
from sglang_mi300a.moe import tile_choice
from sglang_mi300a.moe.kernels import candidates, catalogue, prediction
from sglang_mi300a.moe.tile_choice import Choice
from tests import repository

MI300A = device.Accelerator(0, "AMD Instinct MI300A", "gfx942", 228, True, 0)
TP4 = {"top_k": 10, "experts": 512, "inner": 256, "weights": "subnormals"}


@pytest.fixture(scope="module")
def table():
    return tables.load(tile_choice.shipped_path())


@pytest.fixture(scope="module")
def generator():
    path = repository.ROOT / "tools/generate_tuning_tables.py"
    spec = importlib.util.spec_from_file_location("generate_tuning_tables", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def measured(tmp_path, table):
    """Write a measured table of one row a batch; return its path and a function that changes it."""
    path = tmp_path / candidates.FILE

    def write(**change):
        row = dict(table.rows[512, 256, "subnormals", 64])
        row |= {
            "tile": 32,
            "gate_up_groups": 1,
            "basis": "measured",
            "us": 200.0,
            "stock_us": 900.0,
        }
        rows = {(512, 256, "subnormals", 64): row}
        made = replace(table, rows=rows, software=tile_choice.software(), made={"by": "a test"})
        path.write_text(tables.render(replace(made, **change)))

    write()
    return path, write


def test_the_shipped_files_are_what_the_generator_makes_of_the_committed_counts(generator):
    assert tile_choice.shipped_path().parent == generator.FOLDER
    for name, text in generator.texts().items():
        assert (generator.FOLDER / name).read_text() == text


def test_the_shipped_counts_are_read_back_as_they_were():
    counts = prediction.shipped_counts()
    kernels = (*catalogue.MATRIX_KERNELS, *catalogue.TIMED_KERNELS)
    assert list(counts) == [kernel.name for kernel in kernels]
    committed = (tile_choice.shipped_path().parent / prediction.COUNTS_FILE).read_text()
    assert prediction.counts_text(counts) == committed


def test_it_has_a_row_for_every_shape_format_and_batch(table):
    shapes = {(shape.experts, shape.inner) for shape in prediction.SHAPES}
    wanted = {
        (experts, inner, weights, tokens)
        for experts, inner in shapes
        for weights in catalogue.WEIGHT_FORMATS
        for tokens in candidates.TOKENS
    }
    assert set(table.rows) == wanted
    assert {row["basis"] for row in table.rows.values()} == {"model"}
    assert table.made["model"] == MACHINE.digest


def test_every_row_is_a_launch_that_fits_the_device(table):
    for (_, inner, weights, _), row in table.rows.items():
        for op in ("gate_up", "down"):
            kernel = catalogue.matrix_kernel(op, weights, row["tile"], inner)
            assert 1 <= row[f"{op}_groups"] <= kernel.workgroups_per_cu


def test_small_batches_get_the_small_tile_and_large_ones_the_large(table):
    choose = tile_choice.Chooser((table,)).choose
    assert choose(1, **TP4) == Choice(16, 2, 2, "model")
    assert choose(640, **TP4).tile == 16
    assert choose(641, **TP4) == choose(704, **TP4) == Choice(32, 1, 3, "model")
    assert choose(100_000, **TP4).tile == 32


def test_whole_experts_have_rows_of_their_own(table):
    choose = tile_choice.Chooser((table,)).choose
    at = {"top_k": 10, "experts": 128, "inner": 1024, "weights": "subnormals"}
    assert choose(16, **at).tile == 16
    row = table.rows[128, 1024, "subnormals", 2048]
    assert choose(2048, **at) == Choice(
        row["tile"], row["gate_up_groups"], row["down_groups"], "model"
    )


def test_sizes_without_rows_are_served_by_how_many_rows_their_experts_get(table):
    choose = tile_choice.Chooser((table,)).choose
    few = {"top_k": 2, "experts": 4, "inner": 256, "weights": "subnormals"}
    assert choose(8, **few) == choose(205, **TP4)  # four rows an expert
    assert choose(650, **few).tile == 32


def test_a_table_measured_here_comes_first(measured):
    found = tile_choice.chooser(measured[0], [MI300A])
    assert found.refused == ()
    assert found.choose(3, **TP4) == Choice(32, 1, 2, "measured")
    other = {**TP4, "weights": "bf8"}
    assert found.choose(3, **other).basis == "model"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"device": {**candidates.DEVICE, "visible_cus": 114}}, "visible_cus: table 114, here 228"),
        (
            {"software": {"code_object": "0123456789abcdef"}},
            "code_object: table '0123456789abcdef'",
        ),
        ({"op": "moe_stage1"}, "op moe_stage1"),
    ],
)
def test_a_table_for_something_else_is_refused_and_said(measured, change, why):
    path, write = measured
    write(**change)
    found = tile_choice.chooser(path, [MI300A])
    assert [one.made["by"] for one in found.tables] == ["python tools/generate_tuning_tables.py"]
    assert len(found.refused) == 1
    assert why in found.refused[0]
    assert str(path) in found.refused[0]


def test_a_damaged_table_is_refused_and_said(measured):
    path, _ = measured
    path.write_text(path.read_text()[:-9])
    found = tile_choice.chooser(path, [MI300A])
    assert "no JSON" in found.refused[0]
    assert found.choose(3, **TP4).basis == "model"


def test_another_gfx942_is_served_and_said(measured):
    larger = replace(MI300A, name="AMD Instinct MI300X", num_visible_cus=304)
    found = tile_choice.chooser(measured[0].parent / "none.json", [larger])
    assert [line.rpartition(": ")[2] for line in found.refused] == [
        "table 'AMD Instinct MI300A', here 'AMD Instinct MI300X'; used all the same",
        "table 228, here 304; used all the same",
    ]
    assert found.choose(16, **TP4).tile == 16


def test_a_machine_without_accelerators_uses_the_shipped_table(measured):
    found = tile_choice.chooser(measured[0], [])
    assert found.refused == ()
    assert found.choose(3, **TP4).basis == "model"
