"""`sglang-mi300a tables`: from a result file to an applied table and back."""

import json

import pytest

from sglang_mi300a import device, shipped, tables
from sglang_mi300a.cli.main import main
from sglang_mi300a.cli.one_file_tables import CONSTANTS
from sglang_mi300a.device import Accelerator
from sglang_mi300a.gemm import aiter_csv, live_stack, staging, tunableop_csv, tuned_table
from sglang_mi300a.moe import tile_choice
from tests.gemm.sample_tables import DEVICE, constants, table
from tests.gemm.standin_tunableop import STACK
from tests.pools.plan import models


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_MI300A_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "tunableop_results0.csv"
    path.write_text(tunableop_csv.render(table()))
    return path


@pytest.fixture
def node(monkeypatch):
    """A node of four MI300A whose software can be chosen."""
    found = [Accelerator(n, "AMD Instinct MI300A", "gfx942", 228, True, n) for n in range(4)]
    monkeypatch.setattr(device, "accelerators", lambda *_: found)
    stack = dict(STACK)
    monkeypatch.setattr(live_stack, "read_here", lambda: (stack, ""))
    return stack


def test_an_imported_file_is_applied_shown_and_removed(state, csv, node, capsys):
    assert main(["tables", "import", str(csv)]) == 0
    assert main(["tables", "apply"]) == 0
    assert "applied: " in capsys.readouterr().out
    applied = staging.current(state / "tables")
    assert applied.num_ordinals == 4
    assert applied.table.software == STACK
    assert main(["tables", "check", "--model", str(models.REAL)]) == 0
    checked = capsys.readouterr().out
    assert "fits this machine" in checked
    assert "covers 3 of " in checked
    assert "lacks 62080 x 4096 at M 1, 2, 3" in checked
    assert main(["tables", "show"]) == 0
    assert "512 x 4096     16" in capsys.readouterr().out
    assert main(["tables", "list"]) == 0
    assert "applied    gemm_bf16" in capsys.readouterr().out
    assert main(["tables", "remove", "gemm"]) == 0
    assert staging.current(state / "tables") is None


def test_a_dry_run_writes_nothing(state, csv, capsys):
    assert main(["tables", "import", str(csv), "--dry-run"]) == 0
    assert not state.exists()
    path = csv.with_name("table.json")
    path.write_text(tables.render(table()))
    assert main(["tables", "apply", str(path), "--dry-run", "--devices", "2"]) == 0
    out = capsys.readouterr().out
    assert "tunableop1.csv" in out
    assert "tunableop2.csv" not in out
    assert not state.exists()


@pytest.mark.parametrize("name", STACK)
def test_a_table_of_other_software_is_not_applied(state, csv, node, capsys, name):
    node[name] += "x"
    main(["tables", "import", str(csv)])
    assert main(["tables", "apply"]) == 2
    assert f"{name}: table" in capsys.readouterr().err
    assert staging.current(state / "tables") is None


