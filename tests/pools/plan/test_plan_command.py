"""``sglang-mi300a plan``: what it prints, how it ends, and what it refuses."""

import functools
import importlib
import json
import shutil

import pytest

from sglang_mi300a.cli import main as program
from sglang_mi300a.cli import plan as command
from sglang_mi300a.errors import EXIT_BAD_INPUT, EXIT_JUDGED_AGAINST, EXIT_OK
from sglang_mi300a.moe.kernels.steps import Layer
from sglang_mi300a.moe.kernels.workspace import workspace_bytes
from sglang_mi300a.pools import unified_memory
from sglang_mi300a.serving import preset
from sglang_mi300a.tiny_model import make_tiny_model
from sglang_mi300a.weights import resident
from sglang_mi300a.weights.plan import Placement
from sglang_mi300a.weights.shard import shard_weights
from tests.pools.plan import models
from tests.pools.unified_memory.machines import unpack

PREFILL_GRAPHS = (
    "--set", "cuda_graph_backend_prefill=breakable", "--set", "cuda_graph_max_bs_prefill=1024",
    "--set", "chunked_prefill_size=1024",
)  # fmt: skip


@pytest.fixture
def run(capsys):
    """Return a function that runs the command and returns exit code, output and errors."""

    def call(*flags, model=models.REAL, node="mi300a-x4"):
        where = [] if node is None else ["--node", str(node)]
        code = program.main(["plan", "--model", str(model), *where, *map(str, flags)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def report(run):
    """Return a function that runs it with ``--json`` and returns exit code and parsed output."""

    def call(*flags, **rest):
        code, out, err = run("--json", *flags, **rest)
        assert out, err
        return code, json.loads(out)

    return call


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--concurrency", 48), EXIT_OK),
        (("--concurrency", 96), EXIT_OK),
        (("--concurrency", 96, *PREFILL_GRAPHS), EXIT_OK),
        (("--concurrency", 128, "--state-dtype", "bfloat16", *PREFILL_GRAPHS), EXIT_OK),
        (("--concurrency", 128, *PREFILL_GRAPHS), EXIT_JUDGED_AGAINST),
        (("--concurrency", 192, "--state-dtype", "bfloat16"), EXIT_JUDGED_AGAINST),
    ],
)
def test_the_exit_code_says_whether_it_fits(run, flags, code):
    found, out, _ = run(*flags)
    assert found == code
    assert ("IT DOES NOT FIT" in out) == (code == EXIT_JUDGED_AGAINST)


@pytest.mark.parametrize(
    ("sessions", "dtype"), [(48, "float32"), (96, "float32"), (128, "bfloat16")]
)
def test_the_default_page_limit_is_refused_with_the_knobs_name(run, sessions, dtype):
    code, out, _ = run(
        "--concurrency", sessions, "--state-dtype", dtype, *PREFILL_GRAPHS,
        node="mi300a-x4-default-ttm",
    )  # fmt: skip
    assert code == EXIT_JUDGED_AGAINST
    assert "TTM page limit leaves 103.08 GB (96.00 GiB)" in out
    assert "smallest change that fits: put `options amdttm pages_limit=134217728" in out


def test_192_sessions_are_told_what_they_need(report):
    code, found = report("--concurrency", 192, "--state-dtype", "bfloat16", *PREFILL_GRAPHS)
    assert code == EXIT_JUDGED_AGAINST
    assert not found["fits"]
    apu = found["apus"][0]
    assert apu["free_bytes"] == 128_200_000_000 - apu["totals"]["planned_bytes"] < 0
    assert found["problems"][0]["missing_bytes"] == -apu["free_bytes"]
    assert 128 <= found["most_running_requests"] < 192
    assert found["problems"][0]["changes"]


def test_the_table_says_each_line_how_it_is_known_in_both_units_and_to_the_byte(run):
    _, out, _ = run("--concurrency", 48)
    lines = {line[:24].strip(): line for line in out.splitlines()}
    assert lines["weights"].split()[1:] == ["exact", "56.46", "52.58", "56,459,273,952"]
    for name in ("draft", "KV pool", "draft KV", "state slots", "verify scratch", "graph pools",
                 "activations", "host processes", "reserve", "free"):  # fmt: skip
        assert name in lines
    assert "published" in lines["reserve"]
    assert "16.11 to 25.77" in lines["reserve"]
    total = lines["all lines"].split()
    assert total[-2] == "to"  # with its range
    assert "APU 0, 1, 2, 3" in out


