"""A bar is shown at a terminal, and nowhere else."""

import io
import sys

import pytest

from sglang_mi300a.weights.progress_bar import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "wanted", "shown"),
    [
        (Terminal, None, True),
        (io.StringIO, None, False),
        (io.StringIO, True, True),
        (Terminal, False, False),
    ],
)
def test_a_terminal_gets_a_bar_unless_told_otherwise(monkeypatch, stream, wanted, shown):
    stderr = stream()
    monkeypatch.setattr(sys, "stderr", stderr)
    with ProgressBar("rank 3 draft", 2_000_000, wanted=wanted) as bar:
        bar.advance(1_500_000)
        bar.advance(500_000)
    assert ("rank 3 draft: 100%" in stderr.getvalue()) == shown
    assert ("2.00M/2.00M" in stderr.getvalue()) == shown
    assert shown or stderr.getvalue() == ""


def test_what_was_done_before_is_in_the_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with ProgressBar("shard-weights", 1000, done_bytes=900):
        pass
    assert "shard-weights:  90%" in sys.stderr.getvalue()
