"""A report is read back as it was; one that is unfit or contradicts itself is refused."""

import json

import pytest

from sglang_mi300a import reports
from sglang_mi300a.errors import UserError
from sglang_mi300a.reports import Report

NOT_RUN = dict.fromkeys(reports.OPTIONAL, "not run")
MI300A = {"devices": {"found": [{"arch": "gfx942", "is_apu": True}]}}


def report(**change):
    whole = {
        "made_with": "0.1.0",
        "level": "E0",
        "facts": {},
        "findings": [],
        "kernels": {},
        "left_out": NOT_RUN,
    }
    return Report(**{**whole, **change})


def test_a_report_is_read_back_as_it_was(tmp_path):
    one = report(bench=[{"name": "a"}], left_out={k: v for k, v in NOT_RUN.items() if k != "bench"})
    (tmp_path / "report.json").write_text(one.render())
    assert reports.load(tmp_path / "report.json") == one
    assert one.sections == ["bench"]


def test_only_an_mi300a_gives_the_level_of_a_measurement():
    assert reports.level_of(MI300A) == "E4"
    for arch, is_apu in (("gfx942", False), ("gfx90a", True)):
        found = {"devices": {"found": [{"arch": arch, "is_apu": is_apu}]}}
        assert reports.level_of(found) == "E0"
    assert reports.level_of({}) == "E0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "found schema 2; supported: schema 1"),
        ({"kind": "other"}, "JSON of another kind"),
        ({"surprise": 1}, "missing or unknown: surprise"),
        ({"facts": []}, "facts of type list"),
        ({"facts": None}, "facts of type NoneType"),
        ({"left_out": {}}, "boot, start, hooks, tables, self_test, bench: null without a reason"),
        ({"boot": []}, "boot: null without a reason, or both"),
        ({"level": "E4"}, "level E4 with facts of level E0"),
        ({"facts": MI300A}, "level E0 with facts of level E4"),
    ],
)
def test_a_report_that_is_unfit_is_refused(change, message):
    data = {**json.loads(report().render()), **change}
    with pytest.raises(UserError, match=message):
        reports.parse(json.dumps(data), "sent.json")


@pytest.mark.parametrize("text", ["", "[]", "3"])
def test_what_is_no_report_is_refused(text):
    with pytest.raises(UserError, match="report sent.json: found "):
        reports.parse(text, "sent.json")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="not readable"):
        reports.load(tmp_path / "none.json")
