"""Rows are padded to tuned ones and cut again; a table's ranks check it before a weight is read."""

import dataclasses

import pytest
import torch

from sglang_mi300a import boot_report, settings
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import hooks, live_stack, lookup_probe, padding, rank_check, staging
from sglang_mi300a.gemm.padding import RowPadding
from sglang_mi300a.gemm.shape_grid import Cell
from tests.gemm.sample_tables import ROWS, table
from tests.gemm.standin_tunableop import STACK, TunableOpOf29

RECORD = settings.Resolved(
    preset="tuned", device="gfx942", model_path="", tp_size=4, ep_size=1, num_local_ranks=4,
    with_draft=True, kv_tokens=1, state_slots=1, max_running_requests=1, run_dir="",
)  # fmt: skip


@pytest.fixture
def rows(monkeypatch):
    """Padding of a (32, 64) product to 16 or 128 rows."""
    found = RowPadding({(32, 64): [16, 128]}, {(32, 64): [16, 128], (8, 8): [1]})
    monkeypatch.setattr(padding, "_of_this_process", found)
    return found


class Layer:
    def __init__(self, n=32, k=64):
        self.weight = torch.randn((n, k))


def linear(seen):
    def original(self, layer, x, bias=None):
        seen.append(x.shape[0])
        return torch.nn.functional.linear(x, layer.weight, bias)

    return original


@pytest.mark.parametrize(
    ("m", "run_with"), [(1, 16), (15, 16), (16, 16), (17, 17), (65, 128), (128, 128), (200, 200)]
)
def test_a_product_runs_with_the_next_rows_unless_too_many_were_wasted(rows, m, run_with):
    seen, layer, x = [], Layer(), torch.randn((m, 64))
    out = hooks._linear(linear(seen), None, layer, x)
    assert seen == [run_with]
    torch.testing.assert_close(out, x @ layer.weight.T)
    assert out.is_contiguous()
    assert rows.report["padded"] == (run_with > m)


@pytest.mark.parametrize(
    ("layer", "x", "bias"),
    [
        (Layer(), torch.randn((2, 3, 64)), None),
        (Layer(), torch.randn((3, 64)), torch.randn(32)),
        (Layer(), torch.randn((0, 64)), None),
        (Layer(8, 64), torch.randn((3, 64)), None),
    ],
    ids=["three dimensions", "a bias", "no rows", "another shape"],
)
def test_other_products_are_left_alone(rows, layer, x, bias):
    seen = []
    out = hooks._linear(linear(seen), None, layer, x, bias)
    assert out.shape == (*x.shape[:-1], layer.weight.shape[0])
    assert rows.report["padded"] == 0


def test_a_layer_without_a_weight_is_stocks_own_business(rows):
    out = hooks._linear(lambda self, layer, x, bias: "stock", None, object(), torch.zeros((1, 1)))
    assert out == "stock"


def test_the_head_is_padded_and_cut(rows):
    seen, head, x = [], Layer(), torch.randn((3, 64))

    def original(self, hidden_states, lm_head, embedding_bias):
        seen.append(hidden_states.shape[0])
        return hidden_states @ lm_head.weight.T

    class Logits:
        use_fp32_lm_head, rl_on_policy_target = False, None

    out = hooks._lm_head(original, Logits(), x, head)
    assert seen == [16]
    torch.testing.assert_close(out, x @ head.weight.T)


def test_the_drafts_projection_is_padded_and_cut(rows):
    class Draft:
        fc = torch.nn.Linear(64, 32, bias=False)

    x = torch.randn((3, 64))
    expected = torch.nn.functional.linear(x, Draft.fc.weight)
    hooks._mtp_projection(None, Draft)
    torch.testing.assert_close(Draft.fc(x), expected)
    assert rows.report["padded"] == 1


def test_what_was_never_seen_and_what_no_table_expects_is_reported(rows):
    hooks._linear(linear([]), None, Layer(), torch.randn((40, 64)))
    hooks._linear(linear([]), None, Layer(4, 4), torch.randn((2, 4)))
    assert rows.report["never_seen"] == ["8x8"]
    assert rows.report["outside_the_grid"] == ["32x64x40", "4x4x2"]


def test_on_a_cpu_rows_are_padded_to_the_grid_and_elsewhere_to_the_table(tmp_path):
    grid = {(512, 4096): [16, 48]}
    x, weight = torch.zeros((40, 4096)), torch.zeros((512, 4096))
    on_cpu = dataclasses.replace(RECORD, device="cpu", gemm=padding.as_record(grid, None))
    assert padding.from_record(on_cpu).rows_for(x, weight) == 48
    untuned = dataclasses.replace(RECORD, gemm=padding.as_record(grid, None))
    assert padding.from_record(untuned).rows_for(x, weight) == 40
    applied = staging.apply(table(), tmp_path / "tables", 1)
    tuned = dataclasses.replace(RECORD, gemm=padding.as_record(grid, applied.directory))
    assert padding.from_record(tuned).rows_for(x, weight) == 64
    assert padding.from_record(None).rows_for(x, weight) == 40


