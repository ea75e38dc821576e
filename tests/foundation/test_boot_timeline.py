"""Marks of the launcher and its ranks become one table of a start."""

import time
from pathlib import Path

import pytest

from sglang_mi300a import boot_timeline
from sglang_mi300a.boot_timeline import START, Mark, Row


@pytest.fixture(autouse=True)
def no_marks():
    boot_timeline.forget()
    yield
    boot_timeline.forget()


LAUNCHER = [Mark(START, 100.0), Mark("checks", 103.0), Mark("warm-up", 130.0)]
RANKS = [
    [Mark(START, 104.0), Mark("load", 110.0, 50), Mark("pools", 111.0), Mark("pools", 119.0, 7)],
    [Mark(START, 105.0), Mark("load", 112.0, 60), Mark("pools", 114.0), Mark("pools", 115.0, 9)],
]


def test_a_stage_ends_when_the_last_rank_has_passed_it_and_keeps_the_most_bytes():
    assert boot_timeline.rows(LAUNCHER, RANKS) == [
        Row("checks", 3.0),
        Row("spawn", 2.0),
        Row("load", 7.0, 60),
        Row("pools", 2.0),
        Row("pools", 5.0, 9),
        Row("warm-up", 11.0),
    ]


def test_the_seconds_add_up_to_the_whole_start():
    assert sum(row.seconds for row in boot_timeline.rows(LAUNCHER, RANKS)) == 30.0


def test_the_table_shows_bytes_where_they_are_known_and_the_sum():
    lines = boot_timeline.table(boot_timeline.rows(LAUNCHER, RANKS)).splitlines()
    assert lines[0].split() == ["stage", "seconds", "bytes"]
    assert lines[3].split() == ["load", "7.00", "60"]
    assert lines[4].split() == ["pools", "2.00"]
    assert lines[-1].split() == ["ready", "30.00"]


def test_the_first_mark_of_a_process_comes_after_its_own_start():
    boot_timeline.mark("imports", 12)
    first, second = boot_timeline.marks()
    assert (first.stage, second.stage, second.num_bytes) == (START, "imports", 12)
    assert first.at < second.at <= time.time()
    # The kernel's own word for it: this process is younger than its boot.
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    assert time.time() - uptime_s - 1 < first.at


def test_marks_survive_the_way_through_json():
    marks = [Mark("load", 1.5, 3), Mark("pools", 2.5)]
    assert boot_timeline.of_data(boot_timeline.as_data(marks)) == marks
