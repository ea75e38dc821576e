"""Memory that grows short while serving, played back from recorded nodes."""

import json

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import unified_memory, watcher
from sglang_mi300a.pools.byte_text import GB, GIB
from sglang_mi300a.pools.watch import STEPS_BETWEEN_DROPS, Sample, Watch, watched_reserves
from sglang_mi300a.pools.watcher import HttpAdmissions, NoGauges, Watcher
from tests.pools.unified_memory.machines import take, unpack_idle

RESERVE = 15 * GIB


class Node:
    """A node that serves, four APUs with 40 GB left; acts are recorded, memory is played back."""

    def __init__(self, root):
        self.root = unpack_idle(root)
        self.acts = []
        self.failing = ""
        idle = unified_memory.read(self.root).apus[0].node_bytes
        for node in range(4):
            take(self.root, node, idle - 40 * GB)
        reserves, _ = watched_reserves(RESERVE, self.samples())
        self.watcher = Watcher(
            watch=Watch(reserves),
            sample=self.samples,
            drop=lambda: self.acts.append("drop"),
            admissions=self,
            gauges=self,
            say=self.acts.append,
        )

    def samples(self):
        return [Sample.of(apu) for apu in unified_memory.read(self.root, with_holders=False).apus]

    def limit(self, paused):
        self.acts.append("pause" if paused else "resume")
        return self.failing

    def show(self, samples, *, paused):
        self.shown = (min(sample.available_bytes for sample in samples), paused)

    def rounds(self, number=1):
        """Return what was done and said in so many rounds."""
        before = len(self.acts)
        for _ in range(number):
            self.watcher.once()
        return self.acts[before:]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_a_node_with_its_reserve_is_left_alone(node):
    assert node.rounds(5) == []
    assert node.shown[1] is False
    assert node.shown[0] == pytest.approx(40 * GB, rel=1e-3)


def cache(node, apu, num_bytes):
    """Let the page cache take free pages, as reading files does."""
    take(node.root, apu, num_bytes)
    take(node.root, apu, -num_bytes, "Inactive(file)")


def test_page_cache_that_takes_the_free_pages_is_given_back_and_nothing_is_paused(node):
    cache(node, 1, 30 * GB)
    said, done = node.rounds()
    assert done == "drop"
    assert said.startswith("APU 1: ")
    assert "of free pages, under the reserve of 16.11 GB (15.00 GiB); the page cache of" in said
    assert node.rounds(STEPS_BETWEEN_DROPS - 1) == []
    assert node.rounds(2)[1:] == ["drop"]  # other programs' cache stays, ours may have come back


def test_too_little_memory_pauses_after_the_cache_had_its_chance_and_is_said_and_shown(node):
    cache(node, 2, 10 * GB)
    take(node.root, 2, 28 * GB)
    _, first = node.rounds()
    assert first == "drop"
    said, second = node.rounds()
    assert second == "pause"
    assert said.startswith("APU 2: 12.00 GB (11.18 GiB) available, under the reserve of 16.11 GB")
    assert "admissions are paused, requests wait and run one at a time, until 20.13 GB" in said
    assert node.shown == (pytest.approx(12 * GB, rel=1e-3), True)
    assert node.rounds(5) == []


def test_admissions_resume_above_the_reserve_and_only_once_it_stays_so(node):
    take(node.root, 0, 30 * GB)
    assert node.rounds(2)[-1] == "pause"
    take(node.root, 0, -8 * GB)  # 18 GB: above the reserve, below 1.25 of it
    assert node.rounds(10) == []
    take(node.root, 0, -6 * GB)
    assert node.rounds(2) == []
    assert node.rounds() == ["every APU has its reserve again: admissions resume", "resume"]
    assert node.shown[1] is False


def test_one_short_round_pauses_nothing(node):
    for _ in range(4):
        take(node.root, 3, 30 * GB)
        node.rounds()
        take(node.root, 3, -30 * GB)
        node.rounds()
    assert "pause" not in node.acts


