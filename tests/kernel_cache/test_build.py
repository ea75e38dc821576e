"""Modules are built once, published whole, and a build goes on where another stopped."""

import subprocess
import sys
import time

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache import compiled, launch_copy, needed, owner_lock
from sglang_mi300a.kernel_cache.build import Builder
from tests import repository
from tests.kernel_cache import standin_aiter
from tests.kernel_cache.conftest import PLAIN, everything


def test_every_needed_module_is_built_and_published_whole(builder, store, key, compiled_by):
    outcomes = builder.run(needed.rows())
    assert [outcome.how for outcome in outcomes] == ["built"] * len(needed.rows())
    modules = store.modules(key.digest)
    assert set(modules) == set(needed.names())
    for module in modules.values():
        (file,) = module.files
        assert compiled.flaw(store.object_path(file.sha256)) == ""
    assert store.problems(key.digest) == []
    # A variant has the name that AITER's own function gives.
    by_name = {outcome.name: outcome.module for outcome in outcomes}
    assert by_name["batch-prefill-mask"] == "mha_batch_prefill_bf16_nlogits_nbias_mask"
    assert by_name["batch-prefill-nmask"] == "mha_batch_prefill_bf16_nlogits_nbias_nmask"
    log = next((builder.local / "logs").glob("*batch-prefill-nmask.log")).read_text()
    assert (
        "compiling mha_batch_prefill_bf16_nlogits_nbias_nmask for gfx942, ['ck/generate.py" in log
    )


FEW = PLAIN[:2]  # each module costs a process
FAILING = tuple(row for row in PLAIN if row.name in ("core", "sample"))


def test_nothing_is_left_beside_the_store_but_logs(builder):
    builder.run(FEW)
    assert list((builder.local / "staging").iterdir()) == []
    assert list((builder.local / "locks").iterdir()) == []
    assert list((builder.store.root / "tmp").iterdir()) == []


def test_what_is_there_is_kept_and_not_compiled_again(builder, compiled_by):
    builder.run(FEW)
    assert {outcome.how for outcome in builder.run(FEW)} == {"kept"}
    assert len(compiled_by("module_rmsnorm")) == 1


def test_a_module_whose_bytes_changed_in_the_store_is_built_again(builder, store, key):
    builder.run(FEW)
    (file,) = store.modules(key.digest)["rmsnorm"].files
    path = store.object_path(file.sha256)
    path.chmod(0o644)
    path.write_bytes(b"torn")
    how = {outcome.name: outcome.how for outcome in builder.run(FEW)}
    assert [name for name, way in how.items() if way == "built"] == ["rmsnorm"]
    assert store.problems(key.digest) == []


def test_a_module_that_came_with_aiter_is_taken_as_it_is(builder, install, compiled_by):
    content = standin_aiter.shared_object(b"of the image")
    (install.prebuilt / "module_rmsnorm.so").write_bytes(content)
    (row,) = [row for row in PLAIN if row.name == "rmsnorm"]
    (outcome,) = builder.run([row])
    assert outcome.how == "prebuilt"
    assert compiled_by("module_rmsnorm") == []


@pytest.mark.parametrize(
    "content",
    [standin_aiter.shared_object(arch=b"gfx90a"), standin_aiter.shared_object()[:-1]],
    ids=["for another arch", "cut short"],
)
def test_one_that_came_with_aiter_and_cannot_be_used_is_built(builder, install, content):
    (install.prebuilt / "module_rmsnorm.so").write_bytes(content)
    (row,) = [row for row in PLAIN if row.name == "rmsnorm"]
    assert builder.run([row])[0].how == "built"


def test_a_failed_build_shows_its_log_and_publishes_nothing(builder, store, key, monkeypatch):
    monkeypatch.setenv("STANDIN_FAILS", "module_sample")
    with pytest.raises(
        UserError, match="(?s)build of sample.*exit code 1.*no kernel in module_sample"
    ):
        builder.run(FAILING)
    assert "sample" not in store.modules(key.digest)
    assert not list((builder.local / "staging").iterdir())
    monkeypatch.delenv("STANDIN_FAILS")
    assert {outcome.how for outcome in builder.run(FAILING)} <= {"kept", "built"}
    assert set(store.modules(key.digest)) == {row.name for row in FAILING}


