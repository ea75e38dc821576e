"""How the walk goes on when a step fails, what the command says of it, and that it tidies up."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from sglang_mi300a.cli.main import main
from sglang_mi300a.cli.server_process import ServerDied
from sglang_mi300a.demo import child, walk
from sglang_mi300a.demo.account import FAILED, NOT_RUN, PASSED
from sglang_mi300a.demo.journey import Journey
from sglang_mi300a.demo.walk import Step
from sglang_mi300a.errors import UserError


def fine(journey, account):
    account.say(f"did {account.name}")


def raising(error):
    def take(journey, account):
        account.say("before")
        raise error

    return take


def steps_with(bad):
    return (
        Step("first", "it works", "E0", fine),
        Step("second", "it fails", "E0", bad),
        Step("third", "it needs the second", "E0", fine, ("second",)),
        Step("fourth", "it needs the third", "E0", fine, ("third",)),
        Step("fifth", "it needs nothing", "E1", fine),
    )


ERRORS = [
    UserError("flag", found="a", allowed="b", do="c"),
    ServerDied(-9, "NameError: x"),
    OSError(28, "No space left on device"),
    RuntimeError("shape"),
    KeyError("findings"),
    ModuleNotFoundError("No module named 'torch'"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_failing_step_stops_those_that_need_it_and_no_other(tmp_path, error):
    accounts = list(walk.take(Journey(tmp_path), steps_with(raising(error))))
    found = [one.status for one in accounts]
    assert found == [PASSED, FAILED, NOT_RUN, NOT_RUN, PASSED]
    assert accounts[1].faults == [f"{type(error).__name__}: {error}"]
    assert walk.failed(accounts) == ["second"]
    assert accounts[2].pieces[0].text == "not run: it needs second"


def test_an_error_that_no_step_should_end_with_is_shown_with_the_steps_name(demo, capsys):
    with pytest.raises(TypeError):
        demo(steps_with(raising(TypeError("a bug"))))
    assert "stopped in step second" in capsys.readouterr().err


def test_the_steps_of_the_walk_need_only_steps_before_them():
    names = [step.name for step in walk.STEPS]
    assert len(set(names)) == len(names)
    for at, step in enumerate(walk.STEPS):
        assert set(step.needs) <= set(names[:at]), step.name


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """Run the command with other steps; the page goes into a folder of the test's."""

    def run(steps, *flags):
        monkeypatch.setattr(walk, "STEPS", tuple(steps))
        return main(["demo", "--page", str(tmp_path / "out" / "page.html"), *flags])

    run.page = tmp_path / "out" / "page.html"
    return run


def test_a_walk_that_fails_exits_with_1_names_the_step_and_still_writes_the_page(demo, capsys):
    assert demo(steps_with(raising(RuntimeError("shape")))) == 1
    said = capsys.readouterr()
    assert said.err == "sglang-mi300a demo: step second failed: RuntimeError: shape\n"
    assert "2/5 [E0] second: it fails" in said.out
    assert f"failed: second; not run: third, fourth\npage: {demo.page}\n" in said.out
    assert "RuntimeError: shape" in demo.page.read_text()


def test_a_walk_without_a_failure_exits_with_0_and_prints_label_level_and_table(demo, capsys):
    assert demo(steps_with(fine)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "5/5 [E1] fifth: it needs nothing\n    did fifth\n" in said.out
    assert "step    level  result  took\nfirst   E0     passed  0 s\n" in said.out


def test_json_has_the_promised_keys_and_nothing_else_is_on_stdout(demo, capsys):
    assert demo(steps_with(raising(RuntimeError("shape"))), "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert list(found) == [
        *("tokens_compared", "tokens_equal", "drafts_accepted", "prefix_cached_tokens"),
        *("hooks", "evidence", "steps", "page"),
    ]
    assert found["evidence"] == ["E0", "E1"]
    assert found["page"] == str(demo.page)
    assert found["steps"][1]["faults"] == ["RuntimeError: shape"]


def test_a_step_without_evidence_of_its_level_does_not_claim_it(demo, capsys):
    left_out = Step("machine code", "", "E1", lambda journey, account: account.not_run("no tree"))
    assert demo([Step("first", "", "E0", fine), left_out], "--json") == 0
    assert json.loads(capsys.readouterr().out)["evidence"] == ["E0"]


def test_what_was_made_is_gone_unless_it_is_to_be_kept(demo, tmp_path, capsys):
    seen = []

    def make(journey, account):
        seen.append(journey.scratch)
        (journey.scratch / "file").write_text("x")

    steps = [Step("make", "", "E0", make)]
    assert demo(steps) == 0
    assert not seen[0].exists()
    assert demo(steps, "--keep", str(tmp_path / "kept")) == 0
    assert (tmp_path / "kept" / "file").exists()
    assert demo(steps, "--keep", str(tmp_path / "kept")) == 2
    assert "found it exists" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_done(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file" / "page.html", tmp_path):
        assert main(["demo", "--page", str(place)]) == 2
        assert f"--page {place}: found" in capsys.readouterr().err


PARENT = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1] + ".made", "w").write(f"{grandchild.pid}")
import os; os.rename(sys.argv[1] + ".made", sys.argv[1])
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_walk_ends_with_130_and_leaves_no_process_and_no_page(
    demo, tmp_path, number, capsys
):
    pids = tmp_path / "pids"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it

    def wait(journey, account):
        child.run([sys.executable, "-c", PARENT, str(pids)], {})

    def interrupt():
        while not pids.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert demo([Step("wait", "", "E0", wait)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert not is_running(int(pids.read_text()))
    assert not demo.page.exists()
    said = "sglang-mi300a demo: stopped in step wait\ninterrupted\n"
    assert capsys.readouterr().err == said


def is_running(pid):
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