def test_a_record_survives_the_environment():
    record = dataclasses.replace(RECORD, gemm=padding.as_record({(8, 16): (1, 2)}, None))
    read = settings.Resolved.from_json(record.to_json())
    assert padding.grid_in(read) == {(8, 16): [1, 2]}


def record_of(applied, **changes):
    grid = {(n, k): [m] for n, k, m in sorted(ROWS)}
    return dataclasses.replace(RECORD, gemm=padding.as_record(grid, applied.directory, **changes))


def served_by(tunable):
    def product(cell):
        tunable.product(*cell)
        return 1e-3

    return product


def test_a_rank_whose_tunableop_serves_nothing_stops_unless_untuned_is_allowed(tmp_path, rows):
    applied = staging.apply(table(), tmp_path / "tables", 4)
    tunable = TunableOpOf29(applied.environment(), 0)
    with pytest.raises(UserError, match="it did not see a product"):
        rank_check.check(tunable, record_of(applied), 0, lambda _: 0.0)
    allowed = record_of(applied, allow_untuned=True)
    said = rank_check.check(tunable, allowed, 0, lambda _: 0.0)
    assert said.startswith("serving untuned: TunableOp, 32 x 4096, M 4: found it did not see")


def test_a_rank_says_what_its_tunableop_holds(tmp_path):
    applied = staging.apply(table(), tmp_path / "tables", 4)
    tunable = TunableOpOf29(applied.environment(), 3)
    said = rank_check.check(tunable, record_of(applied), 3, served_by(tunable))
    assert said.startswith("gemm table on device 3: 3 rows loaded, ")
    assert said.endswith("; 32 x 4096, M 4: looked up and found, Gemm_Rocblas_7")


def test_a_rank_of_other_software_stops_unless_untuned_is_allowed(tmp_path, rows):
    applied = staging.apply(table(), tmp_path / "tables", 4)
    tunable = TunableOpOf29(applied.environment(), 0, {**STACK, "HIPBLASLT_VERSION": "1"})
    with pytest.raises(UserError, match="HIPBLASLT_VERSION"):
        rank_check.check(tunable, record_of(applied), 0, served_by(tunable))
    allowed = record_of(applied, allow_untuned=True)
    said = rank_check.check(tunable, allowed, 0, served_by(tunable))
    assert said.startswith("serving untuned: ")
    assert "HIPBLASLT_VERSION" in said
    hooks._linear(linear([]), None, Layer(), torch.randn((3, 64)))
    assert rows.report["padded"] == 0


def test_a_bucket_where_stock_is_as_fast_is_a_bucket_too(tmp_path):
    made = {**table().made, "stock_is_as_fast": {"512x4096": [32]}}
    applied = staging.apply(table(made=made), tmp_path / "tables", 1)
    tuned = dataclasses.replace(RECORD, gemm=padding.as_record({}, applied.directory))
    weight = torch.zeros((512, 4096))
    assert padding.from_record(tuned).rows_for(torch.zeros((20, 4096)), weight) == 32
    assert Cell(512, 4096, 32) not in ROWS


def test_before_the_first_weight_a_rank_runs_a_product_checks_its_table_and_reports(
    tmp_path, monkeypatch, capsys, rows
):
    applied = staging.apply(table(), tmp_path / "tables", 4)
    ran = []
    monkeypatch.setattr(live_stack, "run_first_product", lambda: ran.append(True))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    tunable = TunableOpOf29(applied.environment(), 2)
    monkeypatch.setattr(torch.cuda, "tunable", tunable)
    monkeypatch.setattr(lookup_probe, "run_product", served_by(tunable))
    rank_check.look(record_of(applied))
    assert ran == [True]
    assert "M 4: looked up and found, Gemm_Rocblas_7" in boot_report.facts()["gemm_table"]
    assert "gemm table on device 2: 3 rows loaded" in capsys.readouterr().err
    assert "device 2" in boot_report.facts()["gemm_table"]
    assert boot_report.facts()["gemm"] is rows.report


def test_without_a_table_a_rank_still_runs_a_product_before_any_capture(monkeypatch, rows):
    ran = []
    monkeypatch.setattr(live_stack, "run_first_product", lambda: ran.append(True))
    rank_check.look(dataclasses.replace(RECORD, gemm=padding.as_record({}, None)))
    assert ran == [True]
    rank_check.look(dataclasses.replace(RECORD, device="cpu", gemm=padding.as_record({}, None)))
    assert ran == [True]