def test_both_memory_fractions_are_printed(run):
    _, out, _ = run("--set", "mem_fraction_static=0.72", "--concurrency", 48)
    assert "passed 0.847059, effective 0.72 (SGLang multiplies it by 0.85 for AITER)" in out


def test_the_json_holds_every_line_with_its_range_and_source(report):
    _, found = report("--concurrency", 48)
    assert found["schema"] == 1
    assert [apu["index"] for apu in found["apus"]] == [0, 1, 2, 3]
    for apu in found["apus"]:
        assert sum(line["bytes"] for line in apu["lines"]) == apu["totals"]["planned_bytes"]
        assert all(line["low"] <= line["bytes"] <= line["high"] for line in apu["lines"])
        assert all(line["source"] for line in apu["lines"])
    assert found["asked"]["kv_tokens"] == 48 * 4096
    workspace = next(
        line["bytes"] for line in found["apus"][0]["lines"] if line["name"] == "expert workspace"
    )
    loaded = 56_459_273_952 + 3_353_396_224 + workspace
    assert found["peak_while_loading_bytes"] == loaded + 1_017_118_720


def test_the_expert_kernels_workspace_is_what_they_ask_for_and_not_counted_twice(report):
    def lines(*flags, **rest):
        _, found = report(*flags, **rest)
        return {line["name"]: line["bytes"] for line in found["apus"][0]["lines"]}

    layer = Layer(1024, 10, 512, 4096, 256, "subnormals", 16, 228, shared_expert=True)
    with_kernels = lines("--set", "chunked_prefill_size=1024")
    assert with_kernels["expert workspace"] == workspace_bytes(layer)
    # Their rows are no part of the activations then, which otherwise hold 10 experts a token.
    rows = lines("--set", "chunked_prefill_size=2048")["activations"] - with_kernels["activations"]
    assert rows < 1024 * 10 * 4096 * 2


def test_a_model_that_the_kernels_cannot_run_has_no_workspace(report, tmp_path):
    make_tiny_model(tmp_path / "tiny", kind="qwen3_5-moe-mxfp4")
    _, found = report("--tp-size", 1, model=tmp_path / "tiny")
    assert "expert workspace" not in [line["name"] for line in found["apus"][0]["lines"]]


def test_sizes_are_derived_from_sessions_or_taken_as_given(report):
    def asked(*flags):
        return report(*flags)[1]["asked"]

    derived = asked("--concurrency", 10, "--context", 1000)
    assert (derived["max_running_requests"], derived["state_slots"]) == (10, 40)
    assert derived["kv_tokens"] == 10 * 1008  # whole pages
    more = asked("--concurrency", 10, "--slots-per-request", 5.25)
    assert more["state_slots"] == 53
    given = asked(
        "--kv-tokens", 160_000, "--state-slots", 300, "--max-running-requests", 60, "--mtp", 0
    )
    assert (given["kv_tokens"], given["state_slots"]) == (160_000, 300)
    assert (given["max_running_requests"], given["draft_tokens"]) == (60, 0)
    mixed = asked("--concurrency", 10, "--kv-tokens", 32_000)
    assert (mixed["kv_tokens"], mixed["state_slots"]) == (32_000, 40)


def test_a_preset_alone_plans_the_presets_own_sizes(report):
    for name in preset.names():
        lines = preset.load(name).on("gfx942")
        _, found = report("--preset", name)
        assert found["asked"]["kv_tokens"] == lines["max_total_tokens"].value
        assert found["asked"]["state_slots"] == lines["max_mamba_cache_size"].value
        assert found["asked"]["max_running_requests"] == lines["max_running_requests"].value
        assert found["admitted_requests"] == lines["max_running_requests"].value