def test_a_build_that_takes_too_long_is_ended(builder, monkeypatch, store, key):
    monkeypatch.setenv("STANDIN_SECONDS", "60")
    hasty = Builder(**{**vars(builder), "limit_s": 1.0})
    with pytest.raises(UserError, match=r"stopped after 1 s"):
        hasty.run(PLAIN[:1])
    assert store.modules(key.digest) == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"core": "x = 1\n"}, "no function get_args_of_build"),
        (
            {"core": standin_aiter.CORE.replace("srcs, blob_gen_cmd,", "srcs, lane_count,")},
            "build_module asks for lane_count",
        ),
        ({"modules": ["module_else"]}, "no module_aiter_core or module_aiter_enum among its 1"),
    ],
    ids=["no builder", "another builder", "other modules"],
)
def test_an_aiter_without_what_is_expected_is_refused(builder, tmp_path, store, change, says):
    install = standin_aiter.installed(tmp_path / "other", **change)
    other = Builder(**{**vars(builder), "install": install})
    with pytest.raises(UserError, match=says):
        other.run(PLAIN[:1])
    assert not list((store.root / "entries").iterdir())


@pytest.mark.parametrize(
    ("operators", "says"),
    [
        ("", "no function cmdGenFunc_mha_batch_prefill"),
        (
            standin_aiter.OPERATORS.replace("dropout_p: float", "num_lanes: int"),
            "asks for num_lanes: int",
        ),
        (standin_aiter.OPERATORS.replace("{CK_DIR}", "{NOBODY}"), "uses NOBODY"),
        (
            standin_aiter.OPERATORS.replace('"md_name": name', '"m": 1'),
            "gives blob_gen_cmd, m, no md_name",
        ),
    ],
    ids=["missing", "asks for more", "uses more", "gives less"],
)
def test_a_variants_function_that_is_another_is_refused(builder, tmp_path, operators, says):
    install = standin_aiter.installed(tmp_path / "other", operators=operators)
    other = Builder(**{**vars(builder), "install": install})
    variants = [row for row in needed.rows() if row.recipe]
    with pytest.raises(UserError, match=says):
        other.run(variants[:1])


RUN = """
import sys
from pathlib import Path
from sglang_mi300a.kernel_cache import aiter_install
from sglang_mi300a.kernel_cache.build import Builder
from sglang_mi300a.kernel_cache.store import Store
from tests.kernel_cache.conftest import PLAIN, make_key
root = Path(sys.argv[1])
builder = Builder(
    key=make_key(), install=aiter_install.at(root / "opt/aiter"), store=Store(root / "store"),
    local=root / "local", num_jobs=8, wait_s=100,
)
print(*(outcome.how for outcome in builder.run(PLAIN[:int(sys.argv[2])])))
"""


def start(tmp_path, num_modules):
    """Start a build in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path), str(num_modules)],
        cwd=repository.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_build_each_module_once(builder, tmp_path, compiled_by, store, key):
    running = [start(tmp_path, 3) for _ in range(8)]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * 8, outputs
    hows = " ".join(out for out, _ in outputs).split()
    assert (hows.count("built"), hows.count("kept")) == (3, 21)
    assert [len(compiled_by(row.modules[0])) for row in PLAIN[:3]] == [1, 1, 1]
    assert store.problems(key.digest) == []


def kill_and_go_on(builder, tmp_path, store, key, delays_s):
    """Kill a build again and again; nothing torn is ever published, and the last one completes."""
    for delay_s in delays_s:
        process = start(tmp_path, 2)
        time.sleep(delay_s)
        process.kill()
        process.communicate()
        assert store.problems(key.digest) == [] or not store.modules(key.digest)
        for module in store.modules(key.digest).values():
            for file in module.files:
                assert compiled.flaw(store.object_path(file.sha256)) == ""
    builder.run(FEW)  # refuses where a dead builder's lock still holds it up after its wait
    assert set(store.modules(key.digest)) == {row.name for row in FEW}
    for lock in (builder.local / "locks").iterdir():
        assert not owner_lock.is_held(lock)
    left = launch_copy.leftover_staging(builder.local)
    assert {path.parent.name for path in left} <= {"staging"}


def test_a_killed_build_leaves_nothing_torn(builder, tmp_path, store, key, monkeypatch):
    monkeypatch.setenv("STANDIN_SECONDS", "0.4")
    kill_and_go_on(builder, tmp_path, store, key, [0.3, 0.5, 0.7, 0.9, 1.1, 1.3])


@pytest.mark.slow
def test_two_hundred_killed_builds_leave_nothing_torn(builder, tmp_path, store, key, monkeypatch):
    monkeypatch.setenv("STANDIN_SECONDS", "0.2")
    # A build takes about a second; the store is emptied now and then so that there is work.
    for first in range(10):
        delays_s = [0.2 + 0.06 * ((first + 7 * n) % 20) for n in range(20)]
        kill_and_go_on(builder, tmp_path, store, key, delays_s)
        store.remove(key.digest)


def test_a_build_does_not_touch_the_aiter_it_builds_with(builder, install):
    before = everything(install.package)
    builder.run(FEW)
    assert everything(install.package) == before
