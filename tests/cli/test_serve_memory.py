"""`serve` compares the plan with every APU before it starts anything, and obeys what it planned."""

import shutil
import subprocess
import sys

import pytest

from sglang_mi300a import served_model, settings
from sglang_mi300a.boot_report import RankReport
from sglang_mi300a.cli import serve_memory
from sglang_mi300a.errors import JudgedAgainst, UserError
from sglang_mi300a.pools import binding, unified_memory
from sglang_mi300a.pools.after_weights import BEFORE
from sglang_mi300a.pools.byte_text import GB
from sglang_mi300a.pools.job_memory import JobMemory, Place
from sglang_mi300a.pools.watch import Sample
from sglang_mi300a.serving import preset
from tests.pools.plan import models
from tests.pools.unified_memory.machines import take, unpack, unpack_idle

ALONE = {"nnodes": 1, "tp_size": 4, "ep_size": 1, "base_gpu_id": 0, "gpu_id_step": 1}
PAGES = "sys/module/amdttm/parameters/pages_limit"


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """Return a function that prepares to serve the real model on a recorded node."""
    monkeypatch.delenv(settings.MEMORY_CHECK, raising=False)

    def prepare(root=None, *, name="tuned", on_cpu=False, visible=None, **fields):
        root = root or unpack_idle(tmp_path / "node")
        read = unified_memory.read
        monkeypatch.setattr(unified_memory, "read", lambda _, **rest: read(root, **rest))
        monkeypatch.setattr(binding, "running_on", lambda: set(range(96)))
        lines = preset.load(name).on("gfx942").values()
        usual = {line.name: line.value for line in lines if not line.is_environment}
        merged = {**ALONE, **usual, **fields}
        try:
            return serve_memory.prepare(
                served_model.read(models.REAL), name, merged, {}, on_cpu=on_cpu
            )
        finally:
            monkeypatch.setattr(unified_memory, "read", read)

    return prepare


def refused(prepare, *args, **fields):
    with pytest.raises(JudgedAgainst) as verdict:
        prepare(*args, **fields)
    return str(verdict.value)


def test_a_plan_that_fits_says_how_tightly_and_tells_the_ranks(prepare):
    prepared = prepare()
    assert prepared.said[0].startswith("memory: ")
    assert "planned for APU 0, the tightest; " in prepared.said[0]
    job = JobMemory.of_data(prepared.job.as_data())
    assert job.places == tuple(Place(n, n, n, True) for n in range(4))
    assert job.plan.asked.kv_tokens == 787936
    assert job.plan.weights[3].target > 50 * 10**9


def test_a_plan_that_does_not_fit_names_the_apu_what_is_missing_what_holds_it_and_what_fits(
    prepare, tmp_path
):
    said = refused(prepare, unpack(tmp_path / "full", "mi300a-node"))
    assert "APU 2: " in said
    assert "APU 1: " not in said  # its page cache is given up on demand
    assert "missing. The plan needs " in said
    assert "held there: tmpfs and shared memory 21.47 GB (20.00 GiB)" in said
    assert "held there: device memory of other programs 25.77 GB (24.00 GiB)" in said
    assert "SGLANG_MI300A_MEMORY_CHECK=warn" in said


def test_the_refusal_offers_the_smallest_change_that_fits(prepare, tmp_path):
    root = unpack_idle(tmp_path / "small")
    (root / PAGES).write_text(f"{4 * 96 * 2**30 // 4096}\n")
    said = refused(prepare, root, max_total_tokens=1_600_000)
    assert "smallest change that fits: put `options amdttm pages_limit=134217728" in said
    assert "or: fewer KV tokens: --max-total-tokens " in said
    assert "presets that fit: baseline" in said


def test_a_user_may_start_all_the_same(prepare, tmp_path, monkeypatch):
    monkeypatch.setenv(settings.MEMORY_CHECK, "warn")
    prepared = prepare(unpack(tmp_path / "full", "mi300a-node"))
    assert "the plan does not fit; starting all the same (SGLANG_MI300A_MEMORY_CHECK)" in (
        prepared.said
    )
    assert "APU 2: " in prepared.said[-1]
    assert prepared.job.only_warn


@pytest.mark.parametrize("value", ["no", "", "Warn"])
def test_an_unknown_answer_to_a_plan_that_does_not_fit_is_refused(monkeypatch, value):
    monkeypatch.setenv(settings.MEMORY_CHECK, value)
    with pytest.raises(UserError, match="supported: refuse or warn"):
        settings.memory_check()


def test_ranks_are_bound_to_the_numa_nodes_of_their_apus_by_stocks_own_option(prepare):
    prepared = prepare()
    assert prepared.fields == {"numa_node": [0, 1, 2, 3]}
    assert prepared.environment["SGLANG_NUMA_BIND_V2"] == "0"