def test_drafts_asked_of_a_preset_without_any_are_the_other_presets(report):
    _, found = report("--preset", "baseline", "--mtp", 2, "--concurrency", 16)
    asked = found["asked"]
    assert (asked["draft_steps"], asked["draft_tokens"], asked["replay"]) == (2, 3, True)
    assert found["slots_per_request"] == 5  # baseline schedules with overlap


def test_sglangs_own_spellings_of_the_flags_do_too(report):
    flags = ("--max-total-tokens", 160_000, "--max-mamba-cache-size", 400,
             "--mamba-ssm-dtype", "bfloat16")  # fmt: skip
    asked = report(*flags)[1]["asked"]
    assert (asked["kv_tokens"], asked["state_slots"]) == (160_000, 400)
    assert asked["state_dtype"] == "bfloat16"


def test_host_and_reserve_can_be_given_with_a_unit(report):
    _, found = report("--host-processes", "6GB", "--reserve", "24GiB")
    lines = {line["name"]: line["bytes"] for line in found["apus"][0]["lines"]}
    assert (lines["host processes"], lines["reserve"]) == (6 * 10**9, 24 << 30)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--kv-tokens", 787_937), "787,936 or 787,952"),
        (("--state-slots", 10), "at least 4 a request"),
        (("--concurrency", -1), "--max-running-requests: found -1"),
        (("--concurrency", 48, "--context", -5), "--context: found -5"),
        (("--concurrency", 48, "--context", 10**9), "supported: 1 to 262,144"),
        (("--concurrency", 48, "--max-running-requests", 47), "found 48 and 47"),
        (("--concurrency", 48, "--slots-per-request", 3), "supported: 4"),
        (("--slots-per-request", 5), "no --concurrency"),
        (("--mtp", -1), "--mtp: found -1"),
        (("--reserve", "15"), "GiB = 2^30"),
        (("--preset", "nope"), "found 'nope'"),
        (("--tp-size", 3), "sizes that do not divide"),
        (("--set", "chunked"), "no NAME=VALUE"),
        (("--set", "kv_cache_dtype=nvfp4"), "--kv-cache-dtype"),
        (("--save-node", "x.json"), "leave --node out"),
        (("--plot", "x.pdf"), "ending '.pdf'"),
        (("--plot", "/nowhere/x.png"), "no folder"),
    ],
)
def test_bad_input_is_refused_with_what_would_do(run, flags, words):
    code, out, err = run(*flags)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert words in err


def test_a_description_of_another_version_is_bad_input(run, tmp_path):
    (tmp_path / "node.json").write_text(json.dumps({"schema": 99}))
    code, _, err = run(node=tmp_path / "node.json")
    assert code == EXIT_BAD_INPUT
    assert "found schema 99; supported: schema 1" in err


def test_a_node_of_fewer_apus_than_ranks_is_bad_input(run, tmp_path):
    from sglang_mi300a.pools import node_file

    data = json.loads((node_file._SHIPPED / "mi300a-x4.json").read_text())
    data["apus"] = data["apus"][:2]
    (tmp_path / "half.json").write_text(json.dumps(data))
    code, _, err = run(node=tmp_path / "half.json")
    assert code == EXIT_BAD_INPUT
    assert "--tp-size 2" in err


