"""Tuning loses no more than a bad candidate's product and goes on where it stopped."""

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from sglang_mi300a import settings, tables
from sglang_mi300a.cli import tune
from sglang_mi300a.cli.main import main
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import (
    aiter_csv,
    candidates,
    linear_shapes,
    own_products,
    padding,
    staging,
    tunableop_csv,
    tuned_table,
    tuning_plan,
    tuning_record,
)
from sglang_mi300a.gemm.candidates import Candidate
from sglang_mi300a.gemm.kernels import catalogue
from sglang_mi300a.gemm.own_products import OwnProducts, SelfTest
from sglang_mi300a.gemm.row_counts import Batches
from sglang_mi300a.gemm.shape_grid import Cell, Product, ShapeGrid
from sglang_mi300a.gemm.tuning_record import Measured, TuningRecord
from sglang_mi300a.gemm.tuning_run import ChildCommand, TuningRun, ask_machine
from tests import repository
from tests.gemm import standin_tune_child
from tests.pools.plan import models

EVERY_KERNEL = frozenset(kernel.name for kernel in catalogue.KERNELS)
BATCHES = Batches((1,), 0, 0, (), 64)


def grid(m, shapes=((8, 16), (32, 64))):
    products = tuple(Product(n, k, ("w",), 1, 0, tuple(m)) for n, k in shapes)
    return ShapeGrid(tp=2, batches=BATCHES, products=products)


@pytest.fixture
def started(tmp_path):
    return tmp_path / "started"


@pytest.fixture
def how(started, tmp_path, monkeypatch):
    """Return a function that makes the command of the stand-in child."""
    monkeypatch.setenv("SGLANG_MI300A_STATE_DIR", str(tmp_path / "state"))

    def make(*behaviour):
        command = [sys.executable, "-m", "tests.gemm.standin_tune_child", str(started), *behaviour]

        def environment_on(ordinal):
            extra = {"HIP_VISIBLE_DEVICES": str(ordinal), "PYTHONPATH": str(repository.ROOT)}
            return settings.child_environment(extra)

        return ChildCommand(command, environment_on)

    return make


def test_winners_become_a_table_and_the_rest_is_said(how, capsys):
    table = tune.tune(grid([12, 13, 15, 16, 17]), [0, 1], how=how())
    won = {cell: choice.solution for cell, choice in tuned_table.choices(table).items()}
    assert won == {
        Cell(n, k, m): f"Gemm_Rocblas_{m}" for n, k in ((8, 16), (32, 64)) for m in (12, 16)
    }
    assert table.made["stock_is_as_fast"] == {"8x16": [17], "32x64": [17]}
    assert table.made["samples"] == tune.SAMPLES
    out = capsys.readouterr().out
    assert "10 of 10 products to tune on 2 devices (AMD Instinct MI300A)" in out
    assert "4 faster than stock, 2 not, 2 wrong, 2 crashed, 0 stuck" in out
    assert "0 of 4 rows are kernels of this package" in out
    assert "crashed: 8 x 16, M 13" in out
    assert "wrong: 32 x 64, M 15 Gemm_Rocblas_15" in out


def test_a_crash_costs_the_product_under_way_alone(how, started):
    tune.tune(grid([12, 13, 16], shapes=[(8, 16)]), [0], how=how())
    assert started.read_text().split("\n")[:3] == ["8 16 12 0", "8 16 13 0", "8 16 16 0"]


def test_shapes_are_spread_over_devices(how, started):
    tune.tune(grid([1, 2], shapes=[(8, k) for k in range(8, 80, 8)]), [0, 1, 2], how=how())
    devices = {line.split()[3] for line in started.read_text().splitlines()}
    assert len(devices) > 1
    assert len(started.read_text().splitlines()) == 18


def test_what_was_tuned_is_not_tuned_again(how, started, capsys):
    tune.tune(grid([12, 13]), [0], how=how())
    before = started.read_text()
    table = tune.tune(grid([12, 13, 16]), [0], how=how())
    again = started.read_text().removeprefix(before).splitlines()
    assert again == ["32 64 16 0", "8 16 16 0"]
    assert len(table.rows) == 4
    tune.tune(grid([12, 13, 16]), [0], how=how(), retry_failed=True)
    assert started.read_text().splitlines()[-2:] == ["32 64 13 0", "8 16 13 0"]


