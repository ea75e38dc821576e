"""The steps that need no server, taken for real."""

import pytest

from sglang_mi300a.demo import expert_block, memory_plan, walk
from sglang_mi300a.demo.account import NOT_RUN, PASSED, Command, Picture, Table
from sglang_mi300a.demo.journey import Journey


@pytest.fixture
def take(tmp_path):
    def take(name):
        [step] = [step for step in walk.STEPS if step.name == name]
        [account] = walk.take(Journey(tmp_path), [step])
        return account

    return take


def outputs(account):
    return {one.typed: one for one in account.pieces if isinstance(one, Command)}


def test_doctors_verdict_is_short_and_says_what_is_missing_here(take):
    account = take("doctor")
    assert account.status == PASSED, account.faults
    [table] = [one for one in account.pieces if isinstance(one, Table)]
    assert "no-gfx942" in [row[1] for row in table.rows]


def test_a_table_is_applied_and_two_are_refused_with_what_differs(take):
    account = take("gemm-tables")
    assert account.status == PASSED, account.faults
    said = outputs(account)
    assert "applied: DEMO/state/tables/gemm-" in said["sglang-mi300a tables apply"].output
    refused = said["sglang-mi300a tables check"]
    assert refused.exit_code == 2
    assert "tunableop1.csv: line 8: found 'GemmTunableOp_BFloat16_TN" in refused.output
    foreign = said["sglang-mi300a tables import DEMO/from_another_device0.csv"]
    assert "found GCN_ARCH_NAME gfx950" in foreign.output


def test_the_plan_of_the_real_model_fits_one_node_as_a_picture_and_not_the_other(take):
    account = take("memory-plan")
    assert account.status == PASSED, account.faults
    [picture] = [one for one in account.pieces if isinstance(one, Picture)]
    assert b"<svg" in picture.data
    assert [one.exit_code for one in outputs(account).values()] == [0, 1]


def test_a_plan_without_matplotlib_says_that_its_picture_is_missing(take, monkeypatch):
    monkeypatch.setattr(memory_plan.importlib.util, "find_spec", lambda name: None)
    account = take("memory-plan")
    assert account.status == PASSED, account.faults
    assert not [one for one in account.pieces if isinstance(one, Picture)]
    said = [one.text for one in account.pieces if not isinstance(one, Command)]
    assert any(text.startswith("no picture: matplotlib is missing") for text in said)


def test_a_plan_that_does_not_fit_fails_the_step(take, monkeypatch):
    monkeypatch.setattr(memory_plan, "NODE", memory_plan.SMALL_NODE)
    account = take("memory-plan")
    assert "ended with 1, expected 0" in account.faults[0]


@pytest.mark.slow
def test_the_shipped_code_computes_a_layer_of_true_sizes(take, monkeypatch):
    monkeypatch.setattr(expert_block, "NUM_EXPERTS", 10)
    monkeypatch.setattr(expert_block, "NUM_TOKENS", 3)
    account = take("expert-block")
    assert account.status == PASSED, account.faults
    [table] = [one for one in account.pieces if isinstance(one, Table)]
    assert {row[0].split("_")[1] for row in table.rows} == {"sort", "gate", "down", "sum"}
    assert "10 experts instead of 512" in account.pieces[0].text


def test_outside_a_checkout_the_machine_code_is_not_run_and_that_is_said(take, monkeypatch):
    monkeypatch.setattr(expert_block.code_objects, "source_tree", lambda: None)
    account = take("expert-block")
    assert account.status == NOT_RUN
    assert account.faults == []
    assert "`make demo` in a checkout" in account.pieces[0].text
