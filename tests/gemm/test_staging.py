"""An applied table reaches every rank's TunableOp whole, or the server is stopped with the line."""

import multiprocessing
import os
import stat

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import coverage, live_stack, staging, tuned_table
from sglang_mi300a.gemm.row_counts import Batches
from sglang_mi300a.gemm.shape_grid import Cell, Product, ShapeGrid
from tests.gemm.sample_tables import ROWS, table
from tests.gemm.standin_tunableop import (
    STACK,
    TunableOpOf29,
    TunableOpOf213,
    UnknownSolutionError,
)

CELLS = sorted(ROWS)
BOTH = pytest.mark.parametrize("torch_tunable", [TunableOpOf29, TunableOpOf213])


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state" / "tables"


def test_there_is_a_file_for_each_device_read_only_and_equal(root):
    applied = staging.apply(table(), root, 4)
    files = sorted(applied.directory.glob("tunableop*.csv"))
    assert [file.name for file in files] == [f"tunableop{n}.csv" for n in range(4)]
    assert len({file.read_bytes() for file in files}) == 1
    assert all(b"\r" not in file.read_bytes() for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in applied.directory.iterdir()} == {0o444}


def test_what_is_applied_is_found_again_and_can_be_taken_away(root):
    assert staging.current(root) is None
    applied = staging.apply(table(), root, 4)
    assert staging.current(root) == applied
    assert staging.remove(root) == [applied.directory]
    assert staging.current(root) is None


@BOTH
def test_every_ranks_tunableop_takes_every_row_and_dispatches_it(root, torch_tunable):
    applied = staging.apply(table(), root, 4)
    for ordinal in range(4):
        tunable = torch_tunable(applied.environment(), ordinal)
        loaded = live_stack.check(tunable, applied, ordinal, [*CELLS, Cell(1, 1, 1)])
        assert (loaded.num_rows, loaded.num_covered, loaded.num_cells) == (3, 5, 6)
        assert f"device {ordinal}: 3 rows loaded, 5 of 6 products covered" in str(loaded)
        assert tunable.product(512, 4096, 16) == "Gemm_Rocblas_12"
        assert tunable.product(512, 4096, 17) == "Default"
        # A kernel's and AITER's rows are not TunableOp's.
        assert tunable.product(5120, 4096, 128) == "Default"


@BOTH
def test_nothing_is_rewritten_when_the_process_ends(root, torch_tunable):
    applied = staging.apply(table(), root, 1)
    file = applied.directory / "tunableop0.csv"
    file.chmod(0o644)  # as to root: the mode bits protect nothing
    before = file.read_bytes()
    tunable = torch_tunable(applied.environment())
    live_stack.check(tunable, applied, 0, CELLS)
    tunable.exit()
    assert file.read_bytes() == before


def test_without_this_package_the_older_tunableop_empties_a_file_it_dropped(root):
    """The failure that the test above would not notice if the stand-in could not fail so."""
    applied = staging.apply(table(), root, 1)
    file = applied.directory / "tunableop0.csv"
    file.chmod(0o644)
    tunable = TunableOpOf29(applied.environment(), 0, {**STACK, "PT_VERSION": "2.9.1"})
    assert tunable.product(512, 4096, 16) == "Default"
    tunable.exit()
    assert "Rocblas" not in file.read_text().split("ROCBLAS_VERSION")[1]


@BOTH
@pytest.mark.parametrize("name", STACK)
def test_one_unlike_byte_in_one_version_stops_the_server_and_is_named(root, name, torch_tunable):
    applied = staging.apply(table(), root, 1)
    here = {**STACK, name: STACK[name][:-1] + "~"}
    tunable = torch_tunable(applied.environment(), 0, here)
    with pytest.raises(UserError) as refusal:
        live_stack.check(tunable, applied, 0, CELLS)
    said = str(refusal.value)
    assert f"{name}: table {STACK[name]!r}, here {here[name]!r}" in said
    assert f"first unlike byte: {len(STACK[name]) - 1}" in said
    assert "sglang-mi300a tune gemm" in said
    assert all(f"{other}: " not in said for other in STACK if other != name)


def test_a_version_that_only_the_stack_has_is_named(root):
    applied = staging.apply(table(), root, 1)
    tunable = TunableOpOf213(applied.environment(), 0, {**STACK, "NEW_VERSION": "1"})
    with pytest.raises(UserError, match="NEW_VERSION: not in the table"):
        live_stack.check(tunable, applied, 0, CELLS)


def test_a_version_that_only_the_table_has_is_named(root):
    applied = staging.apply(table(), root, 1)
    here = {name: value for name, value in STACK.items() if name != "ROCBLAS_VERSION"}
    with pytest.raises(UserError, match="ROCBLAS_VERSION: table '5.0.0.976b9c4a87', here None"):
        live_stack.check(TunableOpOf213(applied.environment(), 0, here), applied, 0, CELLS)


def test_a_tunableop_that_reads_another_file_or_is_off_is_refused(root, tmp_path):
    applied = staging.apply(table(), root, 1)
    environment = applied.environment()
    elsewhere = {**environment, "PYTORCH_TUNABLEOP_FILENAME": str(tmp_path / "mine%d.csv")}
    off = {**environment, "PYTORCH_TUNABLEOP_ENABLED": "0"}
    with pytest.raises(UserError, match="mine0.csv"):
        live_stack.check(TunableOpOf213(elsewhere), applied, 0, CELLS)
    with pytest.raises(UserError, match="TunableOp: found off"):
        live_stack.check(TunableOpOf213(off), applied, 0, CELLS)