def test_a_candidate_that_never_ends_is_given_up(how, tmp_path):
    record = TuningRecord(tmp_path / "r.jsonl")
    seen = []
    run = TuningRun(how(), record, samples=3, done=seen.append, stuck_s=8.0)
    run.over([tuning_plan.Batch(8, 16, (14, 16))], [0])
    assert [(one.m, one.outcome) for one in seen] == [(14, "stuck"), (16, "won")]


def test_where_there_is_no_terminal_progress_is_a_line_at_each_twentieth(how, capsys):
    lines = tune.Lines(100, wanted=True)
    for _ in range(100):
        lines.advance()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 20
    assert said[0].startswith("tuning: 5 of 100 products, ")
    assert said[-1] == "tuning: 100 of 100 products, 0 minutes left"
    tune.tune(grid([16]), [0], how=how(), progress=False)
    assert capsys.readouterr().err == ""
    tune.tune(grid([18]), [0], how=how())
    assert "tuning: 2 of 2 products" in capsys.readouterr().err


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from pathlib import Path
from sglang_mi300a import settings
from sglang_mi300a.gemm.tuning_plan import Batch
from sglang_mi300a.gemm.tuning_record import TuningRecord
from sglang_mi300a.gemm.tuning_run import ChildCommand, TuningRun
started, record = sys.argv[1:]
command = [sys.executable, "-m", "tests.gemm.standin_tune_child", started]
how = ChildCommand(command, lambda n: settings.child_environment({"HIP_VISIBLE_DEVICES": "0"}))
run = TuningRun(how, TuningRecord(Path(record)), samples=3, done=lambda _: None)
run.over([Batch(8, 16, (12, 14))], [0])
"""


def test_ctrl_c_keeps_what_is_done_and_blames_no_candidate(started, tmp_path):
    record = tmp_path / "r.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(started), str(record)],
        env={**os.environ, "PYTHONPATH": str(repository.ROOT)},
        stderr=subprocess.PIPE,
    )
    while not (started.is_file() and " 14 " in started.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors
    assert [(one.m, one.outcome) for one in TuningRecord(record).results.values()] == [(12, "won")]


def test_a_machine_on_which_no_process_starts_is_refused_with_its_error(how):
    with pytest.raises(UserError, match="exit code 3: no accelerator"):
        ask_machine(how("broken"))


def test_processes_that_end_before_they_begin_do_not_go_on_for_ever(how, tmp_path):
    record = TuningRecord(tmp_path / "r.jsonl")
    run = TuningRun(how("late"), record, samples=3, done=lambda _: None)
    with pytest.raises(UserError, match="ended before it began"):
        run.over([tuning_plan.Batch(8, 16, (12,))], [0])
    assert record.results == {}


def test_a_run_killed_while_it_wrote_loses_that_line_alone(tmp_path):
    path = tmp_path / "r.jsonl"
    TuningRecord(path).add(Measured(8, 16, 1, "lost"))
    with path.open("a") as file:
        file.write('{"n": 8, "k": 16, "m":')
    record = TuningRecord(path)
    assert list(record.results) == [Cell(8, 16, 1)]
    record.add(Measured(8, 16, 2, "lost"))
    assert list(TuningRecord(path).results) == [Cell(8, 16, 1), Cell(8, 16, 2)]


def test_a_record_that_is_none_is_refused(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"x": 1}\n')
    with pytest.raises(UserError, match="line 1"):
        TuningRecord(path)


@pytest.mark.parametrize(
    ("us", "stock_us", "error", "outcome"),
    [
        (1.0, 2.0, 1e-3, "won"),
        (2.0, 2.0, 1e-3, "lost"),
        (1.99, 2.0, 1e-3, "lost"),
        (1.0, 2.0, 5e-3, "wrong"),
        (1.0, 2.0, math.nan, "wrong"),
    ],
)
def test_a_fast_wrong_candidate_does_not_win(us, stock_us, error, outcome):
    measured = Measured(8, 16, 1, "lost", "Gemm_Rocblas_1", us, stock_us, error, 30)
    assert tuning_record.judged(measured) == outcome


def test_a_kernel_of_ours_that_was_faster_is_a_row_that_a_rank_follows(how, capsys, monkeypatch):
    n, k = 64, 256
    tune.use(tune.tune(grid([16, 17, 20], shapes=[(n, k)]), [0], how=how()))
    out = capsys.readouterr().out
    assert "1 of 2 rows are kernels of this package" in out
    assert f"left out as wrong: {n} x {k}, M 20 Gemm_Rocblas_20" in out
    applied = staging.current(settings.state_dir() / "tables")
    row = tuned_table.choices(applied.table)[Cell(n, k, 20)]
    assert (row.choice, row.solution) == ("kernel", f"kernel/{standin_tune_child.KERNEL}")
    assert (row.us, row.stock_us) == (10.0, 30.0)
    for file in ("tunableop0.csv", "aiter_bf16.csv"):
        lines = (applied.directory / file).read_text().splitlines()
        assert len([line for line in lines if "_16_256" in line or f",16,{n},{k}," in line]) == 1
        assert not any("kernel/" in line or "_20_256" in line or ",20," in line for line in lines)

    launched = []
    monkeypatch.setattr(own_products, "_of_this_process", OwnProducts())
    monkeypatch.setattr(own_products, "self_test", lambda *_: SelfTest(EVERY_KERNEL, {}))
    record = settings.Resolved("", "gfx942", "", 1, 1, 1, False, 0, 0, 0, "")
    record.gemm.update(padding.as_record({}, applied.directory, kernels="own"))

    def product(x, w, out, w_2, out_2, kernel):
        launched.append((len(x), kernel))

    assert own_products.start(record, product, torch.device("cpu")) == []
    own = own_products.of_this_process()
    made = {m: own.product(zeros(m, k), zeros(n, k), None) is not None for m in (3, 16, 17, 19, 20)}
    assert made == {3: False, 16: False, 17: False, 19: True, 20: True}
    assert launched == [(19, standin_tune_child.KERNEL), (20, standin_tune_child.KERNEL)]


def zeros(m, k):
    return torch.zeros(m, k, dtype=torch.bfloat16)


N, N_2, K = 64, 32, 256


def paired_grid(m):
    products = tuple(
        Product(n, K, (name,), 1, 0, tuple(m))
        for n, name in zip((N, N_2), linear_shapes.ONE_LAUNCH, strict=True)
    )
    return ShapeGrid(tp=2, batches=BATCHES, products=products)


def test_two_products_that_are_faster_in_one_launch_are_a_row_that_a_rank_follows(
    how, started, capsys, monkeypatch
):
    table = tune.tune(paired_grid([12, 16, 17, 20, 320]), [0], how=how())
    assert "2 of 4 pairs of products are faster in one launch" in capsys.readouterr().out
    ours = f"kernel/{standin_tune_child.KERNEL}"
    assert [line for line in started.read_text().splitlines() if line.startswith("96 ")] == [
        "96 256 12 0 Gemm_Rocblas_12 Gemm_Rocblas_12",
        "96 256 16 0 Gemm_Rocblas_16 Gemm_Rocblas_16",
        "96 256 17 0  ",
        f"96 256 20 0 {ours} {ours}",
    ]
    rows = tuned_table.choices(table)
    assert {cell.m for cell in rows if cell.n == N + N_2} == {16, 20}
    pair = rows[Cell(N + N_2, K, 16)]
    assert (pair.solution, pair.choice) == (f"{ours}/{N}+{N_2}", "kernel")
    for text in (tunableop_csv.render(table), aiter_csv.render(table)):
        assert "Gemm" in text or "torch" in text
        assert "kernel/" not in text
        assert not re.search(rf"_{N + N_2}_|,{N + N_2},", text)

    tune.use(table)
    applied = staging.current(settings.state_dir() / "tables")
    launched = []
    monkeypatch.setattr(own_products, "_of_this_process", OwnProducts())
    monkeypatch.setattr(own_products, "self_test", lambda *_: SelfTest(EVERY_KERNEL, {}))
    record = settings.Resolved("", "gfx942", "", 1, 1, 1, False, 0, 0, 0, "")
    record.gemm.update(padding.as_record({}, applied.directory, kernels="own"))

    def product(x, w, out, w_2, out_2, kernel):
        launched.append((len(x), kernel, w_2 is not None))

    own_products.start(record, product, torch.device("cpu"))
    own, first, second = own_products.of_this_process(), zeros(N, K), zeros(N_2, K)
    own.pair(first, second)
    made = {}
    for m in (12, 15, 17, 20):
        x = zeros(m, K)
        made[m] = [own.product(x, weight, None) is not None for weight in (first, second)]
    assert made == {12: [False] * 2, 15: [True] * 2, 17: [False] * 2, 20: [True] * 2}
    assert launched == [(m, standin_tune_child.KERNEL, True) for m in (15, 20)]


def test_pairs_are_timed_once_for_a_build_of_the_kernels(how, started, monkeypatch):
    tune.tune(paired_grid([12, 16]), [0], how=how())
    before = started.read_text()
    tune.tune(paired_grid([12, 16]), [0], how=how())
    assert started.read_text() == before
    monkeypatch.setattr(catalogue, "build", lambda: "another")
    table = tune.tune(paired_grid([12, 16]), [0], how=how())
    assert "96 256 16" in before
    again = started.read_text().removeprefix(before)
    assert re.sub(r" known \S+", "", again) == before
    assert table.made["kernels"] == "another"


def test_no_pair_is_timed_where_no_kernel_takes_both_or_the_size_is_a_weight_of_its_own(how):
    best = {Cell(n, K, 16): "" for n in (N, N_2)}
    (batch,) = tuning_plan.pairs_of(paired_grid([16]), best, set())
    assert (batch.n, batch.parts, batch.m) == (N + N_2, (N, N_2), (16,))
    assert tuning_plan.pairs_of(paired_grid([16]), best, {Cell(N + N_2, K, 16)}) == []
    assert tuning_plan.pairs_of(paired_grid([16]), {Cell(N, K, 16): ""}, set()) == []
    assert tuning_plan.pairs_of(grid([16]), best, set()) == []
    alike = paired_grid([16])
    own = Product(N + N_2, K, ("w",), 1, 0, (16,))
    alike = dataclasses.replace(alike, products=(*alike.products, own))
    assert tuning_plan.pairs_of(alike, best, set()) == []
    odd = [dataclasses.replace(one, n=one.n + 1) for one in paired_grid([16]).products]
    best = {Cell(n + 1, K, 16): "" for n in (N, N_2)}
    assert tuning_plan.pairs_of(dataclasses.replace(alike, products=tuple(odd)), best, set()) == []


@pytest.mark.parametrize(("apart_us", "outcome"), [(9.0, "won"), (5.0, "lost"), (5.2, "won")])
def test_a_pair_wins_only_if_it_is_faster_than_its_products_apart(apart_us, outcome):
    names = candidates.solutions_of_pair((N, N_2), K, [standin_tune_child.KERNEL])
    assert names == [f"kernel/{standin_tune_child.KERNEL}/{N}+{N_2}"]
    times = {candidates.STOCK: [9.5], candidates.APART: [apart_us], names[0]: [5.0]}
    found = candidates.fastest(
        Cell(N + N_2, K, 16), [Candidate(names[0], 1e-3)], times, kernels="b", parts=(N, N_2)
    )
    assert (found.outcome, found.us, found.stock_us) == (outcome, 5.0, 9.5)
    assert found.others == {candidates.APART: apart_us}


def test_kernel_rows_of_another_build_are_not_followed_and_this_is_said(how, monkeypatch):
    tune.use(tune.tune(grid([16, 20], shapes=[(64, 256)]), [0], how=how()))
    applied = staging.current(settings.state_dir() / "tables")
    monkeypatch.setattr(own_products, "_of_this_process", OwnProducts())
    monkeypatch.setattr(own_products, "self_test", lambda *_: SelfTest(EVERY_KERNEL, {}))
    monkeypatch.setattr(catalogue, "build", lambda: "another")
    record = settings.Resolved("", "gfx942", "", 1, 1, 1, False, 0, 0, 0, "")
    record.gemm.update(padding.as_record({}, applied.directory, kernels="own"))
    (line,) = own_products.start(record, lambda *_: None, torch.device("cpu"))
    assert line.startswith("gemm table: 1 rows name kernels of build ")
    assert "`sglang-mi300a tune gemm` measures this build" in line


def test_few_tokens_are_tuned_again_for_other_kernels_and_for_none_only_once(
    how, started, monkeypatch
):
    asked = grid([16, 320], shapes=[(8, 16)])
    monkeypatch.setenv("SGLANG_MI300A_DENSE_KERNELS", "library")
    tune.tune(asked, [0], how=how())
    before = started.read_text()
    tune.tune(asked, [0], how=how())
    assert started.read_text() == before
    monkeypatch.delenv("SGLANG_MI300A_DENSE_KERNELS")
    tune.tune(asked, [0], how=how())
    again = "8 16 16 0 known Gemm_Rocblas_16\n"  # the library's choice stands
    assert started.read_text() == before + again
    monkeypatch.setattr(catalogue, "build", lambda: "another")
    tune.tune(asked, [0], how=how())
    assert started.read_text() == before + again * 2


def test_the_librarys_choice_is_kept_unless_it_crashed_or_nothing_was_right(tmp_path):
    record = TuningRecord(tmp_path / "r.jsonl")
    ours, library = "kernel/a", "Gemm_Rocblas_1"
    results = {
        1: Measured(8, 16, 1, "won", library, others={ours: 2.0}),
        2: Measured(8, 16, 2, "won", ours, others={library: 2.0}),
        3: Measured(8, 16, 3, "lost", ours, wrong=(library,)),
        4: Measured(8, 16, 4, "won", ours),
        5: Measured(8, 16, 5, "lost", "Default"),
        6: Measured(8, 16, 6, "wrong", library),
        7: Measured(8, 16, 7, "crashed"),
    }
    for one in results.values():
        record.add(one)
    known = TuningRecord(record.path).library_choices()
    assert {cell.m: name for cell, name in known.items()} == {
        1: library, 2: library, 3: library, 4: "Default", 5: "Default",
    }  # fmt: skip


def test_a_kernel_that_fails_its_test_on_the_device_is_named(how, capsys):
    tune.tune(grid([16], shapes=[(8, 16)]), [0], how=how("dropping"))
    said = capsys.readouterr().out
    assert f"kernels not timed ({standin_tune_child.KERNEL}): relative L2 inf" in said


def test_candidates_are_the_librarys_and_each_kernel_that_takes_the_product():
    kernels = sorted(EVERY_KERNEL)
    few, many = Cell(64, 256, 256), Cell(64, 256, 257)
    taking = {f"kernel/{one.name}" for one in catalogue.that_take(64, 256)}
    assert taking
    assert set(candidates.solutions(few, "Gemm_Rocblas_1", kernels)) == {"Gemm_Rocblas_1", *taking}
    assert candidates.solutions(many, "Gemm_Rocblas_1", kernels) == ["Gemm_Rocblas_1"]
    assert candidates.solutions(few, "Default", ["gemm_skinny_64x16_w2"]) == [
        "kernel/gemm_skinny_64x16_w2"
    ]
    assert candidates.solutions(Cell(33, 256, 4), "", kernels) == []


LIBRARY, OURS, SLOW = "Gemm_Rocblas_1", "kernel/a", "kernel/b"


@pytest.mark.parametrize(
    ("errors", "times", "outcome", "solution", "wrong"),
    [
        ({LIBRARY: 1e-3, OURS: 1e-3, SLOW: 1e-3}, (6, 5, 7, 9), "won", OURS, ()),
        ({LIBRARY: 1e-3, OURS: 1e-3, SLOW: 1e-3}, (4, 5, 7, 9), "won", LIBRARY, ()),
        ({LIBRARY: 1e-3, OURS: 9e-3, SLOW: 1e-3}, (6, 5, 7, 9), "won", LIBRARY, (OURS,)),
        ({LIBRARY: math.nan, OURS: 1e-3, SLOW: 1e-3}, (4, 5, 7, 9), "won", OURS, (LIBRARY,)),
        ({LIBRARY: 1e-3, OURS: 1e-3, SLOW: 1e-3}, (6, 5, 7, 5), "lost", OURS, ()),
        ({OURS: 1e-3}, (0, 5, 0, 9), "won", OURS, ()),
        ({LIBRARY: 9e-3, OURS: math.nan}, (1, 1, 1, 9), "wrong", LIBRARY, (LIBRARY, OURS)),
        ({}, (0, 0, 0, 9), "lost", "", ()),
    ],
)
def test_the_fastest_of_those_that_are_right_wins_if_stock_is_slower(
    errors, times, outcome, solution, wrong
):
    tried = [Candidate(name, error) for name, error in errors.items()]
    names = (LIBRARY, OURS, SLOW, candidates.STOCK)
    timed = {name: [us * 2.0, us, us / 2.0] for name, us in zip(names, times, strict=True)}
    right = {candidates.STOCK, *(one.solution for one in tried if one.is_right)}
    found = candidates.fastest(
        Cell(8, 16, 4), tried, {k: v for k, v in timed.items() if k in right}, kernels="build"
    )
    assert (found.outcome, found.solution, tuple(found.wrong)) == (outcome, solution, wrong)
    assert found.kernels == "build"
    if outcome == "won":
        assert (found.us, found.stock_us) == (timed[solution][1], 9.0)
        assert set(found.others) == right - {candidates.STOCK, solution}


def test_where_nothing_can_be_gained_a_real_accelerator_gave_an_empty_table():
    recorded = json.loads((repository.ROOT / "benchmarks/results/tuning_null.json").read_text())
    plain, played = recorded["as it is"], recorded["the library for our kernels"]
    assert (plain["has_table"], played["has_table"]) == (False, False)
    assert plain["outcomes"]["lost"] == sum(plain["outcomes"].values()) > 0
    assert played["candidates"] > 100
    assert played["products_where_the_spoilt_one_is_wrong"] == played["products_of_few_tokens"] > 0
    assert recorded["least_gain"] == tuning_record.LEAST_GAIN > 2 * played["largest_difference"]


def test_another_device_or_version_has_a_record_of_its_own(how):
    machine = ask_machine(how())
    other = dataclasses.replace(machine, device={**machine.device, "visible_cus": 304})
    newer = dataclasses.replace(machine, validators={**machine.validators, "ROCM_VERSION": "8"})
    assert len({one.digest() for one in (machine, other, newer)}) == 3


def test_what_is_lacking_is_tuned_before_serving_and_then_nothing(how, monkeypatch, started):
    monkeypatch.setattr(tune, "child_command", how)
    tune.fill(grid([12, 17]), [0])
    applied = staging.current(settings.state_dir() / "tables")
    assert "tn_8_12_16" in tunableop_csv.render(applied.table)
    before = started.read_text()
    tune.fill(grid([12, 17]), [0])
    assert started.read_text() == before


def test_the_saved_table_is_whole(how):
    tune.tune(grid([12]), [0], how=how())
    (path,) = (settings.state_dir() / "tuned").glob("*.json")
    assert len(tuned_table.checked(tables.load(path), str(path)).rows) == 2


def test_the_plan_needs_no_accelerator(capsys):
    command = ["tune", "gemm", "--model", str(models.REAL), "--chunked-prefill-size", "1024"]
    assert main([*command, "--dry-run"]) == 0
    out = capsys.readouterr().out
    found = re.match(r"(\d+) products on 4 devices: about (\d+) minutes \(estimate", out)
    assert int(found[2]) == tuning_plan.minutes_for(int(found[1]), 4)
    assert "62080 x 4096" in out
    assert main([*command, "--dry-run", "--devices", "0,1"]) == 0
    minutes = tuning_plan.minutes_for(int(found[1]), 2)
    assert f"on 2 devices: about {minutes} minutes" in capsys.readouterr().out


def test_without_an_accelerator_tuning_is_refused(capsys):
    assert main(["tune", "gemm", "--model", str(models.REAL)]) == 2
    assert "no AMD accelerator" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--devices", "a"], ["--devices", "-1"], ["--samples", "1"]])
def test_bad_flags_are_refused(flags, capsys):
    assert main(["tune", "gemm", "--model", str(models.REAL), "--dry-run", *flags]) == 2
    assert flags[0] in capsys.readouterr().err
