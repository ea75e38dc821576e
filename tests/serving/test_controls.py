"""Controls: what must fail does fail, by name; otherwise the other tests prove nothing."""

import json
import shutil
import struct

import pytest

from sglang_mi300a.cli.server_process import Server, ServerDied
from sglang_mi300a.demo import control
from tests.serving.conftest import NUM_TOKENS, SERVE, STOCK_LAUNCH, Oracle, stock_environment

PROMPT = "Which byte was it?"


def start(command, environment=None):
    """Start a server that is expected to die; return why it did."""
    with pytest.raises(ServerDied) as died, Server(command, environment or {}):
        pass
    return died.value


def test_with_the_package_off_stock_fails_at_its_own_expert_kernels(models):
    command = [*STOCK_LAUNCH, "--model-path", str(models()), *control.FLAGS]
    died = start(command, stock_environment())
    assert control.judge(died.exit_code, died.log) == []


def test_a_dense_model_is_served_with_the_package_off_and_untouched(models):
    command = [*STOCK_LAUNCH, "--model-path", str(models(kind="dense", mtp=False))]
    flags = ["--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"]
    with Server([*command, *flags, "--max-total-tokens", "1024"], stock_environment()) as server:
        oracle = Oracle(models(kind="dense", mtp=False))
        prompt = oracle.prompt("Plain?")
        assert server.complete(prompt, 8).tokens == oracle.tokens(prompt, 8)
        assert server.hooks == {}


def change_one_byte(model_dir):
    """Add to one scale byte of one expert; return the tensor's name."""
    for path in sorted(model_dir.glob("*.safetensors")):
        raw = bytearray(path.read_bytes())
        [length] = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        for name, entry in header.items():
            if name.endswith("experts.3.down_proj.weight_scale") and ".layers.0." in name:
                raw[8 + length + entry["data_offsets"][0] + 100] += 20
                path.write_bytes(raw)
                return name
    raise AssertionError("no such tensor")


def test_one_changed_weight_byte_changes_tokens_and_is_served_as_it_is_from_a_checkpoint(
    models, tmp_path
):
    changed_model = tmp_path / "changed [1]"
    shutil.copytree(models(), changed_model)
    assert change_one_byte(changed_model)
    whole, changed = Oracle(models()), Oracle(changed_model)
    prompts = [whole.prompt(f"{PROMPT} {n}") for n in range(8)]
    expected = [changed.tokens(prompt) for prompt in prompts]
    assert expected != [whole.tokens(prompt) for prompt in prompts]
    with Server([*SERVE, "--model", str(changed_model), "--preset", "baseline"]) as server:
        answers = server.complete_all(prompts, NUM_TOKENS)
        assert [answer.tokens for answer in answers] == expected
        assert "shard-weights" in server.log  # the first start says what would make it faster


SABOTAGE = """
import os, sys

def activate():
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run_scheduler_process" and frame.f_locals["tp_rank"] == 1:
            os.environ.pop("SGLANG_MI300A_RESOLVED")
        frame = frame.f_back
"""


def other_plugin(folder, source):
    """Write a plugin that SGLang finds on PYTHONPATH before ours; return the environment."""
    (folder / "a_other_plugin.py").write_text(source)
    info = folder / "a_other_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-other-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\na_other = a_other_plugin:activate\n"
    )
    return {"PYTHONPATH": f"{folder}:{stock_environment()['PYTHONPATH']}"}


def test_a_rank_that_starts_without_the_plugin_is_named_and_stops_the_server(artifacts, tmp_path):
    command = [*STOCK_LAUNCH, "--model-path", str(artifacts(2)), "--tp-size", "2"]
    died = start([*command, "--mi300a", "baseline"], other_plugin(tmp_path, SABOTAGE))
    assert died.exit_code == 2
    assert "1 of 2 ranks loaded the package" in died.log
    assert "rank 1: no report; it started without the plugin" in died.log


REPLACE = """
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

def activate():
    HookRegistry.register(
        "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._profile_available_bytes",
        lambda original, self, pre_model_load_memory: 1 << 30,
        HookType.AROUND,
    )
    HookRegistry.apply_hooks()
"""


@pytest.mark.slow
def test_another_plugin_that_takes_a_target_first_stops_the_server_with_the_hooks_name(
    artifacts, tmp_path
):
    command = [*STOCK_LAUNCH, "--model-path", str(artifacts(1)), "--mi300a", "baseline"]
    died = start(command, other_plugin(tmp_path, REPLACE))
    assert died.exit_code == 2
    assert "rank 0 refused: hook pools.planned_bytes: found registered but not live" in died.log


@pytest.mark.slow
def test_one_ranks_unreadable_or_changed_part_stops_all_ranks_and_names_rank_and_file(
    artifacts, tmp_path
):
    whole = artifacts(2)
    unreadable, changed = tmp_path / "unreadable [1]", tmp_path / "changed"
    for copy in (unreadable, changed):
        shutil.copytree(whole, copy)
    part = next(path.name for path in (whole / "rank-1").glob("target-*"))
    (unreadable / "rank-1" / part).unlink()
    (unreadable / "rank-1" / part).mkdir()
    raw = bytearray((changed / "rank-1" / part).read_bytes())
    raw[-1] ^= 1
    (changed / "rank-1" / part).write_bytes(raw)

    for artifact in (unreadable, changed):
        died = start([*SERVE, "--model", str(artifact), "--preset", "baseline"])
        assert died.exit_code == 2
        for rank, prefix in ((0, "rank 1: "), (1, "")):
            assert f"rank {rank} refused: {prefix}{artifact}/rank-1/{part}" in died.log


@pytest.mark.slow
@pytest.mark.parametrize(("tp", "ep"), [(4, 1), (2, 2), (4, 4)])
def test_four_ranks_and_expert_parallel_ranks_give_the_same_tokens(artifacts, oracles, tp, ep):
    oracle = oracles(echo=True)
    command = [*SERVE, "--model", str(artifacts(tp, ep, echo=True)), "--preset", "tuned"]
    with Server(command) as server:
        for number in range(3):
            prompt = oracle.prompt(f"{PROMPT} {number}")
            assert server.complete(prompt, NUM_TOKENS).tokens == oracle.tokens(prompt)


@pytest.mark.slow
def test_the_environment_switches_a_preset_on_where_no_flag_is_given(artifacts, oracles):
    oracle = oracles()
    command = [*STOCK_LAUNCH, "--model-path", str(artifacts(1))]
    with Server(command, stock_environment(SGLANG_MI300A="baseline")) as server:
        prompt = oracle.prompt(PROMPT)
        assert server.complete(prompt, NUM_TOKENS).tokens == oracle.tokens(prompt)
        assert server.hooks
