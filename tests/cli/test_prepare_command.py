"""`sglang-mi300a prepare`: from a checkpoint to the launch line, however it is interrupted."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from sglang_mi300a import device, golden
from sglang_mi300a.cli import main as program
from sglang_mi300a.cli import prepare_steps, tables
from sglang_mi300a.cli.prepare_steps import STEPS, Wanted
from sglang_mi300a.doctor.judging import Finding
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import staging
from sglang_mi300a.gemm.tuned_table import Choice
from sglang_mi300a.kernel_cache import aiter_install, key, needed
from sglang_mi300a.kernel_cache.store import Store
from sglang_mi300a.moe import tile_choice
from sglang_mi300a.served_model import SHIPPED_CONFIG
from sglang_mi300a.tiny_model import make_tiny_model
from sglang_mi300a.weights import shard
from tests.gemm import sample_tables
from tests.gemm.standin_tunableop import STACK
from tests.kernel_cache import standin_aiter
from tests.kernel_cache.conftest import stored
from tests.moe.kernels.test_measured import as_measured
from tests.repository import ROOT

MI300A = device.Accelerator(0, "AMD Instinct MI300A", "gfx942", 228, True, 0)
KIND = "qwen3_5-moe-mxfp4"
NODES = ROOT / "sglang_mi300a/pools/nodes"
LATER = ("kernel-cache", "gemm-table", "expert-table", "plan")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("prepare") / "tiny", kind=KIND).path


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_MI300A_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SGLANG_MI300A_LOCAL_DIR", str(tmp_path / "local"))


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch):
    monkeypatch.setattr(device, "accelerators", lambda *_: [])


@pytest.fixture
def prepare(checkpoint, tmp_path, capfd):
    """Prepare into ``tmp_path/out``; return exit code, account (or text) and stderr."""

    def call(*flags, model=checkpoint, out=True):
        words = ["prepare", "--model", model, "--tp", "2", *flags]
        words += ["--out", tmp_path / "out"] if out else []
        code = program.main([str(word) for word in words])
        said, err = capfd.readouterr()
        return code, json.loads(said) if "--json" in flags else said, err

    return call


def became(account):
    return {row["step"]: row["became"] for row in account["steps"]}


def unchanging(folder):
    """What tells whether a file was written again."""
    return {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.rglob("*") if p.is_file()}


def interrupted(*_):
    raise KeyboardInterrupt


# -- from nothing to the launch line ---------------------------------------------------------------


def test_a_checkpoint_becomes_what_the_launch_line_serves_and_stays_as_it_is(
    prepare, tmp_path, capfd
):
    code, said, _ = prepare()
    assert code == 0
    assert f"sglang-mi300a serve --model {tmp_path / 'out'} --preset tuned" in said
    assert "[2/7] shard: sglang-mi300a shard-weights" in said
    assert program.main(["artifact", "verify", str(tmp_path / "out")]) == 0
    capfd.readouterr()
    before = unchanging(tmp_path / "out")
    code, account, _ = prepare("--json", "--verify")
    assert (code, account["failed"]) == (0, None)
    assert became(account) == {
        "doctor": "fine",
        "shard": "kept",
        "golden": "skipped",
        "kernel-cache": "cannot",
        "gemm-table": "cannot",
        "expert-table": "cannot",
        "plan": "fine",
    }
    assert "every byte" in account["steps"][1]["said"]
    assert account["launch"] in said
    assert unchanging(tmp_path / "out") == before


def test_golden_logits_are_computed_where_they_are_asked_for_and_then_kept(prepare, tmp_path):
    others = [flag for step in ("doctor", *LATER) for flag in ("--skip", step)]
    code, account, _ = prepare("--json", "--with", "golden", *others)
    assert (code, became(account)["golden"]) == (0, "done")
    assert "8 prompts" in account["steps"][2]["said"]
    written = unchanging(tmp_path / "out")
    _, account, _ = prepare("--json", "--with", "golden", *others)
    assert became(account)["golden"] == "kept"
    assert unchanging(tmp_path / "out") == written
    # From an artifact alone they cannot be computed.
    (tmp_path / "out/golden.json").unlink()
    artifact = tmp_path / "out"
    flags = ("--json", "--with", "golden", *others)
    _, account, _ = prepare(*flags, model=artifact, out=False)
    assert became(account)["golden"] == "cannot"


def test_golden_logits_of_another_checkpoint_stop_it(prepare, tmp_path):
    prepare(*[flag for step in ("doctor", *LATER) for flag in ("--skip", step)])
    row = golden.Row((5,), (1,), (-0.1,), (), ())
    golden.write(tmp_path / "out", golden.Golden("0", "by hand", "other", (row,)))
    code, account, err = prepare("--json", "--with", "golden", "--skip", "doctor")
    assert (code, account["failed"]["step"]) == (2, "golden")
    assert "make it again with `sglang-mi300a golden`, or remove it" in err


def test_minutes_and_disk_are_told_before_and_after(prepare):
    _, account, _ = prepare("--json", "--skip", "doctor")
    row = account["steps"][1]
    assert row["became"] == "done"
    assert row["estimated_s"] == pytest.approx(0.0, abs=0.1)
    assert row["spent_s"] > 0
    assert row["estimated_bytes"] == pytest.approx(row["spent_bytes"], rel=0.1)


def test_a_dry_run_says_the_commands_and_makes_nothing(prepare, tmp_path):
    code, said, _ = prepare("--dry-run")
    assert code == 0
    assert said.count("would run: sglang-mi300a ") == 3
    assert "would run: sglang-mi300a plan" in said
    _, account, _ = prepare("--dry-run", "--json")
    assert set(became(account).values()) == {"not reached", "skipped"}
    assert account["steps"][1]["state"] == "to do"
    assert account["launch"] is None
    assert not (tmp_path / "out").exists()


def test_what_a_machine_without_an_accelerator_cannot_do_is_said_with_what_it_means(prepare):
    _, account, _ = prepare("--dry-run", "--json")
    said = {row["step"]: row["said"] for row in account["steps"] if row["state"] == "cannot"}
    assert "no AITER, so a server starts without" in said["kernel-cache"]
    assert "a server starts without" in said["gemm-table"]
    assert "the shipped serves" in said["expert-table"]


def test_steps_that_are_skipped_are_not_done(prepare, tmp_path, checkpoint):
    code, account, _ = prepare("--json", "--skip", "shard", "--skip", "doctor")
    assert code == 0
    assert [name for name, how in became(account).items() if how == "skipped"] == [
        "doctor",
        "shard",
        "golden",
    ]
    assert account["launch"] == (
        f"sglang-mi300a serve --model {checkpoint} --preset tuned --tp-size 2"
    )
    assert not (tmp_path / "out").exists()


def test_an_artifact_is_taken_as_it_is(prepare, tmp_path):
    prepare("--skip", "doctor")
    code, account, _ = prepare("--json", model=tmp_path / "out", out=False)
    assert (code, became(account)["shard"]) == (0, "kept")
    assert account["artifact"] == str(tmp_path / "out")
    code, _, err = prepare(model=tmp_path / "out")
    assert (code, "which is an artifact already" in err) == (2, True)


# -- interruptions ---------------------------------------------------------------------------------

KILLED_BEFORE_PLAN = """
import os, signal, sys
from sglang_mi300a.cli import main, prepare_steps
plan = prepare_steps.STEPS[-1]
object.__setattr__(plan, "words", lambda wanted: os.kill(os.getpid(), signal.SIGKILL))
sys.exit(main.main(sys.argv[1:]))
"""


def test_after_a_kill_between_steps_the_same_command_goes_on(prepare, tmp_path, checkpoint):
    words = ["prepare", "--model", str(checkpoint), "--tp", "2", "--out", str(tmp_path / "out")]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_PLAN, *words, "--skip", "doctor"],
        env=os.environ,
        check=False,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL
    before = unchanging(tmp_path / "out")
    assert before
    code, account, _ = prepare("--json", "--skip", "doctor")
    assert code == 0
    assert (became(account)["shard"], became(account)["plan"]) == ("kept", "fine")
    assert unchanging(tmp_path / "out") == before


def test_ctrl_c_ends_with_130_and_an_account(prepare, monkeypatch):
    monkeypatch.setattr(shard, "_check_space", interrupted)
    code, account, err = prepare("--json", "--skip", "doctor")
    assert code == 130
    assert (became(account)["shard"], became(account)["plan"]) == ("stopped", "not reached")
    assert account["launch"] is None
    assert "stopped at step shard; the same command goes on from there" in err


def test_an_unfinished_artifact_is_finished(prepare, tmp_path, monkeypatch):
    finish = shard._finish
    monkeypatch.setattr(shard, "_finish", interrupted)
    assert prepare("--skip", "doctor")[0] == 130
    monkeypatch.setattr(shard, "_finish", finish)
    code, account, _ = prepare("--json", "--skip", "doctor")
    row = account["steps"][1]
    assert (code, row["became"]) == (0, "done")
    assert row["estimated_bytes"] < 1e6, "what the killed run had written was counted again"


# -- what stops it ---------------------------------------------------------------------------------


def test_a_missing_model_is_refused_before_anything_starts(prepare, tmp_path):
    code, said, err = prepare(model=tmp_path / "nowhere")
    assert (code, said) == (2, "")
    assert f"{tmp_path / 'nowhere'}: found no such directory" in err


def test_an_unknown_preset_or_step_is_refused(prepare):
    assert prepare("--preset", "fastest")[0] == 2
    with pytest.raises(SystemExit, match="2"):
        prepare("--skip", "everything")


def test_a_full_disk_stops_it_at_the_weights_with_what_was_done(prepare, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    code, account, err = prepare("--json", "--skip", "doctor")
    assert code == 2
    assert became(account) == {
        "doctor": "skipped",
        "shard": "failed",
        "golden": "skipped",
        **dict.fromkeys(LATER, "not reached"),
    }
    assert "0.0 GB free" in account["failed"]["message"]
    assert "too little for the weights" in err
    assert account["launch"] is None


def test_a_damaged_artifact_is_named_and_never_deleted(prepare, tmp_path):
    prepare("--skip", "doctor")
    victim = sorted((tmp_path / "out/rank-1").glob("*.safetensors"))[0]
    victim.write_bytes(victim.read_bytes()[:-1])
    before = unchanging(tmp_path / "out")
    code, account, err = prepare("--json", "--skip", "doctor")
    assert (code, became(account)["shard"]) == (2, "failed")
    assert str(victim) in account["failed"]["message"]
    assert f"delete {tmp_path / 'out'} and give the same command again" in err
    code, _, err = prepare("--dry-run", "--skip", "doctor")
    assert (code, str(victim) in err) == (2, True)
    assert prepare("--dry-run", "--skip", "doctor", "--skip", "shard")[0] == 0
    assert unchanging(tmp_path / "out") == before


def test_a_changed_bit_is_found_where_every_byte_is_read(prepare, tmp_path):
    prepare("--skip", "doctor")
    victim = sorted((tmp_path / "out/rank-0").glob("*.safetensors"))[0]
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    assert prepare("--skip", "doctor")[0] == 0
    code, _, err = prepare("--skip", "doctor", "--verify")
    assert (code, "by the manifest" in err) == (2, True)


def test_an_artifact_for_other_ranks_or_of_another_checkpoint_is_refused(prepare, tmp_path):
    prepare("--skip", "doctor")
    other = make_tiny_model(tmp_path / "other", kind=KIND, mtp=False).path
    code, _, err = prepare("--skip", "doctor", "--preset", "baseline", model=other)
    assert (code, "an artifact of another checkpoint" in err) == (2, True)
    code, _, err = prepare("--skip", "doctor", "--tp-size", "1")
    assert (code, "found TP 2, EP 1; supported: TP 1, EP 1 as asked" in err) == (2, True)


def test_a_finding_that_breaks_a_server_stops_it_and_a_risk_does_not(prepare, monkeypatch):
    def one(severity):
        finding = Finding("port-taken", severity, "seen", "why", "cure", "docs")
        return lambda facts: [finding]

    monkeypatch.setattr(prepare_steps.findings, "judge", one("breaks"))
    code, account, err = prepare("--json")
    assert (code, became(account)["doctor"], became(account)["shard"]) == (
        1,
        "failed",
        "not reached",
    )
    assert "keeps a server from starting: port-taken" in err
    monkeypatch.setattr(prepare_steps.findings, "judge", one("risks"))
    assert prepare("--dry-run")[0] == 0
    assert became(prepare("--json")[1])["doctor"] == "fine"


def test_a_plan_that_does_not_fit_ends_with_1_and_no_launch_line(prepare, tmp_path):
    described = json.loads((NODES / "mi300a-x4.json").read_text())
    for one in described["numa_nodes"]:
        one["free_bytes"] = 20_000_000_000
    node = tmp_path / "busy.json"
    node.write_text(json.dumps(described))
    code, account, err = prepare("--json", "--skip", "doctor", "--node", str(node))
    assert (code, became(account)["plan"]) == (1, "failed")
    assert account["launch"] is None
    assert "ended with exit code 1" in err


# -- on a node with MI300A -------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Four APUs and the stand-in AITER; return the key of its kernels."""
    install = standin_aiter.installed(tmp_path / "opt")
    monkeypatch.setattr(device, "accelerators", lambda *_: [MI300A] * 4)
    monkeypatch.setattr(aiter_install, "find", lambda: install)
    monkeypatch.setattr(key, "rocm_version", lambda: "7.0.51831")
    monkeypatch.setattr(key, "torch_build", lambda: "2.9.0 abc 7.0")
    monkeypatch.setenv("SGLANG_MI300A_KERNEL_CACHE", str(tmp_path / "store"))
    return key.of_this_machine(install, "gfx942", 228, needed.names())


