"""What each step of the walk counts as gone wrong, and what it counts as right."""

from dataclasses import replace

import pytest

from sglang_mi300a.demo import control, counts, dense_tables, doctor_verdict, expert_block
from sglang_mi300a.demo.counts import Counts

HOOKS = {
    "moe.quark": {"required": True, "live": True, "calls_min_over_ranks": 8},
    "pools.turn_tail": {"required": False, "live": True, "calls_min_over_ranks": 0},
}
BASELINE = Counts(
    preset="baseline",
    tokens_compared=648,
    tokens_equal=648,
    sessions_tokens=288,
    decode_passes=276,
    drafts_accepted=0,
    prompt_tokens=2372,
    cached_tokens=1572,
    prefill_passes=6,
    sessions_s=9.0,
    other_drafts_accepted=0,
    hooks=HOOKS,
)
TUNED = replace(
    BASELINE, preset="tuned", decode_passes=156, drafts_accepted=120, other_drafts_accepted=80
)


def test_servers_with_every_token_equal_and_every_required_hook_called_have_no_fault():
    assert list(counts.faults_of(BASELINE, drafts=False)) == []
    assert list(counts.faults_of(TUNED, drafts=True)) == []
    assert list(counts.faults_between(BASELINE, TUNED)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens_equal": 647}, "647 of 648 tokens equal"),
        ({"tokens_compared": 0, "tokens_equal": 0}, "0 of 0 tokens equal"),
        ({"cached_tokens": 0}, "no prompt token from the prefix cache"),
        ({"prefill_passes": 0}, "no pass over a prompt in the server's log"),
        ({"drafts_accepted": 10, "other_drafts_accepted": 9}, "19 drafts accepted, expected at"),
        ({"hooks": {}}, "no rank reported its hooks"),
        (
            {"hooks": {**HOOKS, "moe.quark": {**HOOKS["moe.quark"], "live": False}}},
            "hook moe.quark not live",
        ),
        (
            {"hooks": {**HOOKS, "moe.quark": {**HOOKS["moe.quark"], "calls_min_over_ranks": 0}}},
            "hook moe.quark not live or never called",
        ),
    ],
)
def test_one_thing_gone_wrong_on_a_server_is_the_one_fault(change, said):
    [fault] = counts.faults_of(replace(TUNED, **change), drafts=True)
    assert fault.startswith(said)


def test_drafts_of_a_preset_without_drafts_are_a_fault():
    [fault] = counts.faults_of(TUNED, drafts=False)
    assert fault == "200 drafts accepted by a preset that does not draft"


def test_drafts_that_save_no_pass_are_a_fault():
    [fault] = counts.faults_between(BASELINE, replace(TUNED, decode_passes=276))
    assert fault == "276 decode passes, 276 without drafts"


def test_servers_that_were_not_asked_the_same_are_not_compared():
    [fault] = counts.faults_between(BASELINE, replace(TUNED, prompt_tokens=2000))
    assert fault.startswith("not asked the same")


def test_the_verdict_names_the_counts_and_claims_no_speed():
    said = counts.verdict(BASELINE, TUNED)
    assert "156 decode passes where `baseline` asked for 276 (0.57 of them)" in said
    assert "120 drafts were accepted" in said
    assert said.endswith(counts.NO_SPEED)
    assert not {"faster", "slower", "speedup"} & set(said.split())
    rows = {label: values for label, *values in counts.rows([BASELINE, TUNED])}
    assert rows["of these from the prefix cache"] == ["1572", "1572"]
    assert rows["sessions took, on this CPU (not compared)"] == ["9 s", "9 s"]


@pytest.mark.parametrize(
    ("found", "archs", "is_right"),
    [
        (["no-gfx942"], [], True),
        (["no-gfx942"], ["gfx1103"], True),
        ([], ["gfx942"] * 4, True),
        ([], [], False),
        (["no-gfx942"], ["gfx942"], False),
    ],
)
def test_doctor_must_find_that_there_is_no_gfx942_exactly_where_there_is_none(
    found, archs, is_right
):
    assert (doctor_verdict.judge(found, archs) == []) == is_right


LAYER = {
    "code_sha256": "abc",
    "relative_l2": 0.0029,
    "tolerance": 0.0032,
    "kernels": [
        {"name": "sort", "matrix_instructions": 0, "uninitialised_reads": 0},
        {"name": "down", "matrix_instructions": 9, "uninitialised_reads": 0},
    ],
}


def kernels(**change):
    return [LAYER["kernels"][0], {**LAYER["kernels"][1], **change}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"code_sha256": "def"}, "another code object was run"),
        ({"relative_l2": 0.0032}, "relative L2 0.0032, allowed 0.0032"),
        ({"relative_l2": float("nan")}, "relative L2 nan"),
        ({"kernels": kernels(matrix_instructions=0)}, "no matrix instruction"),
        ({"kernels": kernels(uninitialised_reads=1)}, "down read what was never written"),
    ],
)
def test_a_layer_that_went_wrong_says_how(change, said):
    assert list(expert_block.judge(LAYER, "abc")) == []
    [fault] = expert_block.judge({**LAYER, **change}, "abc")
    assert fault.startswith(said)


REFUSED = f"Traceback\nNameError: {control.KNOWN_REASON}\n"


@pytest.mark.parametrize(
    ("exit_code", "log", "said"),
    [
        (None, REFUSED, "it did not end by itself"),
        (1, "MemoryError", "not for the known reason"),
        (1, REFUSED + "2 of 2 ranks loaded the package", "the package was loaded although"),
    ],
)
def test_a_control_that_fails_for_another_reason_proves_nothing(exit_code, log, said):
    assert control.judge(1, REFUSED) == []
    [fault] = control.judge(exit_code, log)
    assert fault.startswith(said)


def test_a_spoilt_file_differs_in_one_digit_of_the_line_that_is_named(tmp_path):
    path = tmp_path / "tunableop0.csv"
    before = dense_tables.result_file()
    path.write_text(before)
    path.chmod(0o444)
    number = dense_tables.spoil(path)
    pairs = zip(before.splitlines(), path.read_text().splitlines(), strict=True)
    differing = [at for at, (one, other) in enumerate(pairs, 1) if one != other]
    assert differing == [number]
