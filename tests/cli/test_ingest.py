"""`sglang-mi300a report ingest`: what measured times do to predictions, and which are refused."""

import dataclasses
import json
import math
from dataclasses import replace

import pytest

from sglang_mi300a import code_objects, fitted_constants, reports, shipped, tables
from sglang_mi300a.cli.main import main
from sglang_mi300a.cli.one_file_tables import CONSTANTS, EXPERTS
from sglang_mi300a.cost_model import MACHINE
from sglang_mi300a.gemm import tuned_table
from sglang_mi300a.gemm.kernels import catalogue
from sglang_mi300a.gemm.kernels import prediction as products
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuned_table import Choice
from sglang_mi300a.moe import tile_choice
from sglang_mi300a.moe.kernels import candidates, measured, prediction
from tests import repository
from tests.doctor import recorded
from tests.gemm.sample_tables import DEVICE
from tests.gemm.standin_tunableop import STACK
from tests.moe.kernels.test_measured import as_measured

OTHER = replace(MACHINE, hbm_tb_s=3.05, overlap=1.6, scattered_clk=2.9, start_us=4.0)
TOKENS = (1, 8, 16, 64, 256, 1024, 2048)


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_MI300A_STATE_DIR", str(tmp_path / "state"))


def layers(factor=1.0, machine=MACHINE, samples=20, **change):
    """A table as `tune moe` writes it, its times made by a machine."""
    table = as_measured(tables.load(tile_choice.shipped_path()))
    rows = measured.of_table(table, prediction.shipped_counts(), "here")
    us = {row.num_tokens: row.predict(machine) * factor for row in rows}
    made = replace(
        table,
        software=tile_choice.software(),
        made={"by": "sglang-mi300a tune moe", "date": "2026-01-31", "samples": samples},
        rows={key: {**row, "us": us[row["m"]]} for key, row in table.rows.items()},
    )
    return json.loads(tables.render(dataclasses.replace(made, **change)))


def parts(machine=MACHINE, **change):
    """What `kernels bench --json` prints on a machine."""
    shape = next(one for one in prediction.SHAPES if one.name == "TP4")
    batches = []
    for num_tokens in TOKENS:
        for tile in candidates.TILES:
            work = prediction.routing(num_tokens, tile, shape)
            us = {
                part: prediction.part_us(
                    part, work, "subnormals", shape.inner, prediction.shipped_counts(), machine
                )
                for part in prediction.PARTS
            }
            us |= {"sort": 4.0, "sum_slots": 11.0}
            batches.append({"num_tokens": num_tokens, "tile": tile, "measured_us": us})
    return {
        "device": "cuda:0", "shape": "TP4", "weights": "subnormals", "samples": 20,
        "batches": batches, "answers": [], **change,
    }  # fmt: skip


def dense(factor, **made):
    """A table as `tune gemm` writes it, one product of ours and one of the library's."""
    kernel = catalogue.that_take(5120, 4096)[0]
    us = products.predict(kernel, products.shipped_counts()[kernel.name], 16, 5120, 4096).us
    table = tuned_table.make(
        {
            Cell(5120, 4096, 16): Choice(
                "kernel", f"kernel/{kernel.name}", "measured", us * factor, 1e6
            ),
            Cell(512, 4096, 16): Choice("library", "Gemm_Rocblas_12", "measured", 8.1, 133.0),
        },
        device=DEVICE,
        validators=STACK,
        made={
            "by": "t", "date": "2026-01-31", "samples": 30, "kernels": catalogue.build(), **made
        },
    )  # fmt: skip
    return json.loads(tables.render(table))


def healthy(**device):
    """A node's facts; ``device`` changes its last accelerator."""
    facts = json.loads(recorded.HEALTHY.read_text())
    facts["devices"]["found"][-1].update(device)
    return facts


@pytest.fixture
def report(tmp_path):
    """Write a report with these results, and other things otherwise."""

    def write(*results, name="theirs.json", **change):
        data = {
            "kind": reports.KIND,
            "schema": reports.SCHEMA,
            "made_with": "0.1.0",
            "level": "E4",
            "facts": healthy(),
            "findings": [],
            "kernels": {r: {"sha256": code_objects.load(r).digest} for r in ("moe", "gemm")},
            **dict.fromkeys(reports.OPTIONAL),
            "bench": [{"name": f"r{i}", "result": one} for i, one in enumerate(results)],
            "left_out": {name: "not run" for name in reports.OPTIONAL if name != "bench"},
            **change,
        }
        path = tmp_path / name
        path.write_text(json.dumps(data))
        return path

    return write