def test_pictures_without_matplotlib_are_refused_before_anything_is_printed(
    run, tmp_path, monkeypatch
):
    real = importlib.import_module

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    code, out, err = run("--plot", tmp_path / "p.png")
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert "pip install 'sglang-mi300a[plots]'" in err


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture_is_written_and_is_the_same_twice(run, tmp_path, ending, magic):
    pytest.importorskip("matplotlib", reason="the `plots` extra is not installed")
    pictures = []
    for number in range(2):
        path = tmp_path / f"{number}.{ending}"
        assert run("--concurrency", 192, "--plot", path)[0] == EXIT_JUDGED_AGAINST
        pictures.append(path.read_bytes())
    assert pictures[0].startswith(magic)
    if ending == "png":  # an SVG numbers its parts at random
        assert pictures[0] == pictures[1]
    else:
        assert b"state slots" in pictures[0] or b"text" in pictures[0]


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Return a function that makes a recorded machine the one the command runs on."""

    def be(name, **rest):
        root = unpack(tmp_path / "machine", name, **rest)
        read = unified_memory.read
        monkeypatch.setattr(unified_memory, "read", functools.partial(read, root))
        return root

    return be


def test_the_node_it_runs_on_is_read_and_a_full_apu_is_named(report, here):
    here("mi300a-node")
    code, found = report("--concurrency", 48, node=None)
    assert code == EXIT_JUDGED_AGAINST
    assert [problem["apu"] for problem in found["problems"]] == [2]
    held = " ".join(found["problems"][0]["held"])
    assert "tmpfs and shared memory 21.47 GB (20.00 GiB)" in held
    assert "device memory of other programs" in held
    assert [apu["free_bytes"] > 0 for apu in found["apus"]] == [True, True, False, True]


def test_a_container_smaller_than_the_weights_is_named_with_its_group(run, here):
    here("container-v1")
    code, out, _ = run("--concurrency", 48, node=None)
    assert code == EXIT_JUDGED_AGAINST
    assert "cgroup leaves" in out
    assert "/sys/fs/cgroup/memory/memory.limit_in_bytes = 214748364800" in out


def test_the_variables_that_hide_accelerators_are_minded(report, here, monkeypatch):
    here("mi300a-node")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0,1,3")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1,2")
    _, found = report("--tp-size", 2, "--concurrency", 8, node=None)
    assert [apu["numa_node"] for apu in found["apus"]] == [1, 3]


@pytest.mark.parametrize(
    ("rocr", "hip", "expected"),
    [
        (None, None, None), ("2,3", None, [2, 3]), (None, "1", [1]), ("0,1,3", "2", [3]),
        ("GPU-5f4e", "0", None), ("", None, []),
    ],
)  # fmt: skip
def test_which_accelerators_are_visible(rocr, hip, expected):
    assert command.visible_devices(rocr, hip) == expected


def test_a_saved_node_plans_the_same_elsewhere(report, here, tmp_path):
    here("mi300a-node")
    saved = tmp_path / "saved.json"
    _, live = report("--concurrency", 48, "--save-node", saved, node=None)
    _, elsewhere = report("--concurrency", 48, node=saved)
    for key in ("index", "lines", "totals", "memory_bytes"):
        assert [apu[key] for apu in live["apus"]] == [apu[key] for apu in elsewhere["apus"]]


def test_a_machine_without_accelerators_says_which_nodes_ship(run, here):
    here("mi300a-node", without=("sys/class/kfd",))
    code, _, err = run(node=None)
    assert code == EXIT_BAD_INPUT
    assert "--node FILE" in err


def test_weights_of_an_artifact_are_those_of_its_ranks(report, tmp_path):
    model = make_tiny_model(tmp_path / "model", kind="qwen3_5-moe-mxfp4")
    artifact = tmp_path / "artifact"
    shard_weights(model.path, artifact, tp=2)
    sizes = ("--concurrency", 4, "--context", 128)
    for directory, rest in ((artifact, ()), (model.path, ("--tp-size", 2))):
        code, found = report(*sizes, *rest, model=directory)
        assert code == EXIT_OK
        assert found["tp"] == 2
        for rank, apu in enumerate(found["apus"]):
            parts = resident.of_model(directory, Placement(2, 1, rank))
            lines = {line["name"]: line["bytes"] for line in apu["lines"]}
            assert lines["weights"] == parts["target"].stored
            assert lines["draft"] == parts["draft"].stored


def test_a_tower_without_weights_cannot_be_planned_from_config_json(run, tmp_path):
    shutil.copytree(models.REAL, tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    config.pop("language_model_only")
    config["vision_config"] = {}
    path.write_text(json.dumps(config))
    code, _, err = run(model=tmp_path / "m")
    assert code == EXIT_BAD_INPUT
    assert "vision" in err or "visual" in err


def test_a_model_without_a_draft_layer_is_refused_with_mtp_0(run, tmp_path):
    shutil.copytree(models.REAL, tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 0
    path.write_text(json.dumps(config))
    code, _, err = run(model=tmp_path / "m")
    assert (code, "--mtp 0" in err) == (EXIT_BAD_INPUT, True)
    assert run("--mtp", 0, model=tmp_path / "m")[0] == EXIT_OK
