"""A launcher gives AITER a directory of this launch's own, and stops where a lock is in the way."""

import atexit
import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_mi300a import settings
from sglang_mi300a.cli import serve_kernels
from sglang_mi300a.cli.main import main
from sglang_mi300a.device import Accelerator
from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache import (
    aiter_builder,
    aiter_install,
    aiter_locks,
    key,
    needed,
    time_limits,
)
from sglang_mi300a.kernel_cache.store import Store
from tests.kernel_cache import standin_aiter
from tests.kernel_cache.conftest import stored

MI300A = Accelerator(0, "AMD Instinct MI300A", "gfx942", 228, True, 0)


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node of four APUs with the stand-in AITER; return its key."""
    install = standin_aiter.installed(tmp_path / "opt")
    for name in ("AITER_JIT_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SGLANG_MI300A_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setenv("SGLANG_MI300A_KERNEL_CACHE", str(tmp_path / "store"))
    monkeypatch.setattr(serve_kernels.device, "accelerators", lambda: [MI300A] * 4)
    monkeypatch.setattr(aiter_install, "find", lambda: install)
    monkeypatch.setattr(key, "rocm_version", lambda: "7.0.51831")
    monkeypatch.setattr(key, "torch_build", lambda: "2.9.0 abc 7.0")
    monkeypatch.setattr(serve_kernels, "_MERGE_WAIT_S", 0)
    monkeypatch.setattr(aiter_locks, "CONFIG_DIR", tmp_path / "aiter_configs")
    return key.of_this_machine(install, "gfx942", 228, needed.names())


@pytest.fixture
def prepare(node, monkeypatch):
    """Return a function that prepares a launch, and ends each as its process would."""
    ends, said = [], []
    monkeypatch.setattr(atexit, "register", lambda call, *args: ends.append((call, args)))

    def call():
        return serve_kernels.prepare(said.append, on_cpu=False)

    def end():
        while ends:
            ended, arguments = ends.pop()
            ended(*arguments)

    call.end = end
    yield call
    end()


def test_the_cpu_engine_has_no_aiter(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_MI300A_LOCAL_DIR", str(tmp_path / "local"))
    assert serve_kernels.prepare(print, on_cpu=True) == serve_kernels.Prepared()
    assert not (tmp_path / "local").exists()


def test_modules_of_this_nodes_key_are_in_the_launchs_own_directory(prepare, node, tmp_path):
    store = Store(tmp_path / "store")
    store.check_writable()
    content = standin_aiter.shared_object(b"core")
    stored(store, node, "core", content, "module_aiter_core.so")
    prepared = prepare()
    assert (prepared.jit_dir / "module_aiter_core.so").read_bytes() == content
    assert prepared.environment["AITER_JIT_DIR"] == str(prepared.jit_dir)
    have, lack, remedy = prepared.said
    assert f"1 of {len(needed.names())} compiled ones of key {node.digest}" in have
    assert "batch-prefill-nmask" in lack
    assert "sglang-mi300a kernel-cache build" in remedy


def test_watchdog_and_health_check_wait_longer_by_what_is_to_be_compiled(prepare, node, tmp_path):
    cold = prepare()
    assert set(cold.to_compile) == {*needed.names(), time_limits.FROM_TEMPLATES}
    extra_s = time_limits.seconds(len(cold.to_compile))
    assert cold.watchdog_s(300) == 300 + extra_s
    assert cold.environment[time_limits.HEALTH] == str(20 + extra_s)
    assert f"wait {extra_s} s longer" in " ".join(cold.said)
    store = Store(tmp_path / "store")
    store.check_writable()
    for row in needed.rows():
        file = row.file.replace("*", "x") or f"{row.modules[0]}.so"
        stored(store, node, row.name, standin_aiter.shared_object(row.name.encode()), file)
    template = standin_aiter.shared_object(b"paged decode")
    stored(store, node, "pa_ragged", template, "build/pa_ragged/lib.so")
    warm = prepare()
    assert (warm.to_compile, warm.watchdog_s(300)) == ((), 300)
    assert time_limits.HEALTH not in warm.environment
    assert len(warm.said) == 1


def boot(prepared, package):
    """Do what the AITER of a server does with each module it needs: build it where it is missing.

    As AITER's own process, in the directory that the launch names.
    """
    environment = settings.child_environment(
        {**prepared.environment, "GPU_ARCHS": "gfx942", "MAX_JOBS": "2"}
    )
    for row in needed.rows():
        if not row.is_in(prepared.jit_dir):
            asked = {
                "package": str(package),
                "module": row.modules[0],
                "recipe": row.recipe,
                "arguments": dict(row.arguments),
            }
            command = [sys.executable, "-m", aiter_builder.__name__, json.dumps(asked)]
            subprocess.run(command, env=environment, check=True, capture_output=True)


def test_a_cold_boot_compiles_all_the_next_one_nothing_and_nor_does_a_node_with_the_archive(
    prepare, node, tmp_path, monkeypatch
):
    pytest.importorskip("torch", reason="AITER's builds import it")
    log = tmp_path / "compiled"
    log.mkdir()
    monkeypatch.setenv("STANDIN_LOG", str(log))
    package = tmp_path / "opt/aiter"

    def compiled_in_a_boot():
        before = sum(len(path.read_text().splitlines()) for path in log.iterdir())
        prepared = prepare()
        boot(prepared, package)
        prepare.end()
        after = sum(len(path.read_text().splitlines()) for path in log.iterdir())
        return after - before, prepared

    count, cold = compiled_in_a_boot()
    assert (count, len(cold.to_compile)) == (len(needed.names()), len(needed.names()) + 1)
    count, warm = compiled_in_a_boot()
    assert (count, warm.to_compile) == (0, (time_limits.FROM_TEMPLATES,))
    archive = tmp_path / "kernels.tar.zst"
    aiter = ["--aiter", str(package), "--no-gpu", "--arch", "gfx942", "--cus", "228"]
    assert main(["kernel-cache", "build", *aiter]) == 0
    assert main(["kernel-cache", "pack", str(archive), *aiter]) == 0
    monkeypatch.setenv("SGLANG_MI300A_LOCAL_DIR", str(tmp_path / "another node"))
    monkeypatch.setenv("SGLANG_MI300A_KERNEL_CACHE", str(tmp_path / "its store"))
    assert main(["kernel-cache", "unpack", str(archive), *aiter]) == 0
    count, packed = compiled_in_a_boot()
    assert (count, packed.to_compile) == (0, (time_limits.FROM_TEMPLATES,))
    assert f"{len(needed.names())} of {len(needed.names())} compiled ones" in packed.said[0]


def test_a_directory_the_user_named_is_used_as_it_is(prepare, tmp_path, monkeypatch):
    monkeypatch.setenv("AITER_JIT_DIR", str(tmp_path / "mine"))
    prepared = prepare()
    assert prepared.environment.keys() == {time_limits.HEALTH}
    assert prepared.jit_dir == tmp_path / "mine"
    assert "used as they are, unkeyed" in prepared.said[0]


def test_a_lock_in_the_way_stops_the_launch_by_name(prepare, tmp_path, monkeypatch):
    lock = tmp_path / "mine/build/lock_module_a"
    lock.parent.mkdir(parents=True)
    lock.write_text(f"{2**22 + 1}\n{socket.gethostname()}\n")
    monkeypatch.setenv("AITER_JIT_DIR", str(tmp_path / "mine"))
    with pytest.raises(UserError, match=f"held by process {2**22 + 1}.*rm {lock}"):
        prepare()
    assert lock.exists()


def test_a_lock_of_a_merged_table_stops_the_launch_by_name(prepare, tmp_path):
    lock = tmp_path / "aiter_configs/tuned_fmoe.csv.lock"
    lock.parent.mkdir()
    lock.touch()
    with pytest.raises(UserError, match=f"still there after 0 s: .*rm {lock}"):
        prepare()


def stock_environ():
    """SGLang's module of environment variables, by itself: the whole imports half of torch."""
    spec = importlib.util.find_spec("sglang")
    if spec is None:
        raise ModuleNotFoundError("needs SGLang", name="sglang")
    sglang = Path(spec.submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location("stock_environ", sglang / "srt/environ.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_triton_and_inductor_caches_replace_sglangs_defaults_and_not_the_users(
    prepare, monkeypatch
):
    theirs = stock_environ().third_party_cache_defaults()
    assert settings.sglang_cache_defaults().items() <= theirs.items()
    monkeypatch.setenv("TRITON_CACHE_DIR", theirs["TRITON_CACHE_DIR"])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    monkeypatch.setenv("AITER_JIT_DIR", "/to be forgotten")
    monkeypatch.delenv("AITER_JIT_DIR")
    monkeypatch.setenv("AITER_ROOT_DIR", "/to be forgotten")
    monkeypatch.delenv("AITER_ROOT_DIR")
    environment = prepare().environment
    settings.replace_defaults(environment, settings.sglang_cache_defaults())
    assert settings.get("TRITON_CACHE_DIR") == environment["TRITON_CACHE_DIR"]
    assert settings.get("TORCHINDUCTOR_CACHE_DIR") == "/mine"


def test_a_lock_that_stays_while_a_server_starts_is_named_in_the_end(tmp_path, monkeypatch):
    now = iter(range(0, 10_000, 100))
    monkeypatch.setattr(aiter_locks.time, "monotonic", lambda: next(now))
    watch = aiter_locks.Watch(tmp_path, dead_s=150, limit_s=450)
    build = tmp_path / "build"
    build.mkdir()
    none = tmp_path / "none"
    (build / "lock_a").touch()
    assert [watch.problem(none) for _ in range(4)] == [None] * 4
    (build / "lock_a").unlink()
    assert watch.problem(none) is None  # released: the next build's lock begins anew
    (build / "lock_a").touch()
    answers = [watch.problem(none) for _ in range(6)]
    assert answers[:5] == [None] * 5
    assert "lock_a" in str(answers[5])
    (build / "lock_a").unlink()
    (build / "lock_b").write_text(f"{2**22 + 1}\n{socket.gethostname()}\n")
    answers = [watch.problem(none) for _ in range(3)]
    assert answers[:2] == [None, None]
    assert f"held by process {2**22 + 1}" in str(answers[2])
