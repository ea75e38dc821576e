"""``sglang-mi300a report``: one file, complete, with nothing private in it."""

import importlib.util
import json

import pytest

from sglang_mi300a import boot_report, reports
from sglang_mi300a.boot_report import RankReport, SeamState
from sglang_mi300a.cli.main import main
from sglang_mi300a.serving import ready
from tests.doctor.test_gathering import made

SECRETS = ("zebulon", "quagga")
STARTED = {
    "timeline": [{"stage": "spawn", "seconds": 1.5}, {"stage": "load: target", "seconds": 40.0}],
    "paths": {"top_k": {"status": "taken"}, "split_kv": {"status": "NOT TAKEN"}},
    "warnings": [f"WARNING: of {SECRETS[1]}"],
}


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_MI300A_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LOGNAME", SECRETS[0])


def start(run_dir):
    """Write what two ranks leave of a start."""
    run_dir.mkdir()
    for rank, live in ((0, True), (1, False)):
        boot_report.write(
            run_dir,
            RankReport(
                rank,
                4242,
                "serving",
                {"moe.quark": SeamState(True, live, 3)},
                facts={"loaded_from": f"/scratch/{SECRETS[0]}/part"},
                reached_s={"plugin": 0.1, "load": 2.5, "serving": 30.25},
            ),
        )
    ready.write(run_dir, STARTED)
    return run_dir


def test_a_bare_report_says_what_is_not_in_it(capsys, tmp_path):
    assert main(["report"]) == 0
    report = reports.parse(capsys.readouterr().out, "out")
    assert report.level == "E0"
    assert report.sections == []
    assert set(report.left_out) == set(reports.OPTIONAL)
    assert "no-gfx942" in [one["id"] for one in report.findings]
    assert len(report.kernels["moe"]["sha256"]) == 64


def test_a_report_holds_the_start_the_tables_and_results(capsys, tmp_path):
    model = made(tmp_path / SECRETS[1])
    (tmp_path / "goodput.json").write_text(
        json.dumps({"model": str(model), "made by": SECRETS[0], "tokens_per_s": 900.5})
    )
    out = tmp_path / "report.json"
    command = [
        "report", "--out", str(out), "--model", str(model), "--tp", "2",
        "--run-dir", str(start(tmp_path / "run")), "--bench", str(tmp_path / "goodput.json"),
    ]  # fmt: skip
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "boot       rank 0 serving after 30.2 s, 1 serving after 30.2 s" in said
    assert "start      ready after 41.5 s, 1 of 2 fast paths taken, 1 warnings" in said
    assert "hooks      0 of 1 live on every rank" in said
    assert said.count("not in it") == 1
    assert "not in it: self_test (no --selftest)" in said
    report = reports.load(out)
    assert report.sections == ["boot", "start", "hooks", "tables", "bench"]
    assert report.boot[0]["reached_s"]["load"] == 2.5
    assert report.tables["gemm"]["covered"] == 0 < report.tables["gemm"]["cells"]
    assert report.bench[0]["result"]["tokens_per_s"] == 900.5
    text = out.read_text()
    for secret in (*SECRETS, str(tmp_path), "4242"):
        assert secret not in text
    assert main(["report", "--show", str(out)]) == 0
    assert capsys.readouterr().out in said.removeprefix(f"{out}: ")


def test_the_self_test_runs_in_a_process_of_its_own(capsys, tmp_path):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    out = tmp_path / "report.json"
    assert main(["report", "--out", str(out), "--selftest"]) == 0
    assert "self-test  hip cannot run, triton cannot run, torch passed" in capsys.readouterr().out
    assert reports.load(out).self_test["status"] == "fine"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--run-dir", "none"], "no rank's report"),
        (["--bench", "none.json"], "not readable as JSON"),
        (["--show", "none.json"], "not readable"),
        (["--out", "none/report.json"], "not writable"),
    ],
)
def test_what_cannot_be_read_or_written_ends_with_2(capsys, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_rank_report_is_named(capsys, tmp_path):
    (tmp_path / "rank-0.json").write_text("{}")
    assert main(["report", "--run-dir", str(tmp_path)]) == 2
    assert "a rank's report that cannot be read" in capsys.readouterr().err