def test_a_row_that_did_not_arrive_is_refused(root):
    applied = staging.apply(table(), root, 1)
    file = applied.directory / "tunableop0.csv"
    file.chmod(0o644)
    file.write_text(file.read_text().replace("Gemm_Rocblas_12", "Gemm_Rocblas_13"))
    with pytest.raises(UserError, match="2 of 3 rows in TunableOp; it lacks tn_512_16_4096"):
        live_stack.check(TunableOpOf213(applied.environment()), applied, 0, CELLS)


def test_an_unknown_solution_would_end_the_process_and_so_never_gets_into_a_table(root):
    applied = staging.apply(table(), root, 1)
    file = applied.directory / "tunableop0.csv"
    file.chmod(0o644)
    file.write_text(file.read_text().replace("Gemm_Rocblas_12", "Gemm_Rocblas_999"))
    with pytest.raises(UnknownSolutionError):
        TunableOpOf213(applied.environment()).product(512, 4096, 16)


def spoil(file, change):
    file.chmod(0o644)
    file.write_bytes(change(file.read_bytes()))


SPOILT = {
    "CRLF": (lambda d: d.replace(b"\n", b"\r\n"), "tunableop1.csv: line 1", r"\r\n"),
    "emptied": (lambda d: b"", "tunableop1.csv: line 1", "found the file's end"),
    "cut": (lambda d: d[: d.rindex(b"Gemm")], "tunableop1.csv: line 8", ""),
    "rows swapped": (
        lambda d: b"".join([*d.splitlines(True)[:5], *d.splitlines(True)[:4:-1]]),
        "tunableop1.csv: line 6", "tn_512_64",
    ),
    "one byte": (lambda d: d.replace(b"7.0.0.0", b"7.0.0.1"), "line 2", "7.0.0.1-38"),
}  # fmt: skip


@pytest.mark.parametrize("defect", SPOILT)
def test_ranks_files_that_differ_stop_the_server_before_it_starts(root, defect):
    change, line, shown = SPOILT[defect]
    applied = staging.apply(table(), root, 4)
    spoil(applied.directory / "tunableop1.csv", change)
    with pytest.raises(UserError) as refusal:
        staging.current(root)
    assert line in str(refusal.value)
    assert shown in str(refusal.value)
    assert "sglang-mi300a tables apply" in str(refusal.value)


def test_a_file_that_is_gone_is_named(root):
    applied = staging.apply(table(), root, 4)
    (applied.directory / "tunableop2.csv").unlink()
    with pytest.raises(UserError, match="tunableop2.csv: found not readable"):
        staging.current(root)


def test_a_spoilt_file_is_repaired_by_applying_again(root):
    applied = staging.apply(table(), root, 4)
    spoil(applied.directory / "tunableop1.csv", lambda data: b"")
    staging.apply(table(), root, 4)
    assert staging.current(root) == applied


def test_a_running_server_keeps_its_files_when_another_table_is_applied(root):
    first = staging.apply(table(), root, 1)
    rows = {Cell(512, 4096, 16): ROWS[Cell(512, 4096, 16)]}
    second = staging.apply(table(rows), root, 1)
    assert staging.current(root) == second
    assert (first.directory / "tunableop0.csv").is_file()
    assert first.directory != second.directory


@pytest.mark.parametrize("character", [":", "%"])
def test_a_path_that_aiter_or_tunableop_would_misread_is_refused(tmp_path, character):
    with pytest.raises(UserError, match=f"'{character}' in its path"):
        staging.apply(table(), tmp_path / f"a{character}b", 1)


def test_a_directory_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    if os.geteuid() == 0:  # to root no directory is read-only: a file in its place is as good
        (tmp_path / "state").write_text("")
        path = tmp_path / "state" / "tables"
    else:
        path = tmp_path / "state"
        path.mkdir(mode=0o500)
    with pytest.raises(UserError, match="not writable.*SGLANG_MI300A_STATE_DIR"):
        staging.apply(table(), path, 1)
    assert not path.exists() or not list(path.iterdir())


def _apply_many(path, number):
    for turn in range(8):
        cell = Cell(512, 4096, 16 * (number + 1) + turn)
        staging.apply(table({cell: ROWS[Cell(512, 4096, 16)]}), path, 4)
        staging.apply(table(), path, 4)


def test_four_writers_at_once_leave_one_whole_table(root):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_apply_many, args=(root, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert staging.current(root) is not None
    assert not list(root.glob(".*"))


def test_coverage_is_told_in_launches_of_the_largest_batch_and_prefill_buckets():
    batches = Batches((1, 4), 4, 1, (), 32)
    products = (
        Product(512, 4096, ("a", "b"), 60, 1, (1, 4, 16, 32)),
        Product(32, 4096, ("c",), 45, 0, (4, 16, 32)),
        Product(64, 4096, ("head",), 1, 1, (1, 4, 16, 32)),
    )
    grid = ShapeGrid(tp=4, batches=batches, products=products)
    assert coverage.lines(table(), grid) == [
        "covers 2 of 11 products: tuned 60 of 106 launches of batch 4, 0 of 2 prefill buckets",
        "lacks 512 x 4096 at M 1, 4, 32",
        "lacks 32 x 4096 at M 16, 32",
        "lacks 64 x 4096 at M 1, 4, 16, 32",
    ]
    settled = {**table().made, "stock_is_as_fast": {"32x4096": [16], "64x4096": [16]}}
    assert coverage.lines(table(made=settled), grid)[0] == (
        "covers 4 of 11 products: tuned 106 of 106 launches of batch 4, 1 of 2 prefill buckets"
    )


def test_coverage_counts_the_cells_that_have_a_row():
    have, lack = tuned_table.covered(table(), [*CELLS, Cell(32, 4096, 5)])
    assert (have, lack) == (CELLS, [Cell(32, 4096, 5)])
    assert tuned_table.bucket_rows(table())[512, 4096] == [16, 64]
