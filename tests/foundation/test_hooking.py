"""Hooks through stock SGLang's own registry: what takes, what is found out when it does not."""

import functools
import logging

import pytest

from sglang_mi300a import boot_report, gates, hook_fit, hooking
from sglang_mi300a.errors import JudgedAgainst
from sglang_mi300a.hooking import Hook, HookError, Registration, Reliance
from tests.foundation import fake_sglang

FREE = "fake_sglang.pool.free_memory"
SIZE = "fake_sglang.pool.Pool.size"


def hook(target=FREE, call=None, **more):
    settings = {
        "name": "room.hook",
        "target": target,
        "kind": "around",
        "call": call or (lambda original, *args: original(*args) - 1),
        "why": "because",
        "remove_when": "never",
        "reached_by": "pools",
    }
    return Hook(**{**settings, **more})


@pytest.fixture
def install(fake_root, stock, pins_of):
    """Return a function that installs seams through stock's registry and applies them."""

    def install(*seams, device="cpu", with_draft=False, pins=None, apply=True):
        said = []
        hooking.install(
            seams,
            role="rank",
            device=device,
            with_draft=with_draft,
            tree=hook_fit.DirectoryTree(fake_root),
            pins=pins or pins_of(*(seam.target for seam in seams)),
            registry=stock.HookRegistry,
            kinds=stock.HookType,
            say=said.append,
        )
        if apply:
            stock.HookRegistry.apply_hooks()
        return said

    return install


@pytest.fixture
def gate(tmp_path):
    return gates.RankGates(
        rank=0,
        run_dir=tmp_path,
        all_gather=lambda mine: [mine],
        proofs_wanted=gates.proofs_wanted(with_draft=False),
    )


def test_a_hook_that_took_is_live_and_counted(install, gate):
    install(hook())
    from fake_sglang import caller

    gate.before_first_byte()
    assert caller.through_name() == 99
    assert hooking.installed()["room.hook"].calls == 1


def test_rooms_look_once_before_the_first_byte_and_what_they_refuse_is_reported(gate):
    looked = []
    gate.at_first_byte.append(lambda: looked.append("memory"))
    gate.before_first_byte()
    gate.before_first_byte()  # the draft is loaded through the same gate
    assert looked == ["memory"]

    def refuse():
        raise JudgedAgainst("nothing left")

    gate.at_first_byte.append(refuse)
    with pytest.raises(JudgedAgainst):
        gate.before_first_byte()
    report = boot_report.read_all(gate.run_dir)[0]
    assert (report.stage, report.refusal, report.exit_code) == ("refused", "nothing left", 1)


def test_a_required_hook_that_does_not_fit_refuses_with_why_and_what_to_do(install, pins_of):
    with pytest.raises(HookError, match=r"takes \(device\), not budget") as refused:
        install(hook(needs=("budget",)))
    assert "Without this hook: because" in str(refused.value)
    assert "hooks check" in str(refused.value)


def test_the_refusal_gets_out_of_stocks_plugin_loader_which_swallows_exceptions(monkeypatch):
    from sglang_mi300a import plugin

    def fail():
        raise HookError("hook x", found="nothing", allowed="something", do="install it")

    monkeypatch.setattr(plugin, "_activate_launcher", fail)
    with pytest.raises(SystemExit) as left:
        try:
            plugin.activate()
        except Exception:  # what stock's load_plugins does
            pytest.fail("the refusal would have been swallowed")
    assert left.value.code == 2


def test_an_optional_hook_that_does_not_fit_is_skipped_and_said_once(install):
    said = install(hook(needs=("budget",), required=False))
    assert said == [f"skipped: hook room.hook: {FREE} changed: takes (device), not budget"]
    assert hooking.installed()["room.hook"].skipped


@pytest.mark.parametrize(
    ("device", "with_draft", "more", "expected"),
    [
        ("cpu", False, {"device": "gfx942"}, set()),
        ("gfx942", False, {"device": "gfx942"}, {"room.hook"}),
        ("cpu", False, {"only_with_draft": True}, set()),
        ("cpu", True, {"only_with_draft": True}, {"room.hook"}),
        ("cpu", False, {"roles": ("launcher",)}, set()),
    ],
)
def test_a_seam_is_installed_only_where_it_is_meant(install, device, with_draft, more, expected):
    install(hook(**more), device=device, with_draft=with_draft)
    assert set(hooking.installed()) == expected


@pytest.mark.parametrize("way", ["dict", "partial", "default"])
def test_a_hook_bypassed_by_an_earlier_reference_is_live_but_stops_at_gate_2(
    install, gate, fake_root, monkeypatch, way
):
    caller = fake_sglang.imported(monkeypatch, fake_root, "fake_sglang.caller")
    install(hook())
    gate.before_first_byte()
    assert getattr(caller, f"through_{way}")() == 100  # stock's own result: the hook was bypassed
    with pytest.raises(HookError, match="hook room.hook: found never called on rank 0"):
        forward_once(gate)


def test_a_hook_bypassed_by_a_subclass_made_earlier_stops_at_gate_2(
    install, gate, fake_root, monkeypatch
):
    caller = fake_sglang.imported(monkeypatch, fake_root, "fake_sglang.caller")
    install(hook(SIZE, lambda original, self, free: original(self, free) + 1))
    gate.before_first_byte()
    assert caller.OldPool().size(3) == 6
    with pytest.raises(HookError, match="never called on rank 0"):
        forward_once(gate)


