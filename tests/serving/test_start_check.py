"""Ranks check themselves after the warm-up, and the launcher judges what they report."""

import asyncio
from types import SimpleNamespace

import pytest
import torch

from sglang_mi300a import boot_report, boot_timeline, settings
from sglang_mi300a.boot_timeline import START, Mark
from sglang_mi300a.errors import JudgedAgainst
from sglang_mi300a.gates import RankGates
from sglang_mi300a.golden import Verdict
from sglang_mi300a.rank_agreement import alone
from sglang_mi300a.serving import hooks, ready, start_check, steps, warm_up

SIZES = warm_up.Sizes((), (), 8, 256, 2048, 4, 8192)
LAUNCHER = [Mark(START, 0.0), Mark("front end", 5.0)]


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_a_right_sum_over_ranks_is_right(num_ranks):
    def all_reduce(mine):  # rank 0 holds the pattern itself, rank 1 twice that, and so on
        return sum(mine * (rank + 1) for rank in range(num_ranks))

    assert start_check.sums_are_right(0, num_ranks, "cpu", all_reduce) == ""


def test_one_wrong_element_of_a_sum_is_found_with_shape_and_count():
    def all_reduce(mine):
        total = mine * 3
        total[-1, -1] += 1
        return total

    problem = start_check.sums_are_right(0, 2, "cpu", all_reduce)
    assert problem == ("all-reduce of [1, 4096] bfloat16 over 2 ranks: 1 of 4096 sums are wrong")


def test_a_rank_left_out_of_the_sum_is_found():
    assert "sums are wrong" in start_check.sums_are_right(0, 4, "cpu", lambda mine: mine * 6)
    assert "sums are wrong" in start_check.sums_are_right(1, 2, "cpu", torch.clone)


@pytest.fixture
def gates(tmp_path, monkeypatch):
    boot_timeline.forget()
    monkeypatch.setattr(boot_report, "_facts", {})
    monkeypatch.setattr(steps, "_of_this_process", steps.Steps())
    yield RankGates(0, tmp_path, alone, frozenset())
    boot_timeline.forget()


def runner(is_draft):
    return SimpleNamespace(is_draft_worker=is_draft)


def step(mode, batch, in_graph, is_draft=False):
    forward = SimpleNamespace(forward_mode=SimpleNamespace(name=mode), batch_size=batch)
    steps.count(SimpleNamespace(can_run_graph=in_graph), runner(is_draft), forward, None)


def record(**change):
    whole = {
        "preset": "tuned", "device": "cpu", "model_path": "m", "tp_size": 1, "ep_size": 1,
        "num_local_ranks": 1, "with_draft": True, "kv_tokens": 8192, "state_slots": 32,
        "max_running_requests": 8, "run_dir": "",
    }  # fmt: skip
    return settings.Resolved(**{**whole, **change})


def done(tokens_a_step=2.5):
    return warm_up.Done(3.0, 4, 40, tokens_a_step, {"decode": 3.0})


def judged(
    run_dir,
    sizes=SIZES,
    tokens_a_step=2.5,
    refuse_drafts=False,
    distance=None,
    refuse_distance=True,
    **change,
):
    return ready.judge(
        boot_report.read_all(run_dir),
        record(**change),
        sizes,
        done(tokens_a_step),
        LAUNCHER,
        switches=(),
        refuse_drafts=refuse_drafts,
        distance=distance,
        refuse_distance=refuse_distance,
    )


def test_a_rank_reports_its_steps_without_those_of_the_draft(gates, tmp_path):
    step("TARGET_VERIFY", 3, False)
    step("DECODE", 3, False, is_draft=True)
    start_check.run(gates, lambda: "")
    facts = boot_report.read_all(tmp_path)[0].facts
    assert facts["steps"] == {"TARGET_VERIFY": {"3": [0, 1]}}
    assert [one["stage"] for one in facts["timeline"]] == [START, "self-test"]


def test_sums_are_checked_once_and_steps_are_reported_again(gates, tmp_path):
    checked = []
    for _ in range(2):
        start_check.run(gates, lambda: checked.append(1) or "")
        step("DECODE", 1, True)
    start_check.run(gates, lambda: checked.append(1) or "")
    facts = boot_report.read_all(tmp_path)[0].facts
    assert checked == [1]
    assert facts["warm_up_steps"] == {}
    assert facts["steps"] == {"DECODE": {"1": [2, 0]}}


