"""`sglang-mi300a tune moe`: a table measured on this machine, resumable."""

import pytest

from sglang_mi300a import tables
from sglang_mi300a.cli import kernels as command
from sglang_mi300a.cli.main import main
from sglang_mi300a.moe import ladder, tile_choice
from sglang_mi300a.moe.kernels import candidates
from sglang_mi300a.moe.kernels.prediction import Shape
from sglang_mi300a.moe.tile_tuning import Tuned, TuningRecord, merged, table_of
from tests.cli.timed_kernels import MI300A, node, torch_rung_alone  # noqa: F401
from tests.moe.timing import OTHER_WORK_US, TINY

TUNE = ["tune", "moe", "--shape", "tiny", "--weights", "subnormals", "--samples", "3", "--quiet"]


@pytest.fixture(autouse=True)
def _one_rung_below(monkeypatch):
    monkeypatch.setattr(ladder, "examine_one", torch_rung_alone)


def by_tile_and_grid(kernel, groups):
    """The large tile wins; of its second stage one workgroup a unit, of four units."""
    if "_32_" in kernel:
        return 50.0 + (groups if "down" in kernel else 0)
    return 90.0


def test_the_fastest_tile_and_grid_become_rows_that_servers_use(node, capsys):  # noqa: F811
    node.us_of = by_tile_and_grid
    assert main([*TUNE, "--tokens", "16", "64"]) == 0
    table = tables.load(tile_choice.measured_path())
    rows = list(table.rows.values())
    assert [row["m"] for row in rows] == [16, 64]
    for row in rows:
        assert (row["tile"], row["gate_up_groups"], row["down_groups"]) == (32, 1, 1)
        assert row["basis"] == "measured"
        assert row["us"] == 50.0 + 50.0 + 4
        assert row["stock_us"] == OTHER_WORK_US
    assert table.misfits(MI300A, tile_choice.software()) == []
    choice = tile_choice.choose.__wrapped__(
        40, top_k=10, experts=TINY.experts, inner=TINY.inner, weights="subnormals"
    )
    assert (choice.tile, choice.basis) == (32, "measured")
    assert str(tile_choice.measured_path()) in capsys.readouterr().out


def test_every_candidate_is_timed(node):  # noqa: F811
    main([*TUNE, "--tokens", "16"])
    timed = {kernel: set() for kernel, _ in node.timer.timed}
    for kernel, groups in node.timer.timed:
        timed[kernel].add(groups)
    # Of four units: two and one workgroups; the second stage of 32 tokens three, too.
    assert timed["moe_gate_up_16_subnormals"] == {8, 4}
    assert timed["moe_down_k256_16_subnormals"] == {8, 4}
    assert timed["moe_gate_up_32_subnormals"] == {4}
    assert timed["moe_down_k256_32_subnormals"] == {12, 8, 4}


def test_a_run_goes_on_where_the_last_one_stopped(node, capsys):  # noqa: F811
    def stop(kernel, groups):
        if len(node.timer.timed) > 25:
            raise KeyboardInterrupt
        return 100.0

    node.us_of = stop
    assert main([*TUNE, "--tokens", "16", "64", "256"]) == 130
    assert not tile_choice.measured_path().exists()
    node.timer.timed.clear()
    node.us_of = lambda kernel, groups: 70.0
    assert main([*TUNE, "--tokens", "16", "64", "256"]) == 0
    assert "1 of 3 batches to time" in capsys.readouterr().out
    us = [row["us"] for row in tables.load(tile_choice.measured_path()).rows.values()]
    assert us == [200, 200, 140]
    assert main([*TUNE, "--tokens", "16", "64", "256"]) == 0
    assert "0 of 3 batches to time" in capsys.readouterr().out
    assert main([*TUNE, "--tokens", "16", "--again"]) == 0
    assert "1 of 1 batches to time" in capsys.readouterr().out


def test_what_is_not_faster_than_the_rung_below_is_left_out(node, capsys):  # noqa: F811
    node.us_of = lambda kernel, groups: OTHER_WORK_US / 2
    assert main([*TUNE, "--tokens", "16"]) == 0
    out = capsys.readouterr().out
    assert "not faster than the rung below, left out: M 16" in out
    assert "nothing to put into a table" in out
    assert not tile_choice.measured_path().exists()


def test_without_a_rung_to_compare_with_nothing_is_timed(node, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(
        ladder, "examine_one", lambda name, *_: ladder.Examined(name, "not importable")
    )
    assert main([*TUNE, "--tokens", "16"]) == 2
    assert "no rung below the compiled kernels" in capsys.readouterr().err
    assert node.timer.timed == []


def test_the_plan_needs_no_device(monkeypatch, capsys):
    monkeypatch.setattr(command.devices, "accelerators", lambda: [])
    assert main(["tune", "moe", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "27 batches of TP4, 512 experts of 256 neurons: about 2 minutes" in out
    assert "moe_down_k256_32_subnormals: 3, 2, 1 workgroups a compute unit" in out
    assert main(["tune", "moe", "--tokens", "16"]) == 2
    assert "--dry-run shows the plan anywhere" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--samples", "2"], ["--tokens", "0"], ["--tokens", "9999"]])
def test_bad_flags_are_refused(flags, capsys):
    assert main(["tune", "moe", *flags]) == 2
    assert "3 samples or more" in capsys.readouterr().err


# -- records and tables --------------------------------------------------------------------------

ONE = Tuned(16, 32, 1, 3, 80.0, 5.0, 900.0)
OTHER = Shape("TP4", 512, 256)
FACTS = {"device": candidates.DEVICE, "software": {"code_object": "0"}, "made": {"by": "a test"}}


def test_a_torn_line_is_as_if_it_were_not_there(tmp_path):
    path = tmp_path / "a/results.jsonl"
    TuningRecord(path).add(ONE)
    whole = path.read_text()
    path.write_text(whole + whole[:20])
    record = TuningRecord(path)
    assert record.results == {16: ONE}
    assert path.read_text() == whole


def test_a_damaged_record_is_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"num_tokens": 16}\n')
    with pytest.raises(Exception, match="remove the file"):
        TuningRecord(path)


def test_a_layer_counts_with_all_its_launches():
    assert Tuned(16, 32, 1, 3, 80.0, 5.0, 85.1).is_faster
    assert not Tuned(16, 32, 1, 3, 80.0, 5.0, 85.0).is_faster


def test_rows_of_other_sizes_are_kept_if_they_were_made_alike():
    old = table_of([ONE], OTHER, "bf8", **FACTS)
    new = table_of([ONE], TINY, "subnormals", **FACTS)
    both = merged(new, old)
    assert [key[:3] for key in both.rows] == [(4, 256, "subnormals"), (512, 256, "bf8")]
    assert tables.parse(tables.render(both), "here").rows == both.rows
    stale = table_of([ONE], OTHER, "bf8", **{**FACTS, "software": {"code_object": "1"}})
    assert list(merged(new, stale).rows) == [(4, 256, "subnormals", 16)]
    assert merged(new, None) is new
    again = table_of([Tuned(64, 16, 2, 2, 9.0, 1.0, 99.0)], TINY, "subnormals", **FACTS)
    assert [key[3] for key in merged(again, new).rows] == [64]
