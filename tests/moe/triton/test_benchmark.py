"""The committed result of the benchmark on a GPU, and what is said of it."""

import copy
import json
import subprocess
import sys

import pytest
import torch

from benchmarks import triton_moe
from sglang_mi300a.moe.rungs import ExpertSizes
from tests import repository

RESULT = repository.ROOT / "benchmarks/results/triton_moe.json"


@pytest.fixture
def committed():
    return json.loads(RESULT.read_text())


def test_the_committed_runs_are_right_and_fast_enough(committed):
    assert committed["command"] == "python benchmarks/triton_moe.py --rounds 41 --json, three times"
    assert len(committed["runs"]) == 3
    for run in committed["runs"]:
        assert run["evidence"] == "E2"
        assert triton_moe.failures(run) == []


def test_the_committed_runs_hold_every_batch_and_their_figures_agree(committed):
    batches = [(m, routing) for m in triton_moe.TOKENS for routing in triton_moe.ROUTINGS]
    expert_bytes = sum(triton_moe.stream_bytes(name) for name in triton_moe.SHAPES)
    for run in committed["runs"]:
        assert [(row["tokens"], row["routing"]) for row in run["rows"]] == batches
        for row in run["rows"]:
            num_bytes = row["experts"] * expert_bytes
            assert row["weight_mb"] == pytest.approx(num_bytes / 1e6, rel=2e-3)
            assert row["gb_per_s"] == pytest.approx(num_bytes / row["us"] / 1e3, rel=2e-3)
            assert row["of_copy"] == pytest.approx(row["gb_per_s"] / run["copy_gb_per_s"], rel=2e-3)


def test_the_readme_shows_the_committed_runs(committed):
    readme = (repository.ROOT / "benchmarks/README.md").read_text()
    assert triton_moe.markdown(committed["runs"]) in readme
    assert "within 2.9e-3 relative L2" in readme
    assert max(row["relative_l2"] for run in committed["runs"] for row in run["rows"]) < 2.9e-3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"of_copy": 0.299}, "0.299 of the copy"),
        ({"replay_equal": False}, "other bits"),
        ({"relative_l2": float("nan")}, "relative L2 nan"),
    ],
)
def test_a_run_that_fails_is_judged_so(change, words, committed):
    run = copy.deepcopy(committed["runs"][0])
    run["rows"][2].update(change)
    (said,) = triton_moe.failures(run)
    assert words in said


def test_a_code_that_is_not_exact_is_judged_so(committed):
    run = copy.deepcopy(committed["runs"][0])
    run["decodes_exactly"]["plain/1"] = False
    assert triton_moe.failures(run) == ["plain/1: not every code is exact"]


def test_streams_have_the_size_that_the_layout_gives():
    assert ExpertSizes(512, 4096, 256, 10, "stream/1", "mxfp4") == triton_moe.SIZES
    assert triton_moe.stream_bytes("w13") == 512 * 4096 * 17 // 32


@pytest.mark.skipif(torch.cuda.is_available(), reason="an accelerator is here: run the benchmark")
def test_without_an_accelerator_it_says_that_it_did_not_run():
    command = [sys.executable, "benchmarks/triton_moe.py"]
    ended = subprocess.run(
        command,
        cwd=repository.ROOT,
        env={"PYTHONPATH": str(repository.ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "not run" in ended.stderr
