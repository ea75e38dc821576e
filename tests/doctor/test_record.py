"""A record is read back as it was, strictly, and holds nothing private."""

import json
import sys
from dataclasses import replace

import pytest

from sglang_mi300a.doctor import record, trials
from sglang_mi300a.doctor.facts import Machine
from sglang_mi300a.errors import UserError
from tests.doctor import recorded


def test_a_record_is_read_back_as_it_was():
    facts = recorded.healthy()
    assert record.parse(record.render(facts), "here") == facts


def test_the_healthy_record_has_every_field():
    assert record.render(recorded.healthy()) == recorded.HEALTHY.read_text()


def test_a_record_of_a_future_version_is_refused():
    data = {**recorded.healthy_data(), "schema": 2}
    with pytest.raises(UserError, match="found schema 2; supported: schema 1") as refused:
        record.parse(json.dumps(data), "other.json")
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surprise": 1}, "unknown surprise"),
        ({"tp": "four"}, "tp 'four'"),
        ({"memory": {"apus": [{"numa_node": 0}]}}, r"memory.apus\[0\]"),
        ({"machine": {"kernel": 5}}, "machine.kernel 5"),
        ({"devices": {"render": [1]}}, "devices.render"),
        ({"locks": {}}, "locks"),
    ],
)
def test_a_record_with_other_fields_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        record.parse(json.dumps({**recorded.healthy_data(), **change}), "other.json")


@pytest.mark.parametrize("text", ["", "[]", "null", '{"schema": null}'])
def test_what_is_no_record_is_refused(text):
    with pytest.raises(UserError, match="--fixture other.json: found "):
        record.parse(text, "other.json")


@pytest.mark.parametrize(
    "kernel",
    ["on /scratch/zebulon/x", "built by zebulon", "built on node17.example", "at /proj/p123/src"],
)
def test_names_and_paths_are_taken_out_wherever_they_stand(kernel):
    facts = replace(recorded.healthy(), machine=Machine(kernel=kernel))
    text = record.render(facts, ["zebulon", "node17.example", "node17"])
    for secret in ("zebulon", "node17", "p123", "/scratch"):
        assert secret not in text


def test_a_folder_named_as_a_field_of_the_record_does_not_damage_it():
    facts = recorded.healthy()
    assert record.parse(record.render(facts, ["model", "memory", "tp"]), "here") == facts


def test_paths_that_every_machine_has_stay():
    text = "/dev/kfd missing; /proc/sys/kernel/x; /dev/sda1 of /mnt"
    assert record.without_private(text, []) == (
        "/dev/kfd missing; /proc/sys/kernel/x; (withheld) of (withheld)"
    )


def test_a_word_inside_another_stays():
    assert record.without_private("radata ada", ["ada"]) == f"radata {record.WITHHELD}"


PRIVATE = ("zebulon", "quagga", "wombat")
"""Names of a user, of a project's folder, and of a model's folder."""


def test_the_record_of_a_whole_machine_holds_no_user_host_or_path(tmp_path):
    """The command in a process of its own, with names planted wherever they could leak from."""
    project, model = tmp_path / PRIVATE[1], tmp_path / PRIVATE[2]
    (project / "jit/build").mkdir(parents=True)
    (project / f"jit/build/lock_{PRIVATE[1]}").write_text(f"1\n{PRIVATE[1]}\n")
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["Other"]}))
    (project / "table.csv").write_text("x\n")
    program = f"""
import json, os, runpy, socket, sys
os.environ.update(
    HOME={str(tmp_path / PRIVATE[0])!r}, LOGNAME={PRIVATE[0]!r}, USER={PRIVATE[0]!r},
    AITER_JIT_DIR={str(project / "jit")!r}, AITER_CONFIG_GEMM_BF16={str(project / "table.csv")!r},
    PYTORCH_HIP_ALLOC_CONF={str(project)!r}, SGLANG_PLUGINS="mi300a,{PRIVATE[1]}",
)
socket.gethostname = lambda: {PRIVATE[1]!r}
sys.argv = ["sglang-mi300a", "doctor", "--model", {str(model)!r},
            "--record", {str(tmp_path / "record.json")!r}, "--json"]
try:
    runpy.run_module("sglang_mi300a.cli.main", run_name="__main__")
except SystemExit as end:
    print()
    print(json.dumps(end.code))
"""
    trial, code = trials.attempt(program, (), 120)
    assert trial.status == "fine"
    assert code == 1
    text = (tmp_path / "record.json").read_text()
    facts = record.parse(text, "record.json")
    assert facts.model.fault
    assert [lock.holder for lock in facts.locks] == ["alive"]
    assert facts.locks[0].name == "build/lock_(withheld)"
    for secret in (*PRIVATE, str(tmp_path), tmp_path.name, sys.prefix):
        assert secret not in text, secret