def test_stocks_own_check_that_ranks_have_alike_does_not_stop_what_the_plan_judged(
    prepare, tmp_path
):
    root = unpack_idle(tmp_path / "uneven")
    take(root, 1, 13 * GB)  # more than 10 % of what is free
    prepared = prepare(root, name="baseline")
    assert prepared.environment["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] == "0"
    assert "planned for APU 1, the tightest" in prepared.said[0]


def test_a_users_own_binding_is_left_alone(prepare):
    prepared = prepare(numa_node=[3, 2, 1, 0])
    assert prepared.fields == {}
    assert "SGLANG_NUMA_BIND_V2" not in prepared.environment


def test_a_job_of_two_ranks_on_the_last_two_apus_is_judged_there(prepare, tmp_path):
    said = refused(prepare, unpack(tmp_path / "full", "mi300a-node"), tp_size=2, base_gpu_id=2)
    assert "APU 2: " in said
    assert "APU 3: " in said  # twice the weights a rank


@pytest.mark.parametrize("more", [{"tp_size": 8}, {"base_gpu_id": 1}, {"gpu_id_step": 2}])
def test_more_ranks_than_accelerators_are_refused(prepare, more):
    with pytest.raises(UserError, match="found 4 visible accelerators"):
        prepare(**more)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (
            {"max_mamba_cache_size": 100},
            "--max-mamba-cache-size 100: found 100 slots for 48 running requests; SGLang would "
            "let 25 run; supported: at least 4 a request in this scheduler mode: 192; do: pass "
            "--max-mamba-cache-size 192, or --max-running-requests 25",
        ),
        (
            {"max_total_tokens": -16},
            "--max-total-tokens: found -16; supported: 16 to 2,147,483,647",
        ),
        (
            {"max_total_tokens": 10**12},
            "--max-total-tokens: found 1,000,000,000,000; supported: 16 to",
        ),
        (
            {"max_total_tokens": 787937},
            "supported: 787,936 or 787,952; do: pass --max-total-tokens",
        ),
        ({"max_running_requests": 0}, "--max-running-requests: found 0; supported: 1 to 4,096"),
        ({"max_mamba_cache_size": -1}, "--max-mamba-cache-size: found -1; supported: 1 to"),
    ],
)
@pytest.mark.parametrize("on_cpu", [False, True])
def test_sizes_that_cannot_be_are_refused_before_anything_starts(prepare, fields, found, on_cpu):
    with pytest.raises(UserError) as refusal:
        prepare(on_cpu=on_cpu, **fields)
    assert found in str(refusal.value)


def test_a_node_without_the_memory_of_one_apu_is_refused(prepare, tmp_path):
    root = unpack(
        tmp_path / "lacking", "mi300a-node", without=("sys/devices/system/node/node2/meminfo",)
    )
    with pytest.raises(
        UserError, match="/sys/devices/system/node/node2/meminfo: found not readabl"
    ):
        prepare(root)


def test_a_control_group_smaller_than_the_weights_is_refused_with_what_raises_it(prepare, tmp_path):
    root = unpack(tmp_path / "contained", "container-v2")
    (root / "sys/fs/cgroup/memory.max").write_text(f"{160 * 2**30}\n")
    said = refused(prepare, root)
    assert "cgroup leaves" in said
    assert (
        "ask for a higher /sys/fs/cgroup/memory.max (Slurm: --mem=0; docker: no --memory)" in said
    )


def test_a_job_that_may_not_use_two_numa_nodes_is_refused_for_those(prepare, tmp_path):
    said = refused(prepare, unpack(tmp_path / "job", "cpuset-job"))
    assert "APU 3: " in said
    assert "cpuset leaves 0.00 GB" in said


def test_on_the_cpu_engine_nothing_is_judged_and_that_is_said(prepare):
    prepared = prepare(on_cpu=True)
    assert prepared.said == ("memory: SGLang's CPU engine, not an APU: not checked",)
    assert (prepared.job, prepared.fields, prepared.environment) == (None, {}, {})


def test_a_simulated_node_is_for_the_cpu_engine_only_and_says_so_in_every_line(
    prepare, tmp_path, monkeypatch
):
    root = unpack_idle(tmp_path / "simulated")
    monkeypatch.setenv(settings.SIMULATED_NODE, str(root))
    prepared = prepare(root, on_cpu=True)
    assert all(line.startswith(f"simulated node {root}: ") for line in prepared.said)
    assert prepared.job.root == str(root)
    assert prepared.fields == {}
    with pytest.raises(UserError, match="on a machine with an accelerator"):
        prepare(root)
    shutil.rmtree(root)
    with pytest.raises(UserError, match="a directory with a recorded node's files"):
        prepare(unpack_idle(tmp_path / "other"), on_cpu=True)


def test_what_was_taken_is_said_beside_what_was_planned(prepare):
    job = prepare().job
    reports = {rank: RankReport(rank, 1, "serving", facts={BEFORE: 120 * GB}) for rank in range(4)}
    now = [Sample(rank, 20 * GB, 10 * GB, 30 * GB) for rank in range(4)]
    lines = serve_memory._taken(job, reports, now)
    assert len(lines) == 4
    planned = job.plan.ranks[3].planned("device") / GB
    assert lines[3].startswith(
        "APU 3: 90.00 GB (83.82 GiB) taken since its weights began to load, "
    )
    assert f"{planned:.2f} GB (" in lines[3]


def test_several_nodes_are_not_judged_and_that_is_said(prepare):
    assert "2 nodes: not checked" in prepare(nnodes=2).said[0]


def test_core_dumps_are_off_for_the_server_and_its_children():
    source = (
        "import resource, subprocess, sys; from sglang_mi300a.cli import serve_memory;"
        "most = resource.getrlimit(resource.RLIMIT_CORE)[1];"
        "resource.setrlimit(resource.RLIMIT_CORE, (most, most));"
        "serve_memory.forbid_core_dumps();"
        "print(subprocess.run(['sh', '-c', 'ulimit -c'], capture_output=True).stdout)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout == "b'0\\n'\n"
