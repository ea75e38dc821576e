"""The plugin acts in SGLang's launcher and ranks, and in no other of its processes."""

import multiprocessing

import pytest

from sglang_mi300a import hook_fit, plugin, settings


def run_scheduler_process(tp_rank):
    plugin.activate()


def run_detokenizer_process():
    plugin.activate()


def run_data_parallel_controller_process():
    plugin.activate()


@pytest.fixture
def ranks(monkeypatch):
    """What a rank's part was called with, in a child of a launcher that has decided."""
    calls = []
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: "a launcher")
    monkeypatch.setattr(settings, "resolved", lambda: "a decision")
    monkeypatch.setattr(
        plugin,
        "_activate_rank",
        lambda record: calls.append((record, plugin._rank_of_this_process())),
    )
    return calls


def test_a_scheduler_installs_what_was_decided_for_its_rank(ranks):
    run_scheduler_process(3)
    assert ranks == [("a decision", 3)]


@pytest.mark.parametrize("process", [run_detokenizer_process, run_data_parallel_controller_process])
def test_other_processes_that_load_plugins_install_nothing(process, ranks):
    process()
    assert ranks == []


def test_a_child_of_unknown_kind_is_refused(ranks, capsys):
    with pytest.raises(SystemExit) as left:
        plugin.activate()
    assert left.value.code == 2
    assert "a child process that is no scheduler" in capsys.readouterr().err


def test_the_supported_sglang_has_these_processes():
    modules = ("detokenizer_manager", "data_parallel_controller")
    found = [
        hook_fit.find(f"sglang.srt.managers.{module}.{function}", plugin.installed_sglang())
        for module, function in zip(modules, plugin.OTHER_PROCESSES, strict=True)
    ]
    assert all(found)
