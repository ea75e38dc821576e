"""Before pools are made, all ranks agree, and every APU must still have what the plan needs."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sglang_mi300a import boot_report, gates
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, JudgedAgainst, UserError
from sglang_mi300a.pools import after_weights
from sglang_mi300a.pools.byte_text import GB
from sglang_mi300a.pools.estimates import exact
from sglang_mi300a.pools.job_memory import JobMemory, Place
from sglang_mi300a.pools.memory_plan import Line
from sglang_mi300a.pools.unified_memory import HipView
from sglang_mi300a.settings import Resolved
from tests.foundation.test_rank_agreement import Together
from tests.pools.plan import models
from tests.pools.unified_memory.machines import take, unpack_idle

TP = 4


class Job:
    """Four ranks, as threads, on four recorded APUs."""

    def __init__(self, tmp_path, sessions=48, only_warn=False):
        self.root = unpack_idle(tmp_path / "node")
        self.plan = models.plan(sessions)
        places = tuple(Place(rank, rank, rank, True) for rank in range(TP))
        self.memory = JobMemory(self.plan, places, str(self.root), only_warn)
        self.run_dir = tmp_path / "run"
        self.run_dir.mkdir()
        self.record = Resolved(
            preset="tuned", device="cpu", model_path="/m", tp_size=TP, ep_size=1,
            num_local_ranks=TP, with_draft=True, kv_tokens=4096, state_slots=32,
            max_running_requests=8, run_dir=str(self.run_dir), memory=self.memory.as_data(),
        )  # fmt: skip
        together = Together(TP)
        self.ranks = [
            gates.RankGates(rank, self.run_dir, together.of(rank), frozenset())
            for rank in range(TP)
        ]

    def load(self, *extra):
        """Look before, let every rank load its weights, and take ``extra`` bytes by APU."""
        for rank in self.ranks:
            after_weights.look_before(rank, self.record)
        weights = self.plan.loaded_bytes(0)
        for node in range(TP):
            take(self.root, node, weights + (extra[node] if node < len(extra) else 0))

    def look(self, records=(), hip=None):
        """Let all ranks look after; return each one's error, or None."""

        def of_rank(rank):
            record = dict(records).get(rank.rank, self.record)
            try:
                return after_weights.look_after(rank, record, hip)
            except (UserError, JudgedAgainst) as error:
                return error

        with ThreadPoolExecutor(TP) as pool:
            return list(pool.map(of_rank, self.ranks))


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_a_plan_that_still_fits_says_nothing(job, capsys):
    job.load()
    assert job.look() == [None] * TP
    assert capsys.readouterr().err == ""
    assert job.ranks[2].facts["memory.landed_elsewhere_bytes"] == 0


def test_an_apu_that_lost_memory_meanwhile_is_refused_on_every_rank_by_name(job):
    job.load(0, 0, 25 * GB)
    errors = job.look()
    assert all(isinstance(error, JudgedAgainst) for error in errors)
    reports = boot_report.read_all(job.run_dir)
    assert list(reports) == [2]
    said = reports[2].refusal
    assert said.startswith(
        "weights are loaded, and what is left to allocate does not fit.\nAPU 2: "
    )
    assert "smallest change that fits: " in said
    assert "APU 2: 25.00 GB (23.28 GiB) more than its weights went" in said
    assert reports[2].exit_code == EXIT_JUDGED_AGAINST


def test_the_missing_bytes_are_the_plans_remaining_lines_less_what_is_there(job):
    job.load(0, 40 * GB)
    job.look()
    rank = job.plan.ranks[1]
    loaded = job.plan.loaded_bytes(1)
    left = rank.planned("device", "reserve") - loaded
    there = job.memory.apu_of(1).node_bytes
    missing = (left - there) / GB
    assert f"APU 1: {missing:.2f} GB (" in boot_report.read_all(job.run_dir)[1].refusal


