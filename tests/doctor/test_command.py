"""``sglang-mi300a doctor``: its words, its exit codes, and what it leaves alone."""

import getpass
import json

import pytest

from sglang_mi300a.cli.main import main
from sglang_mi300a.doctor import fixing, memory, record
from sglang_mi300a.doctor.judging import Finding
from tests import repository
from tests.doctor import recorded


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_MI300A_STATE_DIR", str(tmp_path / "state"))


def pair(tmp_path, finding):
    """Return two files: a machine that has the finding and one that does not."""
    case = next(case for case in recorded.cases() if case.finding == finding)
    paths = []
    for triggering in (True, False):
        path = tmp_path / f"{triggering}.json"
        path.write_text(json.dumps(case.data(triggering=triggering)))
        paths.append(path)
    return paths


def test_a_healthy_record_ends_with_0_and_says_what_was_not_wrong(capsys):
    assert main(["doctor", "--fixture", str(recorded.HEALTHY)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 x AMD Instinct MI300A (gfx942); Python 3.10.12; sglang 0.5.18;")
    assert "\nAITER's locks: pid and host (a source not known by its digest, no file)\n" in out
    assert out.endswith("found: 2 note\n")


@pytest.mark.parametrize(
    ("finding", "word"), [("numa-balancing", "RISKS"), ("partitioned", "BREAKS")]
)
def test_a_record_with_a_finding_ends_with_1_and_its_cure(capsys, tmp_path, finding, word):
    bad, good = pair(tmp_path, finding)
    assert main(["doctor", "--fixture", str(bad)]) == 1
    out = capsys.readouterr().out
    assert f"{word}  {finding}" in out.replace("RISKS   ", "RISKS  ")
    assert "    do    sudo " in out
    assert f"    more  docs/findings.md#{finding}" in out
    assert main(["doctor", "--fixture", str(good)]) == 0


def test_json_holds_findings_and_facts(capsys, tmp_path):
    bad, _ = pair(tmp_path, "numa-balancing")
    assert main(["doctor", "--fixture", str(bad), "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    found = {one["id"]: one for one in body["findings"]}
    assert found["numa-balancing"]["cure"] == "sudo sysctl kernel.numa_balancing=0"
    assert record.parse(json.dumps(body["facts"]), "out").memory.numa_balancing > 0


def test_this_machine_has_no_gfx942_and_is_told_what_to_do(capsys, tmp_path):
    assert main(["doctor", "--record", str(tmp_path / "record.json")]) == 1
    out = capsys.readouterr().out
    assert "BREAKS  no-gfx942\n    seen  no gfx942 here: " in out
    assert "sglang-mi300a demo" in out
    assert "not looked at: the model (--model DIR)" in out
    assert main(["doctor", "--fixture", str(tmp_path / "record.json")]) == 1
    assert "BREAKS  no-gfx942" in capsys.readouterr().out
    assert not (tmp_path / "state").exists()


def test_places_are_shown_where_they_really_are(capsys, tmp_path, monkeypatch):
    model = tmp_path / "model"
    model.mkdir()
    assert main(["doctor", "--model", str(model)]) == 1
    out = capsys.readouterr().out
    assert f"seen  {model}/config.json: not readable" in out
    assert f"sglang-mi300a artifact verify {model}" in out


def test_a_record_of_a_future_version_ends_with_2(capsys, tmp_path):
    path = tmp_path / "future.json"
    path.write_text(json.dumps({**recorded.healthy_data(), "schema": 2}))
    assert main(["doctor", "--fixture", str(path)]) == 2
    assert "found schema 2; supported: schema 1" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--fix"], ["--model", "x"], ["--record", "x"], ["--probe"]])
def test_a_record_is_judged_as_it_is(capsys, flag):
    assert main(["doctor", "--fixture", str(recorded.HEALTHY), *flag]) == 2
    assert "--fixture too" in capsys.readouterr().err


def test_a_record_that_cannot_be_written_ends_with_2(capsys, tmp_path):
    assert main(["doctor", "--record", str(tmp_path / "none" / "record.json")]) == 2
    assert "not writable" in capsys.readouterr().err


def test_what_cannot_be_looked_at_is_told_and_stops_nothing_else(capsys, monkeypatch):
    def broken(*arguments, **options):
        raise ValueError("an unknown line")

    monkeypatch.setattr(memory, "gather", broken)
    monkeypatch.setattr(getpass, "getuser", lambda: {}["nobody"])
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "RISKS   not-looked-at\n    seen  memory: ValueError: an unknown line" in out
    assert "BREAKS  no-gfx942" in out


def finding(name):
    return Finding(name, "risks", "seen", "why", "cure", "docs")


def test_fixing_does_only_what_is_safe_and_says_so(tmp_path):
    (tmp_path / "weights.safetensors").write_bytes(b"0" * 4096)
    done = fixing.fix([finding("page-cache-holds-memory")], {"model": tmp_path})
    assert done == [
        "wrote back what was waiting for the disk (sync)",
        f"dropped the page cache of 1 files below {tmp_path}",
    ]
    assert (tmp_path / "weights.safetensors").read_bytes() == b"0" * 4096


def test_where_nothing_can_be_fixed_that_is_said(capsys):
    assert main(["doctor", "--fix"]) == 1
    assert "fixed: nothing: what was found is not safe" in capsys.readouterr().out


def test_fixing_leaves_locks_tables_and_everything_else_alone(tmp_path):
    others = [
        finding(case.finding) for case in recorded.cases() if case.finding not in fixing.CAN_FIX
    ]
    (tmp_path / "lock").touch()
    assert fixing.fix(others, {"model": tmp_path, "jit-cache": tmp_path}) == []
    assert (tmp_path / "lock").exists()


def test_what_can_be_fixed_is_known_as_a_finding():
    assert set(fixing.CAN_FIX) <= {case.finding for case in recorded.cases()}


def test_the_committed_speed_is_of_these_findings_and_under_three_seconds():
    result = json.loads((repository.ROOT / "benchmarks/results/doctor_speed.json").read_text())
    assert result["median_s"]["doctor_on_the_healthy_record"] < 3
    assert result["evidence"] == "E0"
    assert set(result["median_s"]) == set(result["median_cpu_s"])