def test_a_stale_reference_is_found_at_gate_1_where_the_hook_names_its_caller(
    install, gate, fake_root, monkeypatch
):
    caller = fake_sglang.imported(monkeypatch, fake_root, "fake_sglang.caller")
    original = caller.free_memory
    install(hook(callers=("fake_sglang.caller.free_memory",)))
    gate.before_first_byte()
    caller.free_memory = original  # a module that imported the name after all, say
    with pytest.raises(HookError, match="fake_sglang.caller.free_memory is not our wrapper"):
        gate.before_first_byte()


def test_a_second_plugin_that_replaces_the_target_afterwards_stops_at_gate_1(install, gate):
    install(hook())
    from fake_sglang import pool

    pool.free_memory = lambda device: 5
    with pytest.raises(HookError, match="registered but not live on rank 0: room.hook"):
        gate.before_first_byte()


def test_a_second_plugin_that_wraps_the_target_is_reported_and_does_not_stop(
    install, gate, stock, tmp_path
):
    install(hook(), apply=False)
    source = stock.HookSource(plugin_name="other", dist_name="other-dist")
    stock.HookRegistry.register(
        FREE, lambda result, *_: result * 2, stock.HookType.AFTER, source=source
    )
    stock.HookRegistry.apply_hooks()
    from fake_sglang import caller

    gate.hooks_by_target = stock.HookRegistry._hooks
    gate.before_first_byte()
    assert caller.through_name() == 198
    state = boot_report.read_all(tmp_path)[0].seams["room.hook"]
    assert (state.live, state.note) == (True, "its target is also hooked: after by other")


def test_a_second_plugin_that_skips_ours_stops_at_gate_2(install, gate, stock):
    install(hook(), apply=False)
    stock.HookRegistry.register(FREE, lambda original, *_: 7, stock.HookType.AROUND)
    stock.HookRegistry.apply_hooks()
    from fake_sglang import caller

    gate.before_first_byte()
    assert caller.through_name() == 7
    with pytest.raises(HookError, match="never called"):
        forward_once(gate)


def test_an_early_apply_by_another_plugin_that_starves_ours_stops_at_gate_1(
    install, gate, stock, caplog
):
    stock.HookRegistry.register(FREE, lambda original, *a: original(*a), stock.HookType.AROUND)
    stock.HookRegistry.apply_hooks()
    with caplog.at_level(logging.ERROR):
        install(hook())
    assert not caplog.records  # stock says nothing at all
    with pytest.raises(HookError, match="not live"):
        gate.before_first_byte()


def test_a_registry_entry_that_another_plugin_overwrites_stops_at_gate_1(install, gate):
    entry = Registration(
        name="room.entry",
        target="fake_sglang.registry.METHODS",
        key="quark",
        value="fractions:Fraction",
        why="because",
        remove_when="never",
    )
    install(entry)
    from fake_sglang import registry

    gate.before_first_byte()
    registry.METHODS["quark"] = int
    with pytest.raises(HookError, match=r"METHODS\['quark'\] is <class 'int'>"):
        gate.before_first_byte()


def test_a_reliance_is_judged_and_never_installed(install, pins_of):
    from_now = pins_of(SIZE)
    reliance = Reliance(name="room.size", target=SIZE, why="w", remove_when="n")
    install(reliance, pins=from_now)
    from fake_sglang.pool import Pool

    assert Pool().size(3) == 6
    with pytest.raises(HookError, match="never pinned"):
        install(Reliance(name="room.free", target=FREE, why="w", remove_when="n"), pins=from_now)


class Batch:
    def __init__(self, mode):
        self.forward_mode = type("Mode", (), {"name": mode})


class Model:
    def forward(self, input_ids, positions, forward_batch):
        return "logits"


def forward_once(gate, *modes):
    """Run the guarded forward: once with EXTEND, then with each of ``modes``."""
    model = Model()
    gate.guard_forward(model)
    for mode in ("EXTEND", *modes):
        assert model.forward([1], [0], Batch(mode)) == "logits"
    return model


def test_gate_2_leaves_the_model_alone_once_every_stage_is_proved(install, gate):
    install(hook())
    from fake_sglang import caller

    gate.before_first_byte()
    caller.through_name()
    model = forward_once(gate, "DECODE", "DECODE", "DECODE")
    assert "forward" not in vars(model)


def test_gate_2_names_the_rank_on_which_a_hook_was_never_reached(install, gate):
    install(hook())
    from fake_sglang import caller

    caller.through_name()
    gate.all_gather = lambda mine: [mine, dict.fromkeys(mine, 0)]
    with pytest.raises(HookError, match="never called on rank 1"):
        forward_once(gate)


def test_gate_2_waits_for_a_stage_before_it_asks_for_its_hooks(install, gate):
    install(hook(reached_by="decode"))
    forward_once(gate)  # a prefill proves nothing of decode
    with pytest.raises(HookError, match="by stage decode"):
        forward_once(gate, "DECODE", "DECODE")


def test_a_functools_wrapped_body_still_counts(install):
    @functools.wraps(len)
    def body(original, *args):
        return original(*args)

    install(hook(call=body))
    from fake_sglang import caller

    caller.through_name()
    assert hooking.installed()["room.hook"].calls == 1
