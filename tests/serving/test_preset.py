"""Presets are data: merged from files, each line with its reason."""

import json

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.serving import preset


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(UserError, match=r"found 'fast'; supported: off, baseline, tuned"):
        preset.load("fast")


@pytest.mark.parametrize("name", preset.names())
@pytest.mark.parametrize("device", ["gfx942", "cpu"])
def test_every_line_says_why_and_pools_are_given_as_numbers(name, device):
    lines = preset.load(name).on(device)
    assert all(len(line.why) > 10 or line.why == "a laptop" for line in lines.values())
    for field in ("max_total_tokens", "max_mamba_cache_size", "max_running_requests"):
        assert isinstance(lines[field].value, int)


@pytest.mark.parametrize("name", preset.names())
def test_pools_hold_the_requests_they_promise(name):
    lines = preset.load(name).on("gfx942")
    overlap_off = "disable_overlap_schedule" in lines
    slots = lines["max_mamba_cache_size"].value
    assert slots == lines["max_running_requests"].value * (4 if overlap_off else 5)
    assert lines["max_total_tokens"].value % lines["page_size"].value == 0


def test_sglangs_own_number_of_requests_with_drafts_is_never_what_decides():
    from sglang_mi300a import plugin

    hook = plugin.installed_sglang().read("sglang/srt/arg_groups/speculative_hook.py")
    assert "server_args.max_running_requests = 48" in hook  # where none was given
    for name in preset.names():
        for device in ("gfx942", "cpu"):
            assert preset.load(name).on(device)["max_running_requests"].value is not None


def test_tuned_keeps_states_by_turntail_and_baseline_by_stocks_order():
    baseline, tuned = preset.load("baseline").on("gfx942"), preset.load("tuned").on("gfx942")
    assert "radix_cache_backend" not in baseline
    assert tuned["radix_cache_backend"].value == "gdn-turntail"
    assert tuned["mamba_radix_cache_strategy"].value == "extra_buffer"
    assert "SGLANG_MI300A_ACCUMULATE" not in baseline


def test_tuned_is_baseline_with_drafts():
    baseline, tuned = preset.load("baseline").on("cpu"), preset.load("tuned").on("cpu")
    assert set(baseline) < set(tuned)
    assert tuned["speculative_num_steps"].value == 3
    assert tuned["speculative_eagle_topk"].value == 1
    assert tuned["speculative_num_draft_tokens"].value == 4


def test_a_later_line_for_every_device_replaces_earlier_ones_for_one(tmp_path, monkeypatch):
    presets = tmp_path / "serving/presets"
    presets.mkdir(parents=True)
    first = {"schema": 1, "title": "t", "lines": [
        {"field": "a", "value": 1, "on": "cpu", "why": "w"},
        {"field": "a", "value": 2, "on": "gfx942", "why": "w"},
    ]}  # fmt: skip
    second = {"schema": 1, "title": "t", "includes": ["serving/first"], "lines": [
        {"field": "a", "value": 3, "why": "w"},
    ]}  # fmt: skip
    (presets / "first.json").write_text(json.dumps(first))
    (presets / "second.json").write_text(json.dumps(second))
    monkeypatch.setattr(preset, "PACKAGE", tmp_path)
    assert preset.load("first").on("cpu")["a"].value == 1
    assert preset.load("second").on("cpu")["a"].value == 3
    assert preset.load("second").on("gfx942")["a"].value == 3


def test_a_preset_of_another_schema_is_refused(tmp_path, monkeypatch):
    presets = tmp_path / "serving/presets"
    presets.mkdir(parents=True)
    (presets / "p.json").write_text('{"schema": 9}')
    monkeypatch.setattr(preset, "PACKAGE", tmp_path)
    with pytest.raises(UserError, match="schema 9"):
        preset.load("p")