@pytest.fixture
def ingest(capsys):
    def call(*arguments):
        code = main(["report", "ingest", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in arguments else out, err

    return call


# -- what measured times do ------------------------------------------------------------------------


def test_constants_that_made_a_report_are_found_again_with_the_choices_that_follow(
    report, ingest, tmp_path
):
    before = {p: p.read_bytes() for p in shipped.tuning_tables().rglob("*") if p.is_file()}
    out = tmp_path / "mine"
    _, said, _ = ingest(report(layers(machine=OTHER), parts(OTHER)), "--out", out, "--json")
    for name in ("hbm_tb_s", "overlap", "scattered_clk", "start_us"):
        assert said["constants"][name] == pytest.approx(getattr(OTHER, name), rel=0.01)
    assert said["rms_after"] < 0.002 < said["rms_before"]
    constants = fitted_constants.checked(tables.load(out / fitted_constants.FILE), "here")
    assert fitted_constants.values(constants) == said["constants"]
    assert {row["basis"] for row in constants.rows.values()} == {"fitted"}
    assert constants.made["shipped_model"] == MACHINE.digest
    assert constants.software == {"kernels": catalogue.build()}
    table = tables.load(out / candidates.FILE)
    assert table.made["model"] == constants.made["model"] != MACHINE.digest
    fitted = fitted_constants.machine(said["constants"])
    assert table == candidates.modelled(
        prediction.shipped_counts(), "sglang-mi300a report ingest", fitted
    )
    assert table.rows != tables.load(tile_choice.shipped_path()).rows
    assert before == {p: p.read_bytes() for p in shipped.tuning_tables().rglob("*") if p.is_file()}


def test_the_last_line_typed_applies_all_that_follows_from_a_refit(report, ingest, tmp_path):
    out = tmp_path / "mine"
    _, said, _ = ingest(report(layers(machine=OTHER), parts(OTHER)), "--out", out)
    head, _, commands = said.splitlines()[-1].partition(": ")
    assert head == "to serve by these choices"
    for command in commands.split(" && "):
        assert main(command.split()[1:]) == 0
    for kind, name in ((CONSTANTS, fitted_constants.FILE), (EXPERTS, candidates.FILE)):
        assert kind.applied()[0] == tables.load(out / name)


def test_a_constant_that_is_held_is_the_shipped_models_in_the_table(report, ingest, tmp_path):
    _, said, _ = ingest(report(layers(machine=OTHER)), "--out", tmp_path, "--json")
    assert said["held"]
    rows = tables.load(tmp_path / fitted_constants.FILE).rows
    for name in said["held"]:
        held = rows[name,]
        assert (held["basis"], held["standard_error"]) == ("model", None)
        assert held["value"] == held["shipped"] == getattr(MACHINE, name)


def test_times_as_predicted_stand_at_e4_and_what_is_not_measured_does_not(report, ingest, tmp_path):
    code, said, _ = ingest(report(layers(1.1), dense(1.2)))
    assert code == 0
    assert "expert layer TP4 subnormals" in said
    assert "stands, at E4: 29 of 29 inside the band" in said
    assert "stands, at E4: 1 of 1 inside the band" in said
    still = said.split("so still at E3: ")[1].splitlines()[0].split(", ")
    assert "expert layer EP4" in still
    assert "checkpoint TP4" in still
    assert "expert layer TP4" not in still
    assert "dense product" not in still
    assert (tmp_path / "state/refits/constants.json").is_file()
    assert "residuals: root mean square" in said


def test_times_outside_the_band_do_not_stand_and_end_with_1(report, ingest):
    code, said, _ = ingest(report(layers(1.35)), "--json")
    (claim,) = said["claims"]
    assert (code, claim["level"], claim["stands"]) == (1, "E3", False)
    assert sum(row["inside"] for row in claim["times"]) == 4
    assert {row["ratio"] for row in claim["times"]} == {1.35}
    code, said, _ = ingest(report(dense(1.4)))
    assert (code, said.count("outside the band")) == (1, 1)


def test_several_reports_are_one_body_of_times(report, ingest):
    one = report(layers(machine=OTHER), name="one.json")
    two = report(parts(OTHER), name="two.json")
    _, said, _ = ingest(one, two, "--json")
    assert len(said["claims"]) == 1 + len(prediction.PARTS)
    assert said["held"] == []
    assert ingest(one, one)[0] == 2


def test_few_times_are_compared_and_fit_nothing(report, ingest, tmp_path):
    code, said, _ = ingest(report(dense(1.0)))
    assert (code, "no refit: fewer than 12 times" in said) == (0, True)
    assert not (tmp_path / "state").exists()


def test_results_that_the_model_does_not_predict_are_said(report, ingest):
    _, said, _ = ingest(report(layers(), {"tokens_per_s": 900.5}))
    assert "r1: no times that the model predicts" in said


# -- refusals --------------------------------------------------------------------------------------

NO_DEVICE = {**healthy(), "devices": {"found": []}}


def not_finite(value):
    result = parts()
    result["batches"][0]["measured_us"]["down"] = value
    return result


@pytest.mark.parametrize(
    ("results", "change", "message"),
    [
        ([layers], {"schema": 2}, "schema 2"),
        ([layers], {"level": "E0", "facts": NO_DEVICE}, "nothing in it was measured on an MI300A"),
        (
            [layers],
            {"facts": healthy(name="AMD Instinct MI300X", is_apu=False, num_visible_cus=304)},
            "AMD Instinct MI300X: gfx942 with 304 compute units",
        ),
        ([layers], {"facts": healthy(num_visible_cus=38)}, "gfx942 with 38 compute units"),
        ([layers], {"facts": healthy(arch="gfx90a")}, "gfx90a with 228 compute units"),
        ([layers], {"kernels": {}}, "moe kernels None"),
        ([parts], {"kernels": {"moe": {"sha256": "0" * 64}}}, "moe kernels 000000000000"),
        ([lambda: dense(1.0)], {"kernels": {}}, "gemm kernels None"),
        ([lambda: dense(1.0, kernels="0" * 16)], {}, "times of kernels 0000000000000000"),
        ([lambda: layers(software={})], {}, "times of kernels None"),
        ([lambda: layers(device={**DEVICE, "visible_cus": 304})], {}, "with 304 compute units"),
        ([lambda: parts(device="cpu")], {}, "device 'cpu', a stand-in"),
        ([lambda: not_finite(math.nan)], {}, "M 1, down: found nan us"),
        ([lambda: not_finite(math.inf)], {}, "M 1, down: found inf us"),
        ([lambda: not_finite(-1.0)], {}, "found -1.0 us"),
        ([lambda: not_finite("fast")], {}, "found 'fast' us"),
        ([lambda: parts(samples=4)], {}, "found 4 samples"),
        ([lambda: layers(samples=3)], {}, "found 3 samples"),
        ([lambda: parts(shape="tiny")], {}, "kernels and shapes that this version ships"),
        ([lambda: parts(batches=[{}])], {}, "kernels and shapes that this version ships"),
        ([], {}, "no measured times among 0 results"),
        ([dict], {}, "no measured times among 1 results"),
    ],
)
def test_a_report_that_is_not_fit_is_refused_by_name(
    report, ingest, tmp_path, results, change, message
):
    good = report(layers(), name="good.json")
    bad = report(*(make() for make in results), **change)
    code, said, err = ingest(good, bad)
    assert (code, said) == (2, "")
    assert message in err
    assert str(bad) in err
    assert not (tmp_path / "state").exists()


def test_nothing_is_written_into_the_package(report, ingest):
    for folder in (shipped.tuning_tables() / "moe", repository.ROOT / "sglang_mi300a/mine"):
        code, _, err = ingest(report(layers()), "--out", folder)
        assert (code, "a folder of the installed package" in err) == (2, True)


def test_no_file_or_no_report_is_refused(ingest, tmp_path):
    assert ingest()[0] == 2
    assert ingest(tmp_path / "none.json")[0] == 2
