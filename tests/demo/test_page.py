"""The page: whole, readable by itself, and holding what each step said, as text."""

import re
from html import escape
from xml.etree import ElementTree

import pytest

from sglang_mi300a.demo import page, walk
from sglang_mi300a.demo.account import (
    EVIDENCE,
    FAILED,
    NOT_RUN,
    PASSED,
    Account,
    Command,
    Picture,
)

HOSTILE = "<script src='http://example.invalid/x.js'>&\"</script>"


def accounts():
    made = [Account(step.name, step.title, step.evidence) for step in walk.STEPS]
    first, second, third = made[:3]
    first.say(HOSTILE)
    first.table((HOSTILE, "b"), [(HOSTILE, 1)])
    first.add(Command(f"sglang-mi300a {HOSTILE}", "\n".join([HOSTILE] * 20), 1))
    first.add(Command("sglang-mi300a doctor", "short", 0))
    first.add(Picture("image/svg+xml", b"<svg/>", HOSTILE))
    second.fault(HOSTILE)
    third.not_run("no checkout")
    return made


@pytest.fixture
def text():
    return page.render(accounts(), version=HOSTILE)


def test_the_page_is_well_formed(text):
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert root.tag == "html"
    assert root.find("head/meta[@name='viewport']") is not None


def test_the_page_loads_nothing_and_runs_nothing(text):
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    links = [
        value
        for element in root.iter()
        for name, value in element.attrib.items()
        if name in ("src", "href", "srcset", "action", "data", "poster")
    ]
    assert links
    assert all(link.startswith(("#", "data:image/")) for link in links)
    assert not {"script", "link", "iframe", "object"} & {element.tag for element in root.iter()}
    style = root.find("head/style").text
    assert "url(" not in style
    assert "@import" not in style


def test_what_steps_say_is_text_and_no_markup(text):
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    section = root.find("body/section[@id='doctor']")
    assert HOSTILE in [one.text for one in section.findall("p")]
    assert section.find("div/table/tr/th").text == HOSTILE
    assert section.find("figure/img").attrib["alt"] == HOSTILE
    assert section.find("details/pre").text.count(HOSTILE) == 21
    assert "short" in section.find("pre").text
    assert HOSTILE in root.find("body/h1").text


def test_every_step_is_there_in_order_with_evidence_and_result(text):
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    sections = root.findall("body/section")
    assert [one.attrib["id"] for one in sections] == [step.name for step in walk.STEPS]
    badges = [[badge.text for badge in one.findall("p/span")][:2] for one in sections]
    assert [level for level, _ in badges] == [step.evidence for step in walk.STEPS]
    assert [status for _, status in badges][:4] == [PASSED, FAILED, NOT_RUN, PASSED]
    targets = re.findall(r'href="#([^"]+)"', text)
    assert targets == [step.name for step in walk.STEPS]


def test_the_levels_in_use_are_explained(text):
    assert {step.evidence for step in walk.STEPS} == set(EVIDENCE)
    assert all(escape(means) in text for means in EVIDENCE.values())


def test_the_result_names_what_failed_and_what_was_left_out(text):
    passed = len(walk.STEPS) - 2
    said = f"{passed} of {len(walk.STEPS)} steps passed; failed: tiny-model; not run: shard-weights"
    assert page.result(accounts()) == said
    assert said in text
