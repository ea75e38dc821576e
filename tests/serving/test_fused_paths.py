"""SGLang's fast paths are believed by calls that went through them, not by flags."""

import dataclasses

import pytest

from sglang_mi300a.serving import fused_paths, hooks
from sglang_mi300a.serving.fused_paths import PATHS, Asked
from sglang_mi300a.serving.steps import Steps, decode_batches, of_data

ALL = {path.id: 3 for path in PATHS if path.target}
ON_NODE = Asked(
    on_accelerator=True,
    with_draft=True,
    num_ranks=4,
    decode_captured=True,
    prefill_captured=True,
    switches=frozenset(fused_paths.SWITCHES),
)


@pytest.fixture(autouse=True)
def nothing_counted():
    fused_paths.forget()
    yield
    fused_paths.forget()


def ran(*steps):
    counts = Steps()
    for mode, batch, in_graph in steps:
        counts.add(mode, batch, in_graph=in_graph)
    return counts


GOOD = ran(("EXTEND", 1, True), ("TARGET_VERIFY", 8, True), ("TARGET_VERIFY", 8, True))


def status(counts=ALL, steps=GOOD, **change):
    seen = fused_paths.judge(counts, steps, dataclasses.replace(ON_NODE, **change))
    return {one.path.id: one.status for one in seen}


def test_all_paths_taken_warn_of_nothing():
    assert set(status().values()) == {"taken"}
    assert fused_paths.warnings(fused_paths.judge(ALL, GOOD, ON_NODE)) == []


@pytest.mark.parametrize("path", [path for path in PATHS if path.target], ids=lambda path: path.id)
def test_a_path_without_a_call_is_said_aloud_with_what_is_lost(path):
    counts = {**ALL, path.id: 0}
    assert status(counts)[path.id] == "NOT TAKEN"
    [line] = fused_paths.warnings(fused_paths.judge(counts, GOOD, ON_NODE))
    assert line.startswith(f"WARNING: {path.name} was NOT TAKEN (0 calls)")
    assert line.endswith(path.lost)


def test_one_decode_step_outside_a_graph_is_enough_to_warn():
    steps = ran(("EXTEND", 1, True), ("TARGET_VERIFY", 8, True), ("TARGET_VERIFY", 5, False))
    seen = fused_paths.judge(ALL, steps, ON_NODE)
    [line] = fused_paths.warnings(seen)
    assert "a graph for every decode step was NOT TAKEN (1 steps in graphs, 1 without)" in line


def test_no_decode_step_at_all_is_no_proof():
    assert status(steps=ran(("EXTEND", 1, True)))["decode_graph"] == "NOT TAKEN"


def test_what_was_not_asked_for_is_no_warning():
    counts = {**ALL, "replay_verify": 0, "replay_commit": 0, "reduce_norm": 0}
    eager = ran(("EXTEND", 1, False), ("DECODE", 1, False))
    found = status(
        counts, eager, with_draft=False, num_ranks=1, decode_captured=False, prefill_captured=False
    )
    wanted = {"replay_verify", "replay_commit", "reduce_norm", "decode_graph", "prefill_graph"}
    assert {name for name, one in found.items() if one == "not asked for"} == wanted


def test_a_path_whose_switch_is_off_names_the_switch():
    asked = dataclasses.replace(ON_NODE, switches=ON_NODE.switches - {fused_paths.SWITCHES[0]})
    seen = fused_paths.judge({**ALL, "reduce_norm": 0}, GOOD, asked)
    assert fused_paths.warnings(seen) == []
    [one] = [one for one in seen if one.status == "not asked for"]
    assert str(one).endswith("(0 calls; --enable-aiter-allreduce-fusion is not given)")


def test_on_the_cpu_engine_nothing_is_taken_and_nothing_is_lost():
    seen = fused_paths.judge({}, ran(("DECODE", 1, False)), dataclasses.replace(
        ON_NODE, on_accelerator=False
    ))  # fmt: skip
    assert {one.status for one in seen} == {"not taken here"}
    assert fused_paths.warnings(seen) == []


def test_every_counted_path_hangs_on_its_function_and_counts_its_calls():
    by_name = {hook.name: hook for hook in hooks.RANK_HOOKS}
    for path in PATHS:
        if path.target:
            hook = by_name[f"serving.path_{path.id}"]
            assert (hook.target, hook.kind, hook.device) == (path.target, "after", "gfx942")
            assert hook.call(object(), 1, key=2) is None
    assert set(fused_paths.taken().values()) == {1}


def test_a_fused_all_reduce_that_returns_nothing_was_not_taken():
    [path] = [path for path in PATHS if path.id == "reduce_norm"]
    count = fused_paths.counting(path)
    count(None)
    assert fused_paths.taken()["reduce_norm"] == 0
    count((1, 2))
    assert fused_paths.taken()["reduce_norm"] == 1


def test_decode_batches_are_those_of_plain_and_verify_steps():
    steps = ran(("DECODE", 2, True), ("TARGET_VERIFY", 2, False), ("EXTEND", 9, False))
    assert decode_batches(steps) == {2: 2}
    assert of_data(steps.as_data()) == steps
