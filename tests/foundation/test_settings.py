"""The launcher's decision travels to ranks through one variable."""

import json

import pytest

from sglang_mi300a import settings
from sglang_mi300a.errors import UserError

RECORD = settings.Resolved(
    preset="tuned", device="cpu", model_path="/a model", tp_size=2, ep_size=1, num_local_ranks=2,
    with_draft=True, kv_tokens=4096, state_slots=32, max_running_requests=8, run_dir="/run",
)  # fmt: skip


def test_a_published_record_is_read_back_and_a_withdrawn_one_is_gone(monkeypatch):
    monkeypatch.setenv(settings.RESOLVED, "")
    settings.publish(RECORD)
    assert settings.resolved() == RECORD
    settings.withdraw()
    assert settings.resolved() is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "no JSON"),
        ("[]", r"\[\]"),
        (json.dumps({**json.loads(RECORD.to_json()), "schema": 99}), "schema"),
        (json.dumps({**json.loads(RECORD.to_json()), "extra": 1}), "unknown keys"),
        (json.dumps({"schema": settings.SCHEMA}), "missing"),
    ],
)
def test_a_record_of_another_kind_is_refused_with_the_variables_name(monkeypatch, text, found):
    monkeypatch.setenv(settings.RESOLVED, text)
    with pytest.raises(UserError, match=found) as refused:
        settings.resolved()
    assert settings.RESOLVED in str(refused.value)


@pytest.mark.parametrize(
    ("value", "choice"),
    [(None, None), ("0", "off"), ("OFF", "off"), ("", "off"), (" tuned ", "tuned")],
)
def test_the_switch_is_a_preset_or_off_or_not_given(monkeypatch, value, choice):
    monkeypatch.delenv(settings.SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(settings.SWITCH, value)
    assert settings.switch() == choice


def test_defaults_never_override_what_the_user_set(monkeypatch):
    monkeypatch.setenv("A_THING", "mine")
    monkeypatch.delenv("ANOTHER_THING", raising=False)
    added = settings.set_defaults({"A_THING": "yours", "ANOTHER_THING": "new"})
    assert added == {"ANOTHER_THING": "new"}
    assert settings.get("A_THING") == "mine"


def test_the_stand_ins_come_first_on_pythonpath_once(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", f"/x:{tmp_path}:/y")
    assert settings.python_path_with(tmp_path) == f"{tmp_path}:/x:/y"


def test_a_named_run_directory_is_made_and_cleared_of_an_earlier_launchs_reports(
    monkeypatch, tmp_path
):
    run_dir = tmp_path / "run"
    monkeypatch.setenv(settings.RUN_DIR, str(run_dir))
    assert settings.new_run_dir() == run_dir
    (run_dir / "rank-0.json").write_text("{}")
    settings.new_run_dir()
    assert list(run_dir.iterdir()) == []