def look(name, model=SHIPPED_CONFIG):
    """A step's state for the real model's sizes on four ranks."""
    return next(step for step in STEPS if step.name == name).state(Wanted(model, model, "tuned", 4))


def test_kernels_are_done_when_every_byte_of_every_module_is_there(node, tmp_path):
    store = Store(tmp_path / "store")
    store.check_writable()
    assert look("kernel-cache").kind == "to do"
    for name in needed.names():
        stored(store, node, name, name.encode())
    assert (look("kernel-cache").kind, look("kernel-cache").seconds) == ("done", 0)
    victim = store.object_path(store.modules(node.digest)[name].files[0].sha256)
    victim.chmod(0o644)
    victim.write_bytes(b"other bytes")
    state = look("kernel-cache")
    assert state.kind == "to do"
    assert f"{len(needed.names()) - 1} of {len(needed.names())} modules" in state.said
    assert state.seconds == prepare_steps.SECONDS_A_MODULE


def test_without_aiter_on_a_node_the_run_stops_since_no_server_would_start(
    node, prepare, monkeypatch
):
    def nowhere():
        raise UserError("aiter", found="not importable", allowed="AITER", do="use the image")

    monkeypatch.setattr(aiter_install, "find", nowhere)
    assert look("kernel-cache").kind == "cannot"
    code, account, err = prepare("--json", "--skip", "doctor")
    assert (code, became(account)["kernel-cache"], became(account)["plan"]) == (
        2,
        "failed",
        "not reached",
    )
    assert "aiter: found not importable" in err


