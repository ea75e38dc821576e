"""The committed result of the weights benchmark, and what is said of it."""

import copy
import json

import pytest

pytest.importorskip("torch", reason="the benchmark's parameters are torch's")

from benchmarks import weights
from tests import repository


@pytest.fixture
def committed():
    return json.loads((repository.ROOT / "benchmarks/results/weights.json").read_text())


def test_the_committed_run_is_within_todays_bars_and_beside_every_peer(committed):
    assert committed["peers"].keys() == weights.PEERS.keys()
    assert committed["bars"] == {**weights.BARS, "ours_over_theirs": weights.PEER_BAR}
    assert committed["artifact_bytes"] >= 4 << 30
    assert (committed["verdict"], weights.verdict(committed)) == ("within all bars",) * 2


def test_its_ratios_are_those_of_its_seconds(committed):
    median = {name: sorted(s)[len(s) // 2] for name, s in committed["seconds"].items()}
    load = median["load-full"]
    assert committed["load_ratio_vs_raw"] == pytest.approx(load / median["raw"])
    assert committed["shard_ratio_vs_copy"] == pytest.approx(median["shard"] / median["copy"])
    for name, peer in committed["peers"].items():
        assert len(peer["ours_over_theirs_by_round"]) == committed["rounds"]
        assert peer["ratio_vs_raw"] == pytest.approx(median[name] / median["raw"])


def test_the_readme_shows_the_committed_run(committed):
    readme = (repository.ROOT / "benchmarks/README.md").read_text()
    assert weights.markdown(committed) in readme


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("load_ratio_vs_raw", 1.12, "over: load_ratio_vs_raw"),
        ("shard_ratio_vs_copy", 1.67, "over: shard_ratio_vs_copy"),
        ("cache_left_fraction", 0.03, "over: cache_left_fraction"),
        ("raw_spread", 0.2, "noisy"),
    ],
)
def test_a_run_over_a_bar_is_judged_so(committed, key, value, said):
    run = copy.deepcopy(committed)
    run[key] = value
    assert weights.verdict(run) == said


def test_a_run_behind_a_peer_is_judged_so(committed):
    run = copy.deepcopy(committed)
    run["peers"]["runai"]["ours_over_theirs"] = 1.01
    assert weights.verdict(run) == "over: runai"
