"""The room's declarations: light to read, complete, and fitting to their bodies."""

from __future__ import annotations

import inspect

import pytest

from sglang_mi300a import hooking
from sglang_mi300a.cpu_engine.hooks import HOOKS
from sglang_mi300a.hooking import Hook, Reliance
from tests.cpu_engine import standin_process

BY_NAME = {seam.name: seam for seam in HOOKS}
INSTALLED = [seam for seam in HOOKS if isinstance(seam, Hook)]


def test_reading_the_declarations_imports_neither_torch_nor_sglang() -> None:
    code = (
        "import sys; from sglang_mi300a.cpu_engine.hooks import HOOKS; "
        "print([name for name in ('torch', 'numpy', 'sglang') if name in sys.modules])"
    )
    assert standin_process.output(code) == "[]"


def test_names_are_the_room_s_and_unique() -> None:
    assert len(BY_NAME) == len(HOOKS)
    assert all(name.startswith("cpu_engine.") for name in BY_NAME)


def test_nothing_is_installed_on_another_device_and_only_a_check_in_the_launcher() -> None:
    for seam in HOOKS:
        assert seam.device == "cpu"
        in_launcher = seam.name == "cpu_engine.extra_buffer"
        assert seam.roles == (("launcher",) if in_launcher else ("rank",))
        assert not hooking.applies(seam, role="rank", device="gfx942", with_draft=True)


def test_without_drafts_only_what_every_server_reaches_is_installed() -> None:
    plain = {
        seam.name
        for seam in HOOKS
        if hooking.applies(seam, role="rank", device="cpu", with_draft=False)
    }
    assert plain == {
        "cpu_engine.gated_norm",
        "cpu_engine.shared_expert_gate",
        "cpu_engine.quark_float32",
        "cpu_engine.foreign_experts",
        "cpu_engine.snapshot_lines",
        "cpu_engine.snapshot_mask",
        "cpu_engine.snapshot_states",
    }


@pytest.mark.parametrize("hook", INSTALLED, ids=lambda hook: hook.name)
def test_a_body_takes_what_it_needs_under_the_target_s_names(hook: Hook) -> None:
    assert isinstance(hook.call, str)
    parameters = list(inspect.signature(hooking.resolve(hook.call)).parameters)
    if hook.kind in ("around", "after"):
        parameters.pop(0)  # the original, or its result
    taken = [name for name in parameters if name not in ("args", "kwargs")]
    if hook.kind == "replace":
        assert taken == list(hook.needs)  # stock may call it with any of them by name
    else:
        assert taken[: len(hook.needs)] == list(hook.needs)


@pytest.mark.parametrize("hook", INSTALLED, ids=lambda hook: hook.name)
def test_a_body_of_this_room_is_short(hook: Hook) -> None:
    assert isinstance(hook.call, str)
    if hook.call.startswith("sglang_mi300a.cpu_engine.hook_bodies:"):
        source = inspect.getsource(hooking.resolve(hook.call))
        statements = source.split('"""')[2].strip().splitlines()
        assert len(statements) < 10


def test_only_what_stops_or_is_harmless_by_itself_is_optional() -> None:
    optional = {seam.name for seam in HOOKS if not seam.required}
    assert optional == {
        "cpu_engine.quark_float32",  # stock refuses float32 itself
        "cpu_engine.foreign_experts",  # stock fails on the first id below 0
        "cpu_engine.draft_lengths",  # drafts are verified
        "cpu_engine.draft_metadata",
        "cpu_engine.extra_buffer",  # stock refuses it itself
        "cpu_engine.snapshot_lines",  # stock fails to pin memory
        "cpu_engine.snapshot_mask",  # the same
        "cpu_engine.snapshot_states",  # stock fails to launch its kernel
    }


def test_what_is_relied_on_says_which_hook_relies_on_it() -> None:
    for seam in HOOKS:
        if isinstance(seam, Reliance) and seam.remove_when.endswith(" is removed"):
            assert seam.remove_when.removesuffix(" is removed") in BY_NAME
