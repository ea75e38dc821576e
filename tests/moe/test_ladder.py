"""Which rung a process takes, and what it says of those it does not."""

from dataclasses import replace

import pytest
import torch

from sglang_mi300a.errors import UserError
from sglang_mi300a.moe import ladder, selftest
from sglang_mi300a.moe.rungs import ExpertSizes
from sglang_mi300a.moe.torch_rung import TorchRung

CPU = torch.device("cpu")
SIZES = ExpertSizes(num_experts=8, hidden=64, inner=32, top_k=2, layout="plain/1")


class Named(TorchRung):
    """The torch rung under another name, that may refuse, lie or break."""

    def __init__(self, name, *, reason=None, factor=1.0, error=None):
        super().__init__()
        self.name, self.reason, self.factor, self.error = name, reason, factor, error

    def can_run(self, device, sizes):
        return self.reason

    def apply(self, prepared, hidden, topk_ids, topk_weights):
        if self.error is not None:
            raise self.error
        return super().apply(prepared, hidden, topk_ids, topk_weights) * self.factor


def rungs(**special):
    """Makers of three good rungs, but for those described by keyword."""
    return {name: lambda name=name: Named(name, **special.get(name, {})) for name in ladder.NAMES}


@pytest.fixture(autouse=True)
def _a_fresh_process():
    ladder.forget()
    yield
    ladder.forget()


def choose(allowed, target="gfx942", **special):
    return ladder.choose(target, CPU, SIZES, allowed=allowed, rungs=rungs(**special))


@pytest.mark.parametrize("allowed", ladder.NAMES)
def test_the_best_rung_that_works_is_taken_whatever_is_allowed(allowed, capsys):
    choice = choose(allowed)
    assert (choice.rung.name, choice.tried) == ("hip", ())
    assert choice.test.passed
    assert capsys.readouterr().err == ""


def test_a_rung_that_cannot_run_is_passed_over_aloud_where_a_lower_one_is_allowed(capsys):
    choice = choose("triton", hip={"reason": "no HIP runtime"})
    assert choice.rung.name == "triton"
    assert "expert layer not on hip: no HIP runtime" in capsys.readouterr().err
    line = choice.report()["line"]
    assert line.startswith("expert layer on triton, self-test passed")
    assert "not hip: no HIP runtime" in line


def test_without_leave_the_server_stops_and_names_the_remedy():
    with pytest.raises(UserError) as refused:
        choose("hip", hip={"reason": "no HIP runtime"})
    assert refused.value.exit_code == 2
    assert refused.value.found == "hip: no HIP runtime"
    assert "--allow-rung triton or torch" in refused.value.do


def test_a_rung_that_disagrees_is_dropped_aloud(capsys):
    choice = choose("torch", hip={"factor": 1.01}, triton={"factor": float("nan")})
    assert choice.rung.name == "torch"
    said = capsys.readouterr().err
    assert "not on hip: self-test FAILED: relative L2 0.011 of 0.004" in said
    assert "not on triton: self-test FAILED: relative L2 nan" in said


@pytest.mark.parametrize("error", [RuntimeError("out of registers"), ValueError("no such size")])
def test_a_rung_that_breaks_in_its_self_test_is_dropped_with_its_words(error, capsys):
    assert choose("torch", hip={"error": error}).rung.name == "triton"
    assert f"self-test failed: {error}" in capsys.readouterr().err


def test_if_all_fail_all_reasons_are_given():
    with pytest.raises(UserError) as refused:
        choose("torch", **{name: {"reason": f"{name} is ill"} for name in ladder.NAMES})
    assert refused.value.found == "hip: hip is ill; triton: triton is ill; torch: torch is ill"
    assert "--allow-rung" not in refused.value.do


def test_on_a_cpu_the_torch_rung_is_taken_and_no_other_looked_at():
    choice = choose("torch", target="cpu", hip={"error": AssertionError("looked at")})
    assert choice.rung.name == "torch"


def test_a_missing_module_is_a_reason():
    def absent():
        raise ModuleNotFoundError("No module named 'triton'")

    made = {**rungs(hip={"reason": "no"}), "triton": absent}
    choice = ladder.choose("gfx942", CPU, SIZES, allowed="torch", rungs=made)
    assert choice.rung.name == "torch"
    assert choice.tried[1].outcome == "not importable (No module named 'triton')"


def test_a_process_chooses_once_and_keeps_to_it():
    first = ladder.of_process("cpu", CPU, SIZES, allowed="torch", rungs=rungs())
    again = ladder.of_process("cpu", CPU, SIZES, allowed="torch", rungs={})
    assert again is first
    first.rung.reason = "another layout"
    with pytest.raises(UserError, match="torch: another layout"):
        ladder.of_process("cpu", CPU, SIZES, allowed="torch", rungs={})


def test_the_self_test_sees_every_tensor_of_a_layer():
    class Spoilt(TorchRung):
        def __init__(self, spoilt):
            super().__init__()
            self.spoilt = spoilt

        def prepare(self, experts):
            experts.tensors[self.spoilt][0] ^= 0x11
            return super().prepare(experts)

    exact = replace(SIZES, activations=torch.float32)
    assert selftest.run(TorchRung(), CPU, exact).relative_l2 == 0
    for name in ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale"):
        assert not selftest.run(Spoilt(name), CPU, SIZES).passed, name


def test_the_self_test_minds_neither_default_device_nor_default_dtype():
    """A model is built with both set to its own."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            found = selftest.run(TorchRung(), CPU, replace(SIZES, activations=torch.float32))
    finally:
        torch.set_default_dtype(before)
    assert found.relative_l2 == 0
