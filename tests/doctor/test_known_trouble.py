"""Every report of trouble has become something, and every finding is in the docs."""

import re

from sglang_mi300a.doctor import findings, known_trouble
from tests import repository

ROWS = known_trouble.rows()
IDS = {judge.id for judge in findings.JUDGES}
NUMBERS = {"N": 36, "P": 121, "L": 4, "F": 25}
"""Reports by kind. Another number means that a report was lost, or that one more is known."""


def test_every_report_is_there_once():
    ids = [row.id for row in ROWS]
    assert len(set(ids)) == len(ids)
    assert {letter: sum(i[0] == letter for i in ids) for letter in NUMBERS} == NUMBERS


def test_every_report_became_a_finding_or_says_why_not():
    for row in ROWS:
        kind, _, why = row.entry.partition(": ")
        if kind in known_trouble.OTHERWISE:
            assert bool(why) == (kind == "not visible"), row.id
        else:
            assert set(row.finding_ids) <= IDS, row.id
            assert row.finding_ids, row.id


def test_an_empty_entry_is_none():
    assert known_trouble.Row("N1", "x", "", "").finding_ids == [""]
    assert "" not in IDS


def test_sources_are_public_threads():
    for row in ROWS:
        assert re.fullmatch(r"([\w.-]+/[\w.-]+ \d+)?", row.source), row.id


def test_every_finding_has_a_section_that_the_report_links_to():
    page = (repository.ROOT / "docs/findings.md").read_text()
    assert page == known_trouble.page()
    for judge in findings.JUDGES:
        assert f"\n### {judge.id}\n" in page
        assert judge.cure_in_words in page