def test_a_table_for_304_compute_units_is_not_applied(state, node, tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_text(tables.render(table(device={**DEVICE, "visible_cus": 304})))
    assert main(["tables", "apply", str(path)]) == 2
    assert "visible_cus: table 304, here 228" in capsys.readouterr().err
    assert staging.current(state / "tables") is None


def test_an_applied_table_that_fits_no_more_is_judged_against(state, csv, node, capsys):
    main(["tables", "import", str(csv)])
    main(["tables", "apply"])
    node["ROCM_VERSION"] = "7.1.0"
    assert main(["tables", "check"]) == 1
    assert "does not fit: ROCM_VERSION" in capsys.readouterr().out


def test_an_aiter_file_needs_to_be_told_its_software(state, csv, tmp_path, capsys):
    path = tmp_path / "bf16_tuned_gemm.csv"
    path.write_text(aiter_csv.render(table()))
    assert main(["tables", "import", str(path)]) == 2
    assert "names no software" in capsys.readouterr().err
    assert main(["tables", "import", str(path), "--stamp", str(csv)]) == 0
    made = tuned_table.read((state / "tuned/imported-bf16_tuned_gemm.json").read_text(), "")
    assert made.software == STACK
    assert main(["tables", "import", str(path), "--made-here"]) == 2
    assert "--made-here: found torch" in capsys.readouterr().err


def test_a_file_of_another_architecture_is_refused(csv, state, capsys):
    csv.write_text(csv.read_text().replace("gfx942:", "gfx950:"))
    assert main(["tables", "import", str(csv)]) == 2
    assert "found GCN_ARCH_NAME gfx950" in capsys.readouterr().err


def test_with_nothing_applied_the_next_command_is_named(state, capsys):
    assert main(["tables", "check"]) == 2
    assert "sglang-mi300a tune gemm" in capsys.readouterr().err
    assert main(["tables", "apply"]) == 2
    assert "sglang-mi300a tune gemm" in capsys.readouterr().err
    assert main(["tables", "list"]) == 0
    assert "no gemm table is applied" in capsys.readouterr().out
    assert main(["tables", "remove", "gemm"]) == 0


def test_without_an_accelerator_it_is_said_what_was_not_compared(state, csv, capsys):
    main(["tables", "import", str(csv)])
    assert main(["tables", "apply"]) == 0
    out = capsys.readouterr().out
    assert "not compared here, but at every start: device" in out
    assert "not compared here, but at every start: software" in out


def test_a_list_for_machines(state, csv, capsys):
    main(["tables", "import", str(csv)])
    capsys.readouterr()
    assert main(["tables", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert ("made here", "gemm_bf16", 3) in [(r["where"], r["op"], r["rows"]) for r in rows]


EXPERTS = shipped.tuning_tables() / "moe/expert_layer.json"


def test_the_expert_layers_table_goes_the_same_way(state, node, capsys):
    assert main(["tables", "check", "moe"]) == 2
    assert "the shipped table serves" in capsys.readouterr().err
    assert main(["tables", "check", str(EXPERTS)]) == 0
    assert "fits this machine" in capsys.readouterr().out
    assert main(["tables", "apply", str(EXPERTS), "--dry-run"]) == 0
    assert not state.exists()
    assert main(["tables", "apply", str(EXPERTS)]) == 0
    assert tables.load(tile_choice.measured_path()) == tables.load(EXPERTS)
    capsys.readouterr()
    assert main(["tables", "show", "moe"]) == 0
    assert "gate_up_groups" in capsys.readouterr().out
    assert main(["tables", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert ("applied", "moe_expert_layer") in [(row["where"], row["op"]) for row in rows]
    assert main(["tables", "remove", "moe", "--dry-run"]) == 0
    assert main(["tables", "remove", "moe"]) == 0
    assert not tile_choice.measured_path().exists()


def test_an_expert_table_of_another_device_is_not_applied(state, node, tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_text(EXPERTS.read_text().replace('"visible_cus": 228', '"visible_cus": 304'))
    assert main(["tables", "apply", str(path)]) == 2
    assert "visible_cus: table 304, here 228" in capsys.readouterr().err


def test_a_table_of_no_known_operation_is_refused(state, tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_text(EXPERTS.read_text().replace("moe_expert_layer", "moe_other"))
    assert main(["tables", "check", str(path)]) == 2
    assert "operation moe_other" in capsys.readouterr().err


def written(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    return str(path)


def test_the_constants_of_a_refit_go_the_same_way(state, node, tmp_path, capsys):
    assert main(["tables", "check", "constants"]) == 2
    assert "by its shipped constants" in capsys.readouterr().err
    path = written(tmp_path, tables.render(constants()))
    assert main(["tables", "apply", path, "--dry-run"]) == 0
    assert not state.exists()
    assert main(["tables", "apply", path]) == 0
    assert CONSTANTS.applied()[0] == constants()
    assert main(["tables", "check", "constants"]) == 0
    assert "fits this machine" in capsys.readouterr().out
    assert main(["tables", "show", "constants"]) == 0
    assert "hbm_tb_s  1.6  3.5  0.01  fitted" in capsys.readouterr().out
    assert main(["tables", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert ("applied", "cost_model") in [(row["where"], row["op"]) for row in rows]
    assert main(["tables", "remove", "constants", "--dry-run"]) == 0
    assert main(["tables", "remove", "constants"]) == 0
    assert CONSTANTS.applied() is None


def with_value(name, value):
    """The constants with one value changed."""
    fitted = constants()
    return constants(rows={**fitted.rows, (name,): {**fitted.rows[name,], "value": value}})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: constants(software={"kernels": "0" * 16}),
            "kernels: table '0000000000000000', here",
        ),
        (
            lambda: constants(device={**DEVICE, "visible_cus": 304}),
            "visible_cus: table 304, here 228",
        ),
        (lambda: with_value("hbm_tb_s", 3.1), "constants of a model"),
        (lambda: with_value("hbm_tb_s", 9.9), "hbm_tb_s: found 9.9; supported: 1.5 to 5.3"),
        (lambda: with_value("overlap", float("nan")), "overlap: found nan"),
        (lambda: with_value("overlap", "2"), "overlap: found '2'"),
        (lambda: with_value("start_us", True), "start_us: found True"),
        (lambda: with_value("start_us", None), "start_us: found None"),
        (lambda: constants(rows={}), "found constants "),
        (
            lambda: constants(columns=("constant", "value", "basis")),
            "operation cost_model, columns",
        ),
    ],
)
def test_constants_that_are_not_of_this_machine_and_model_are_not_applied(
    state, node, tmp_path, capsys, make, message
):
    assert main(["tables", "apply", written(tmp_path, tables.render(make()))]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "sglang-mi300a report ingest" in err
    assert not CONSTANTS.destination().exists()