def test_a_pause_that_fails_is_tried_again_and_said_once(node):
    node.failing = "connection refused"
    take(node.root, 0, 30 * GB)
    assert node.rounds(4)[-3:] == [
        "admissions could not pause, tried again every round: connection refused", "pause", "pause",
    ]  # fmt: skip
    assert node.shown[1] is False
    node.failing = ""
    assert node.rounds() == ["pause"]
    assert node.shown[1] is True


def test_a_server_that_begins_under_its_reserve_is_not_paused_for_good(tmp_path):
    samples = [Sample(0, 8 * GB, 0, 8 * GB), Sample(1, 40 * GB, 0, 40 * GB)]
    reserves, said = watched_reserves(RESERVE, samples)
    assert reserves == {0: 4 * GB, 1: RESERVE}
    [line] = said
    assert line.startswith("APU 0: serving begins with 8.00 GB (7.45 GiB) available, under the")
    watch = Watch(reserves)
    assert not any(watch.step(samples).pause for _ in range(5))


def test_memory_that_can_no_longer_be_told_ends_the_watch_and_is_said(node, monkeypatch):
    monkeypatch.setattr(watcher, "PERIOD_S", 0)
    (node.root / "sys/devices/system/node/node1/meminfo").unlink()
    rounds = iter([True, True, False])
    node.watcher.run(lambda: next(rounds))
    [line] = node.acts
    assert line.startswith("memory is no longer watched: /sys/devices/system/node/node1/meminfo")
    with pytest.raises(UserError):
        node.samples()


class Scheduler:
    """An HTTP server that answers as SGLang's /set_internal_state does."""

    def __init__(self, monkeypatch, answer=(True,), status=200):
        requests = pytest.importorskip("requests", reason="needs requests, as SGLang does")
        self.asked = []

        def post(url, **request):
            self.asked.append((url, request["json"], request["headers"], request["verify"]))
            response = requests.Response()
            response.status_code, response._content = status, json.dumps(answer).encode()
            return response

        monkeypatch.setattr(requests, "post", post)


class ServerArgs:
    """What is asked of SGLang's ServerArgs."""

    admin_api_key, api_key = None, "secret"

    def url(self):
        return "http://127.0.0.1:30000"

    def ssl_verify(self):
        return True


def test_the_schedulers_own_limit_is_set_to_one_and_back(monkeypatch):
    scheduler = Scheduler(monkeypatch)
    admissions = HttpAdmissions(ServerArgs(), 48)
    assert (admissions.limit(True), admissions.limit(False)) == ("", "")
    assert [(row[0], row[1]["server_args"]) for row in scheduler.asked] == [
        ("http://127.0.0.1:30000/set_internal_state", {"pp_max_micro_batch_size": size})
        for size in (1, 48)
    ]
    assert {row[2]["Authorization"] for row in scheduler.asked} == {"Bearer secret"}


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [((False,), 200, "the scheduler answered [false]"), ((True,), 401, "401 Client Error")],
)
def test_a_scheduler_that_does_not_obey_is_a_failure(monkeypatch, answer, status, why):
    Scheduler(monkeypatch, answer, status)
    assert why in HttpAdmissions(ServerArgs(), 48).limit(True)


def test_a_server_without_metrics_shows_no_gauges(node):
    node.watcher.gauges = NoGauges()
    assert node.rounds() == []


def test_gauges_show_every_apu_and_whether_admissions_are_paused():
    metrics = pytest.importorskip("prometheus_client", reason="needs it, as SGLang does")
    gauges = watcher.Gauges()
    gauges.show([Sample(0, 1 * GB, 2 * GB, 3 * GB), Sample(1, 4 * GB, 0, 4 * GB)], paused=True)

    def shown(name, **labels):
        return metrics.REGISTRY.get_sample_value(f"sglang_mi300a_{name}", labels)

    assert shown("apu_available_bytes", apu="0") == 3 * GB
    assert shown("apu_free_bytes", apu="1") == 4 * GB
    assert shown("admissions_paused") == 1
    gauges.show([], paused=False)
    assert shown("admissions_paused") == 0
