"""A diff is applied at its very lines, or refused."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_mi300a.patches import unified_diff
from sglang_mi300a.patches.unified_diff import Misfit

LINES = st.lists(st.sampled_from(["a\n", "b\n", "\n", " c\n", "-d\n", "+e\n"]), max_size=12)


def diff(before, after, context=3):
    made = difflib.unified_diff(before, after, "a/f.py", "b/f.py", n=context)
    return "".join(made)


@given(LINES, LINES, st.integers(1, 4))
def test_a_diff_leads_from_one_text_to_the_other_and_back(before, after, context):
    if not before or not after or before == after:
        return
    hunks = unified_diff.parse(diff(before, after, context))["f.py"]
    assert unified_diff.apply("".join(before), hunks) == "".join(after)
    back = [hunk.reverse() for hunk in hunks]
    assert unified_diff.apply("".join(after), back) == "".join(before)


BEFORE = [f"line {number}\n" for number in range(20)]
AFTER = [*BEFORE[:10], "new\n", *BEFORE[11:]]


@pytest.mark.parametrize(
    "text",
    [
        ["above\n", *BEFORE],
        BEFORE[:9],
        [*BEFORE[:12], "other\n", *BEFORE[13:]],
        [*BEFORE[:12], "line 12 \n", *BEFORE[13:]],
        AFTER,
    ],
    ids=["moved by a line", "cut", "other context", "a blank more", "changed already"],
)
def test_a_text_that_differs_in_a_line_is_refused(text):
    hunks = unified_diff.parse(diff(BEFORE, AFTER))["f.py"]
    with pytest.raises(Misfit, match="line 8"):
        unified_diff.apply("".join(text), hunks)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--- a/f.py\n", ""),
        ("+++ b/f.py\n", "+++ b/g.py\n"),
        ("-line 10\n", ""),
        ("+new\n", ""),
        (" line 13\n", " line 13\n line 14\n"),
        ("-line 10\n", "?line 10\n"),
        ("@@ -8,7 +8,7 @@\n", ""),
        ("@@ -8,7 +8,7 @@\n", "@@ -8,7 +8,8 @@\n"),
    ],
)
def test_what_is_no_diff_is_refused(old, new):
    text = diff(BEFORE, AFTER)
    assert old in text
    with pytest.raises(Misfit):
        unified_diff.parse(text.replace(old, new))


def test_a_diff_whose_new_line_numbers_are_wrong_is_refused():
    text = diff(BEFORE, AFTER).replace("+8,7", "+9,7")
    with pytest.raises(Misfit, match="line 9 would be line 8"):
        unified_diff.apply("".join(BEFORE), unified_diff.parse(text)["f.py"])


def test_nothing_and_a_file_twice_are_refused():
    for text in ("", 2 * diff(BEFORE, AFTER)):
        with pytest.raises(Misfit):
            unified_diff.parse(text)