def test_what_was_made_with_the_weights_is_not_waited_for_again():
    beside = Line("expert workspace", "device", exact(3 * GB, "test"), with_weights=True)
    plan = replace(models.plan(), extra=(beside,))
    assert plan.loaded_bytes(0) == models.plan().loaded_bytes(0) + 3 * GB
    left = after_weights.remaining(plan).ranks[0].planned()
    assert left == plan.ranks[0].planned() - plan.loaded_bytes(0) - plan.host.planned


def test_weights_on_a_neighbour_are_told_once_and_served_where_all_fits(job, capsys):
    job.load(-6 * GB, 6 * GB)
    assert job.look() == [None] * TP
    [line] = capsys.readouterr().err.splitlines()
    assert "APU 0: 6.00 GB (5.59 GiB) of its weights landed on APU 1" in line
    assert round(job.ranks[3].facts["memory.landed_elsewhere_bytes"] / GB, 1) == 6


def test_where_a_neighbour_then_lacks_memory_the_refusal_says_whose_weights_it_holds(job):
    job.load(-30 * GB, 30 * GB)
    assert all(job.look())
    said = boot_report.read_all(job.run_dir)[1].refusal
    assert "APU 1: " in said
    assert "APU 0: 30.00 GB (27.94 GiB) of its weights landed on APU 1" in said


def test_hips_view_binds_too(job):
    job.load()
    errors = job.look(hip=HipView(20 * GB, 128 * GB))
    assert all(errors)
    assert "HIP leaves 20.00 GB" in boot_report.read_all(job.run_dir)[0].refusal


def test_a_user_may_start_all_the_same_and_is_told_what_is_missing(tmp_path, capsys):
    job = Job(tmp_path, only_warn=True)
    job.load(0, 0, 40 * GB)
    assert job.look() == [None] * TP
    assert "rank 2: weights are loaded, and what is left to allocate" in capsys.readouterr().err
    assert boot_report.read_all(job.run_dir) == {}


def test_a_rank_that_was_told_another_size_is_named(job):
    job.load()
    errors = job.look({3: replace(job.record, kv_tokens=4080)}.items())
    assert {str(error) for error in errors} == {
        "rank 3: found KV tokens: 4080; supported: KV tokens: 4096, as on rank 0; do: start all "
        "ranks by one launcher, with one preset and the same flags, and leave the variable "
        "SGLANG_MI300A_RESOLVED alone"
    }


def test_ranks_that_see_different_budgets_are_refused(job):
    job.load()
    bigger = JobMemory(models.plan(96), job.memory.places, str(job.root)).as_data()
    errors = job.look({1: replace(job.record, memory=bigger)}.items())
    assert all("rank 1: found the memory plan: another one" in str(error) for error in errors)


def test_memory_that_can_no_longer_be_told_on_one_rank_stops_all(job):
    job.load()
    (job.root / "sys/devices/system/node/node3/meminfo").unlink()
    errors = job.look()
    assert "rank 3: /sys/devices/system/node/node3/meminfo: found not readable" in str(errors[0])
    assert str(errors[3]).startswith("/sys/devices/system/node/node3/meminfo: found not readable")


def test_without_an_accelerator_nothing_is_looked_at(job):
    record = replace(job.record, memory={})
    assert job.look(dict.fromkeys(range(TP), record).items()) == [None] * TP
    assert all(rank.facts == {} for rank in job.ranks)


def test_a_job_is_the_same_behind_json(job):
    assert JobMemory.of_data(job.memory.as_data()) == job.memory
    record = Resolved.from_json(job.record.to_json())
    assert JobMemory.of_data(record.memory) == job.memory


def test_a_rank_reads_the_accelerator_that_the_environment_put_in_its_place(tmp_path):
    job = Job(tmp_path)
    take(job.root, 3, 50 * GB)
    turned = replace(job.memory, places=tuple(Place(r, 3 - r, 3 - r, True) for r in range(TP)))
    apu = turned.apu_of(0)
    assert (apu.index, apu.numa_node) == (0, 3)
    assert apu.node_bytes == job.memory.apu_of(3).node_bytes < job.memory.apu_of(2).node_bytes
