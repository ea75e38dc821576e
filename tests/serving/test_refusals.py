"""Bad input ends with one clear line and exit code 2, and leaves nothing behind."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_mi300a import golden, settings
from sglang_mi300a.pools import unified_memory
from sglang_mi300a.pools.byte_text import GB
from tests.pools.unified_memory.machines import take, unpack_idle
from tests.serving.conftest import SERVE, STOCK_SERVE, stock_environment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a command and checks that no temporary file is left."""
    temporary = tmp_path / "temporary files"
    temporary.mkdir()

    def run(command, **environment):
        environment = settings.child_environment({**environment, "TMPDIR": str(temporary)})
        done = subprocess.run(
            [str(part) for part in command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        left = [path for path in temporary.iterdir() if "sglang-mi300a" in path.name]
        assert not left
        return done

    return run


def refusal(done):
    """The one line that says why, of a command that refused."""
    assert done.returncode == 2, done.stderr[-2000:]
    [line] = [line for line in done.stderr.splitlines() if "; supported: " in line]
    return line


def test_a_missing_model_directory(run, tmp_path):
    line = refusal(run([*SERVE, "--model", tmp_path / "no where"]))
    assert "no where: found no such directory" in line


@pytest.mark.parametrize(
    ("kind", "found"),
    [("dense", "Qwen3ForCausalLM"), ("qwen3_5-moe-bf16", "quantization_config null")],
)
def test_another_model_or_quantisation(run, models, kind, found):
    moe = kind != "dense"
    line = refusal(run([*SERVE, "--model", models(kind=kind, mtp=moe)]))
    assert found in line


def test_an_unknown_preset_names_the_known_ones_in_both_spellings(run, artifacts):
    line = refusal(run([*SERVE, "--model", artifacts(1), "--preset", "fastest"]))
    assert "found 'fastest'; supported: off, baseline, tuned" in line
    stock = [*STOCK_SERVE, "--model-path", artifacts(1), "--mi300a", "fastest"]
    line = refusal(run(stock, **stock_environment()))
    assert "found 'fastest'; supported: off, baseline, tuned" in line


def test_a_tp_size_that_does_not_divide(run, models):
    line = refusal(run([*SERVE, "--model", models(), "--tp-size", "3"]))
    assert "--tp-size 3: found sizes that do not divide: num_attention_heads 8 / 3" in line


def test_an_artifact_of_another_tp_size(run, artifacts):
    line = refusal(run([*SERVE, "--model", artifacts(2), "--tp-size", "1"]))
    assert "found an artifact for TP 2, EP 1; supported: TP 1, EP 1" in line


def test_golden_logits_of_another_checkpoint_or_that_were_edited(run, artifacts, tmp_path):
    path = tmp_path / "artifact"
    shutil.copytree(artifacts(1, echo=False), path)
    row = golden.Row((5,), (1,), (-0.1,), (), ())
    golden.write(path, golden.Golden("0", "by hand", "of another checkpoint", (row,)))
    line = refusal(run([*SERVE, "--model", path]))
    assert "golden.json: found values of checkpoint of another" in line
    assert "make it again with `sglang-mi300a golden`, or remove it" in line
    file = path / golden.NAME
    file.write_text(file.read_text().replace("-0.1", "-0.2"))
    assert "a checksum that does not match" in refusal(run([*SERVE, "--model", path]))
    off = run([*SERVE, "--model", path, "--dry-run"], SGLANG_MI300A_GOLDEN="off")
    assert off.returncode == 0
    typo = refusal(run([*SERVE, "--model", path], SGLANG_MI300A_GOLDEN="no"))
    assert "SGLANG_MI300A_GOLDEN: found 'no'; supported: refuse, warn, off" in typo


def test_a_port_in_use_and_a_path_with_spaces_and_brackets(run, artifacts):
    assert " " in str(artifacts(1))
    assert "[" in str(artifacts(1))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = refusal(run([*SERVE, "--model", artifacts(1), "--port", port]))
    assert f"--port {port}: found not free (Address already in use)" in line


@pytest.mark.parametrize(
    ("name", "version"), [("sglang", "0.5.17"), ("sglang", "0.5.19"), ("torch", "2.8.0")]
)
def test_another_version_of_sglang_or_torch(run, artifacts, tmp_path, name, version):
    info = tmp_path / "older" / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    line = refusal(run([*SERVE, "--model", artifacts(1)], PYTHONPATH=str(info.parent)))
    assert f"{name}: found {version}; supported: {name}" in line


def test_a_flag_that_contradicts_what_the_preset_needs(run, artifacts):
    stock = [*STOCK_SERVE, "--model-path", artifacts(1), "--mi300a", "baseline"]
    line = refusal(run([*stock, "--load-format", "dummy"], **stock_environment()))
    assert "--load-format: found 'dummy'; supported: 'private'" in line


def test_drafts_asked_of_a_model_without_a_draft_layer(run, artifacts):
    stock = [*STOCK_SERVE, "--model-path", artifacts(1, mtp=False), "--mi300a", "tuned"]
    assert "found no MTP layer to draft with" in refusal(run(stock, **stock_environment()))


def test_a_changed_sglang_under_a_required_hook_is_refused_before_any_rank_starts(
    run, artifacts, tmp_path
):
    pins = json.loads((ROOT / "sglang_mi300a/hook_pins.json").read_text())
    target = next(name for name in pins["targets"] if name.endswith("_profile_available_bytes"))
    pins["targets"][target]["fingerprints"] = ["0" * 16]
    copy = tmp_path / "package"
    shutil.copytree(ROOT / "sglang_mi300a", copy / "sglang_mi300a")
    shutil.copy(ROOT / "pyproject.toml", copy)
    (copy / "sglang_mi300a/hook_pins.json").write_text(json.dumps(pins))
    stock = [*STOCK_SERVE, "--model-path", artifacts(1), "--mi300a", "baseline"]
    first = copy / "sglang_mi300a/cpu_engine/standins"
    done = run(stock, PYTHONPATH=f"{first}:{copy}:{settings.get('PYTHONPATH') or ''}")
    assert "hook pools.planned_bytes" in refusal(done)
    assert "pinned 0000000000000000" in refusal(done)
    assert "Without this hook: " in refusal(done)


def test_an_unknown_command_and_an_unknown_flag_exit_with_2(run):
    program = [sys.executable, "-m", "sglang_mi300a.cli.main"]
    assert run([*program, "sevre"]).returncode == 2
    assert run([*program, "presets", "--josn"]).returncode == 2


def test_a_plan_that_does_not_fit_stops_a_stock_spelling_before_any_rank_starts(
    run, artifacts, tmp_path
):
    node = unpack_idle(tmp_path / "node")
    take(node, 1, unified_memory.read(node).apus[1].node_bytes - 15 * GB)
    stock = [*STOCK_SERVE, "--model-path", artifacts(2), "--tp-size", "2", "--mi300a", "tuned"]
    done = run(stock, **stock_environment(**{settings.SIMULATED_NODE: str(node)}))
    assert done.returncode == 1, done.stderr[-2000:]
    assert "sglang-mi300a: refusing to start. The memory plan does not fit.\nAPU 1: " in done.stderr
    assert "the APU's memory leaves 15.00 GB" in done.stderr
    assert "SGLANG_MI300A_MEMORY_CHECK=warn" in done.stderr


def test_sizes_that_cannot_be_are_refused_on_a_cpu_too(run, artifacts):
    line = refusal(run([*SERVE, "--model", artifacts(1), "--max-mamba-cache-size", "8"]))
    assert "--max-mamba-cache-size 8: found 8 slots for 8 running requests" in line
