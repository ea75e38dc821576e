"""A launcher on gfx942 refuses what no rank's code object could run, unless it is allowed."""

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_mi300a import code_objects, settings
from sglang_mi300a.cli import launch, main
from sglang_mi300a.errors import UserError
from sglang_mi300a.served_model import ServedModel

TEXT = {
    "hidden_size": 4096,
    "moe_intermediate_size": 1024,
    "num_experts": 512,
    "num_experts_per_tok": 10,
}


def model(layout=None, **text):
    return ServedModel(
        path=Path("S"),
        config={},
        text={**TEXT, **text},
        is_artifact=layout is not None,
        artifact_tp=4,
        artifact_ep=1,
        artifact_layout=layout,
        has_draft=True,
        text_only=True,
    )


def test_the_served_model_is_kept_in_the_kernels_layout_and_fits_them():
    for tp, ep in ((8, 1), (4, 1), (2, 1), (4, 4)):
        assert launch.expert_layout(model(), tp, ep) == "stream/1"
        launch._check_code_object(model(), tp, ep, "stream/1")


def test_an_artifact_is_taken_as_it_was_made():
    assert launch.expert_layout(model("plain/1"), 4, 1) == "plain/1"
    with pytest.raises(UserError, match="layout 'stream/9'; supported: plain/1, stream/1"):
        launch.expert_layout(model("stream/9"), 4, 1)


@pytest.mark.parametrize(
    ("tp", "layout", "change", "reason"),
    [
        (4, "plain/1", {}, "weights in layout plain/1.*run shard-weights again"),
        (16, "stream/1", {}, "no down kernel .* 64 neurons"),
        (4, "stream/1", {"hidden_size": 2048}, "hidden size 2048; the kernels take 4096"),
        (4, "stream/1", {"num_experts": 1025}, "1025 local experts"),
    ],
)
def test_what_the_kernels_do_not_take_is_refused_with_the_remedy(tp, layout, change, reason):
    with pytest.raises(UserError, match=reason) as refused:
        launch._check_code_object(model(**change), tp, 1, layout)
    assert refused.value.exit_code == 2
    assert "--allow-rung triton or torch" in refused.value.do


def test_a_package_without_kernels_is_refused_and_the_wheel_with_them_named(tmp_path, monkeypatch):
    monkeypatch.setattr(code_objects, "compiled_folder", lambda name: tmp_path)
    monkeypatch.setattr(code_objects, "source_tree", lambda: None)
    with pytest.raises(UserError, match="install a wheel with kernels .*no \\+nokernels"):
        launch._check_code_object(model(), 4, 1, "stream/1")


@pytest.mark.parametrize("value", ["triton", "torch", "hip"])
def test_what_is_allowed_travels_in_the_environment(value, monkeypatch):
    monkeypatch.setenv(settings.ALLOW_RUNG, value)
    assert settings.allowed_rung() == value


def test_without_a_word_the_first_rung_alone_is_allowed_and_nonsense_is_refused(monkeypatch):
    monkeypatch.delenv(settings.ALLOW_RUNG, raising=False)
    assert settings.allowed_rung() == "hip"
    monkeypatch.setenv(settings.ALLOW_RUNG, "any")
    with pytest.raises(UserError, match="ALLOW_RUNG: found 'any'; supported: hip, triton, torch"):
        settings.allowed_rung()
    monkeypatch.setenv(settings.SHARED_EXPERT, "elsewhere")
    with pytest.raises(UserError, match="SHARED_EXPERT: found 'elsewhere'; supported: together"):
        settings.shared_expert()


def test_serve_passes_the_leave_on(artifacts, capsys):
    code = main.main(["serve", "--model", str(artifacts(1)), "--allow-rung", "triton", "--dry-run"])
    assert code == 0
    assert "export SGLANG_MI300A_ALLOW_RUNG=triton" in capsys.readouterr().out


def test_the_self_test_command_says_which_rungs_are_right_here():
    command = [sys.executable, "-m", "sglang_mi300a.cli.main", "kernels", "selftest"]
    ran = subprocess.run([*command, "--neurons", "128"], capture_output=True, text=True, check=True)
    assert "torch   self-test passed" in ran.stdout
    assert "hip     HIP runtime: libamdhip64.so" in ran.stdout
