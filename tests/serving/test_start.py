"""A server warms itself up before anybody else reaches it, and says how it started."""

import dataclasses
import json
import shutil

import pytest

from sglang_mi300a import boot_report, golden, settings
from sglang_mi300a.cli import golden as golden_command
from sglang_mi300a.cli.main import main
from sglang_mi300a.cli.server_process import Server, ServerDied
from sglang_mi300a.serving import ready, steps
from tests.serving.conftest import SERVE


def on(*names):
    """Run a test on each server of these names."""
    return pytest.mark.parametrize("served", names, indirect=True)


@on("tuned TP 2")
def test_a_start_is_told_and_warmed_up_before_the_server_listened(served):
    server, _ = served
    start = ready.read(server.run_dir)
    stages = [row["stage"] for row in start["timeline"]]
    for stage in ("spawn", "load: target", "load: draft", "pools", "graphs", "warm-up: decode"):
        assert stage in stages
    loaded = {row["stage"]: row["num_bytes"] for row in start["timeline"]}
    assert loaded["load: target"] > loaded["load: draft"] > 0
    assert start["warm_up"]["tokens_a_step"] > 1.05
    log = server.log
    assert log.index("where the time of this start went") < log.index("Uvicorn running on")
    assert log.index("Uvicorn running on") < log.index('"GET /health HTTP/1.1" 200')
    assert "image" not in log[log.index("Uvicorn running on") :].splitlines()[0]
    assert "/v1/chat/completions" not in log[: log.index("fired up and ready")]


@on("tuned TP 2")
def test_every_rank_summed_right_and_counted_its_steps(served):
    reports = boot_report.read_all(served[0].run_dir)
    assert set(reports) == {0, 1}
    for report in reports.values():
        assert report.facts["start_check"]["collective"] == "right"
        batches = steps.decode_batches(steps.of_data(report.facts["warm_up_steps"]))
        assert max(batches) == 8
        assert min(batches) == 1
        assert report.seams["serving.after_warm_up"].calls >= 1


@on("tuned TP 2")
def test_it_compared_itself_with_the_golden_logits_of_another_implementation(served):
    server, _ = served
    start = ready.read(server.run_dir)
    assert start["golden"]["largest_distance"] < 1e-4  # float32 on both sides
    assert start["golden"]["num_sure"] > 0
    assert start["golden"]["num_parted"] == 0
    assert "golden logits" in [row["stage"] for row in start["timeline"]]
    log = server.log
    assert log.index("distance to the golden logits 0.0000") < log.index("Uvicorn running on")


@pytest.mark.slow
def test_a_server_that_is_far_from_the_golden_logits_never_listens(artifacts, models, tmp_path):
    path = tmp_path / "artifact"
    shutil.copytree(artifacts(1, echo=False), path)
    right = golden_command.make(models(echo=False), path)
    # What the reference would say of a model whose tokens are all renumbered.
    rows = tuple(
        dataclasses.replace(row, top_ids=tuple(token ^ 1 for token in row.top_ids))
        for row in right.rows
    )
    golden.write(path, dataclasses.replace(right, rows=rows))
    command = [*map(str, [*SERVE, "--model", path, "--preset", "baseline"])]
    with pytest.raises(ServerDied) as died, Server(command, {}):
        pass
    assert died.value.exit_code == 1
    assert "no rounding explains that" in died.value.log
    assert "the warm-up failed; stopping the server" in died.value.log
    assert "Uvicorn running on" not in died.value.log


@on("tuned TP 2")
def test_paths_of_an_accelerator_are_not_claimed_on_a_cpu(served):
    start = ready.read(served[0].run_dir)
    assert {one["status"] for one in start["paths"].values()} == {"not taken here"}


@on("tuned TP 2")
def test_the_report_takes_the_start_in(served, tmp_path):
    out = tmp_path / "report.json"
    assert main(["report", "--out", str(out), "--run-dir", str(served[0].run_dir)]) == 0
    start = json.loads(out.read_text())["start"]
    assert start["timeline"][0]["seconds"] > 0
    assert start["warm_up"] == ready.read(served[0].run_dir)["warm_up"]


@pytest.mark.slow
def test_a_warm_up_that_is_not_answered_in_time_stops_the_server_with_its_reason(artifacts):
    command = [*map(str, [*SERVE, "--model", artifacts(1, echo=False), "--preset", "baseline"])]
    with (
        pytest.raises(ServerDied) as died,
        Server(command, {settings.WARM_UP_SECONDS: "0.001"}),
    ):
        pass
    assert died.value.exit_code == 1
    assert "warm-up: wave 'prefill 17' (1 requests) was not answered" in died.value.log
    assert "the warm-up failed; stopping the server" in died.value.log
    assert "Uvicorn running on" not in died.value.log
