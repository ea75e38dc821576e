"""`sglang-mi300a kernels`: list, inspect, bench."""

import json

import pytest

from sglang_mi300a import code_objects
from sglang_mi300a.cli import kernels as command
from sglang_mi300a.cli.main import main
from sglang_mi300a.moe.kernels import catalogue
from tests.cli.timed_kernels import node  # noqa: F401  (a fixture)

BENCH = ["kernels", "bench", "--shape", "tiny", "--weights", "subnormals", "--samples", "3"]


def printed(capsys, *arguments):
    code = main(arguments)
    return code, capsys.readouterr()


def test_list_has_every_kernel_with_its_budget(capsys):
    code, out = printed(capsys, "kernels", "list", "--json")
    assert code == 0
    (room,) = [one for one in json.loads(out.out) if one["room"] == "moe"]
    rows = {row["name"]: row for row in room["kernels"]}
    kernels = (*catalogue.MATRIX_KERNELS, *catalogue.TIMED_KERNELS)
    assert set(rows) == {one.name for one in kernels} | set(catalogue.OTHER_KERNELS)
    assert all(row["spills"] == 0 for row in rows.values())
    for kernel in kernels:
        assert rows[kernel.name]["lds_bytes"] == kernel.lds_bytes
        assert rows[kernel.name]["threads"] == kernel.threads
    assert room["sha256"] == code_objects.load("moe").digest
    _, for_people = printed(capsys, "kernels", "list")
    assert "moe_gate_up_16_subnormals" in for_people.out
    assert room["compiler"] in for_people.out


def test_inspect_says_what_a_kernel_takes_and_what_made_it(capsys):
    code, out = printed(capsys, "kernels", "inspect", "moe_sum_slots", "--json")
    found = json.loads(out.out)
    assert code == 0
    assert [one["name"] for one in found["arguments"]][:3] == ["rows", "row_bytes", "pair_rows"]
    assert found["code_object"]["arch"] == "gfx942"
    assert "--offload-arch=gfx942" in found["code_object"]["flags"]
    _, for_people = printed(capsys, "kernels", "inspect", "moe_sum_slots")
    assert "global_buffer  pair_rows" in for_people.out
    assert found["code_object"]["sha256"] in for_people.out


def test_an_unknown_kernel_is_refused_with_the_known_ones(capsys):
    code, out = printed(capsys, "kernels", "inspect", "moe_stage1")
    assert code == 2
    assert "found no such kernel" in out.err
    assert "moe_sum_slots" in out.err


def test_bench_without_a_device_says_what_it_would_run(capsys, monkeypatch):
    monkeypatch.setattr(command.devices, "accelerators", lambda: [])
    code, out = printed(capsys, "kernels", "bench", "--tokens", "4", "64")
    assert code == 2
    assert "no gfx942 device on this machine" in out.err
    assert "batches of 4, 64 tokens, tiles of 16 and 32, 20 samples each" in out.err
    assert "loads alone" in out.err


@pytest.mark.parametrize("flags", [["--tokens", "0"], ["--tokens", "9000"], ["--samples", "0"]])
def test_bench_refuses_what_it_cannot_run(capsys, flags):
    code, out = printed(capsys, "kernels", "bench", *flags)
    assert code == 2
    assert "batches of 1 to 8192 tokens" in out.err


def test_bench_times_each_part_for_each_batch_and_tile(node, capsys):  # noqa: F811
    node.us_of = lambda kernel, groups: 0.5 if "loads_only" in kernel else 3.0
    code, out = printed(capsys, *BENCH, "--tokens", "16", "64", "--json")
    found = json.loads(out.out)
    assert [(row["num_tokens"], row["tile"]) for row in found["batches"]] == [
        (16, 16), (16, 32), (64, 16), (64, 32),
    ]  # fmt: skip
    for row in found["batches"]:
        assert row["layer_us"] == 12
        assert row["measured_us"]["loads_only"] == 0.5
        assert row["tb_s"]["loads_only"] == pytest.approx(6 * row["tb_s"]["gate_up"])
        assert set(row["predicted_us"]) == {"gate_up", "down", "loads_only", "decode_only"}
    assert code == (0 if all(answer["holds"] for answer in found["answers"]) else 1)


def test_bench_ends_with_1_where_the_model_does_not_hold(node, capsys):  # noqa: F811
    node.us_of = lambda kernel, groups: 1000.0
    code, out = printed(capsys, *BENCH, "--tokens", "64")
    assert code == 1
    assert "how fast does the stream alone run" in out.out
    assert "the model does not hold here" in out.out
