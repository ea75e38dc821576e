"""Each finding is found on a machine that has it, and not on one that differs in that one fact."""

import pytest

from sglang_mi300a.doctor import findings
from tests.doctor import recorded

CASES = recorded.cases()
MACHINES = [
    (case, triggering, case.facts(triggering=triggering))
    for case in CASES
    for triggering in (True, False)
]


def misjudged(judges):
    """Return the pairs that these judges do not tell apart."""
    wrong = []
    for case, triggering, facts in MACHINES:
        if (case.finding in {one.id for one in findings.judge(facts, judges)}) != triggering:
            wrong.append((case.finding, case.fact, triggering))
    return wrong


def test_every_pair_is_told_apart():
    assert misjudged(findings.JUDGES) == []


@pytest.mark.parametrize("judge", findings.JUDGES, ids=lambda judge: judge.id)
def test_without_a_judge_a_pair_is_no_longer_told_apart(judge):
    others = [one for one in findings.JUDGES if one is not judge]
    assert {finding for finding, _, _ in misjudged(others)} == {judge.id}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.finding}:{case.fact}")
def test_the_two_machines_of_a_pair_differ_in_one_fact(case):
    pair = [case.data(triggering=triggering) for triggering in (True, False)]
    at = tuple(recorded.steps(case.fact))
    found = recorded.differences(*pair)
    assert found
    assert {path[: len(at)] for path in found} == {at}


def test_every_finding_has_a_pair_and_every_pair_a_finding():
    ids = [judge.id for judge in findings.JUDGES]
    assert len(set(ids)) == len(ids)
    assert {case.finding for case in CASES} == set(ids)


def test_a_healthy_machine_has_only_notes():
    found = findings.judge(recorded.healthy())
    assert [one.id for one in found if one.severity != "note"] == []
    assert not findings.is_against(found)


def test_every_finding_names_a_value_a_reason_and_a_cure():
    for _, _, facts in MACHINES:
        for one in findings.judge(facts):
            assert one.seen, one.id
            assert one.why, one.id
            assert one.cure, one.id
            assert "{" not in one.cure, one.id
            assert one.docs == f"docs/findings.md#{one.id}"


def test_the_worst_is_told_first():
    case = next(case for case in CASES if case.finding == "memory-unreadable")
    severities = [one.severity for one in findings.judge(case.facts(triggering=True))]
    assert severities == sorted(severities, key=["breaks", "risks", "note"].index)


def test_without_a_gfx942_only_what_matters_anywhere_is_told():
    case = next(case for case in CASES if case.finding == "no-gfx942")
    anywhere = {judge.id for judge in findings.JUDGES if judge.anywhere}
    found = findings.judge(case.facts(triggering=True))
    assert "no-gfx942" in {one.id for one in found}
    assert {one.id for one in found} <= anywhere