def test_a_rank_that_reports_a_little_later_is_waited_for(gates, tmp_path):
    late = RankGates(1, tmp_path, alone, frozenset())
    start_check.run(gates, lambda: "")
    reads = []

    def read():
        if len(reads) == 2:
            late.report()  # as each rank did before: no word of its check yet
        if len(reads) == 4:
            start_check.run(late, lambda: "")
        reads.append(boot_report.read_all(tmp_path))
        return reads[-1]

    found = asyncio.run(ready.once_checked(read, 2, polls=50, poll_s=0))
    assert len(reads) == 5
    assert set(found) == {0, 1}
    assert all(start_check.FACT in report.facts for report in found.values())


def test_a_rank_that_never_reports_is_waited_for_no_longer_than_said(gates, tmp_path):
    start_check.run(gates, lambda: "")
    reads = []

    def read():
        reads.append(boot_report.read_all(tmp_path))
        return reads[-1]

    found = asyncio.run(ready.once_checked(read, 2, polls=7, poll_s=0))
    assert len(reads) == 7
    assert set(found) == {0}


def test_wrong_sums_stop_the_rank_and_stand_in_its_report(gates, tmp_path):
    with pytest.raises(JudgedAgainst, match="rank 0: 2 sums are wrong"):
        start_check.run(gates, lambda: "2 sums are wrong")
    report = boot_report.read_all(tmp_path)[0]
    assert report.stage == "refused"
    assert report.exit_code == 1
    assert "2 sums are wrong" in report.refusal


def test_a_cache_that_was_not_emptied_checks_nothing(gates, tmp_path):
    hooks._after_flush(False, SimpleNamespace(device="cpu"))
    assert boot_report.read_all(tmp_path) == {}


def test_a_start_is_told_with_its_timeline_drafts_and_paths(gates, tmp_path):
    step("TARGET_VERIFY", 1, False)
    start_check.run(gates, lambda: "")
    start = judged(tmp_path)
    text = start.in_words()
    assert "front end" in text
    assert "4 requests, 40 tokens in 3.0 s, 2.50 tokens a step" in text
    assert "fused top-k routing: not taken here (0 calls; SGLang's CPU engine)" in text
    assert start.warnings == []
    ready.write(tmp_path, start.as_data())
    assert ready.read(tmp_path)["eager_decode_steps"] == 1
    assert ready.refusal(tmp_path) is None


def test_on_gfx942_absent_paths_and_untouched_graphs_are_warned_of(gates, tmp_path):
    step("TARGET_VERIFY", 1, True)
    start_check.run(gates, lambda: "")
    sizes = warm_up.Sizes((1, 2, 4), (), 4, 256, 2048, 4, 8192)
    start = judged(tmp_path, sizes, device="gfx942")
    assert "WARNING: no step of the warm-up used the captured batches [2, 4]" in start.warnings
    assert any("fused top-k routing was NOT TAKEN" in line for line in start.warnings)
    assert all(line in start.in_words() for line in start.warnings)


def test_a_rank_that_did_not_check_itself_stops_the_server(gates, tmp_path):
    start_check.run(gates, lambda: "")
    with pytest.raises(JudgedAgainst, match="rank 1 did not report after it"):
        judged(tmp_path, num_local_ranks=2)


def test_bad_drafts_are_a_warning_or_where_asked_a_refusal(gates, tmp_path):
    start_check.run(gates, lambda: "")
    [line] = judged(tmp_path, tokens_a_step=1.0).warnings
    assert line.startswith("WARNING: MTP: 1.000 tokens a step")
    with pytest.raises(JudgedAgainst, match=r"MTP: 1\.000 tokens a step"):
        judged(tmp_path, tokens_a_step=1.0, refuse_drafts=True)


def test_a_launcher_that_gave_up_is_read_back(tmp_path):
    assert ready.refusal(tmp_path) is None
    ready.write(tmp_path, {"refusal": "no answer", "exit_code": 1})
    assert ready.refusal(tmp_path) == ("no answer", 1)


def test_a_distance_to_golden_logits_is_told_warned_of_or_refused(gates, tmp_path):
    start_check.run(gates, lambda: "")
    assert "no golden logits beside the weights" in judged(tmp_path).in_words()
    near = judged(tmp_path, distance=Verdict(0.01, 0.02, 5, 0))
    assert near.warnings == judged(tmp_path).warnings
    assert "distance to the golden logits 0.0100" in near.in_words()
    assert near.as_data()["golden"]["num_sure"] == 5
    far = judged(tmp_path, distance=Verdict(0.3, 0.4, 5, 0))
    assert "WARNING: distance to the golden logits 0.3000" in far.in_words()
    wrong = Verdict(0.9, 1.0, 5, 5)
    with pytest.raises(JudgedAgainst, match="no rounding explains that"):
        judged(tmp_path, distance=wrong)
    served = judged(tmp_path, distance=wrong, refuse_distance=False)
    assert "no rounding explains that" in served.in_words()