def test_tables_are_to_be_made_until_measured_ones_are_applied(node):
    dense, experts = look("gemm-table"), look("expert-table")
    assert (dense.kind, experts.kind) == ("to do", "to do")
    assert dense.seconds > 600
    assert experts.seconds > 60
    assert dense.num_bytes > 0


def test_a_measured_table_of_these_kernels_settles_the_expert_layer(node):
    shipped = as_measured(tables.read(tile_choice.shipped_path()))
    for software, kind in (({"code_object": "0" * 16}, "to do"), (tile_choice.software(), "done")):
        tables.save(replace(shipped, software=software), tile_choice.measured_path())
        assert look("expert-table").kind == kind


def test_the_choices_of_a_refit_do_not_settle_the_expert_layer(node):
    modelled = tables.read(tile_choice.shipped_path())
    tables.save(replace(modelled, software=tile_choice.software()), tile_choice.measured_path())
    state = look("expert-table")
    assert (state.kind, "nothing was measured here" in state.said) == ("to do", True)


def test_a_table_that_settles_every_product_is_kept(node, monkeypatch):
    grid = prepare_steps.gemm_grid.of_preset(
        prepare_steps.served_model.read(SHIPPED_CONFIG), "tuned", 4
    )
    choice = Choice("library", "Gemm_Rocblas_1", "measured", 5.0, 9.0)
    for cells, kind in ((list(grid.cells())[:-1], "to do"), (list(grid.cells()), "done")):
        table = sample_tables.table(dict.fromkeys(cells, choice))
        staging.apply(table, tables.root(), 4)
        monkeypatch.setattr(tables.live_stack, "read_here", lambda: (STACK, ""))
        assert look("gemm-table").kind == kind
    monkeypatch.setattr(
        tables.live_stack, "read_here", lambda: ({**STACK, "ROCM_VERSION": "2"}, "")
    )
    state = look("gemm-table")
    assert (state.kind, "does not fit: " in state.said) == ("to do", True)
