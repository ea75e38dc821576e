"""Facts are what a recorded machine's files, folders and processes say, and nothing private."""

import json
import os
import shutil
import signal
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sglang_mi300a.doctor import (
    build_locks,
    devices,
    environment,
    findings,
    gather,
    machine,
    memory,
    model,
    places,
    software,
    trials,
    tuned_tables,
)
from sglang_mi300a.doctor.facts import HeldMemory, JitCache
from sglang_mi300a.kernel_cache.store import StoredFile, StoredModule
from sglang_mi300a.patches import change
from sglang_mi300a.served_model import SHIPPED_CONFIG
from tests.doctor import recorded
from tests.patches import trees
from tests.pools.unified_memory.machines import unpack
from tests.weights import conftest as artifacts

PCI = "sys/bus/pci/devices/000{}:01:00.0/"


def test_devices_are_told_with_their_partition_mode(tmp_path):
    modes = {PCI.format(n) + "current_compute_partition": "SPX\n" for n in range(4)}
    modes[PCI.format(2) + "current_compute_partition"] = "CPX\n"
    modes["sys/module/amdgpu/version"] = "6.14.14\n"
    found = devices.gather(unpack(tmp_path, "mi300a-node", changed=modes))
    assert [one.compute_partition for one in found.found] == ["SPX", "SPX", "CPX", "SPX"]
    assert [one.numa_node for one in found.found] == [0, 1, 2, 3]
    assert {(one.name, one.arch, one.num_visible_cus, one.is_apu) for one in found.found} == {
        ("AMD Instinct MI300A", "gfx942", 228, True)
    }
    assert (found.driver, found.kfd, found.render) == ("6.14.14", "missing", (0, 0))


def test_device_files_are_tried(tmp_path, monkeypatch):
    root = unpack(tmp_path, "mi300a-node", changed={"dev/kfd": "", "dev/dri/renderD128": ""})
    assert devices.gather(root).kfd == "open"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert (devices.gather(root).kfd, devices.gather(root).render) == ("denied", (0, 1))


def test_memory_is_told_by_apu_with_what_holds_it(tmp_path):
    root = unpack(tmp_path, "mi300a-node", changed={"proc/sys/kernel/numa_balancing": "1\n"})
    found = memory.gather(root, num_ranks=4)
    assert [apu.numa_node for apu in found.apus] == [0, 1, 2, 3]
    assert found.apus[1].free_bytes < found.apus[0].free_bytes
    assert "page cache" in {held.what for held in found.apus[1].held}
    assert "TTM page limit" in found.apus[0].limits
    assert (found.ttm_module, found.ttm_apus, found.numa_balancing) == ("amdttm", 4, 1)


def test_a_process_that_holds_memory_has_neither_name_nor_number(tmp_path):
    pages = 4 << 30 >> 12
    process = {
        "proc/4711/status": "Name:\tsecret_job\nVmRSS:\t  8388608 kB\n",
        "proc/4711/numa_maps": f"7f00 default anon={pages} N1={pages} kernelpagesize_kB=4\n",
    }
    found = memory.gather(unpack(tmp_path, "mi300a-node", changed=process))
    assert HeldMemory("a program", 4 << 30, False) in found.apus[1].held
    assert "4711" not in str(found)
    assert "secret_job" not in str(found)


def test_memory_that_cannot_be_told_says_why(tmp_path):
    root = unpack(tmp_path, "mi300a-node", without=(PCI.format(0) + "numa_node",))
    found = memory.gather(root)
    assert found.apus == ()
    assert "no NUMA node of its PCI device" in found.unreadable


def test_a_machine_without_accelerators_is_no_error(tmp_path):
    assert devices.gather(tmp_path).found == ()
    assert memory.gather(tmp_path).unreadable == "no accelerator"


def test_processors_are_counted_by_numa_node(tmp_path):
    for node, cpulist in enumerate(("0-3,8", "4-7")):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpulist + "\n")
    found = machine.cpus(tmp_path, allowed=[0, 1, 8, 99])
    assert found.by_node == {"0": 5, "1": 4}
    assert found.allowed_by_node == {"0": 3, "1": 0}


@pytest.mark.parametrize(
    ("pattern", "target"), [("|/usr/lib/dump %p", "program"), ("core", "file")]
)
def test_core_dumps_go_to_a_file_or_a_program(tmp_path, pattern, target):
    path = tmp_path / "proc/sys/kernel/core_pattern"
    path.parent.mkdir(parents=True)
    path.write_text(pattern + "\n")
    assert machine.limits(tmp_path).core_target == target


def test_the_operating_system_is_told(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="22.04"\n')
    (tmp_path / ".dockerenv").touch()
    found = machine.machine(tmp_path, kernel="7.0.0-28-generic")
    assert (found.distribution, found.in_container) == ("ubuntu 22.04", True)


def test_variables_are_told_without_paths_and_device_ids():
    shell = {
        "AITER_JIT_DIR": "/scratch/somebody/jit",
        "HIP_VISIBLE_DEVICES": "0,1",
        "ROCR_VISIBLE_DEVICES": "GPU-4f2a01",
        "SGLANG_USE_AITER": "1",
        "SECRET_TOKEN": "abc",
    }
    assert environment.gather(shell.get) == {
        "AITER_JIT_DIR": environment.A_PATH,
        "HIP_VISIBLE_DEVICES": "0,1",
        "ROCR_VISIBLE_DEVICES": environment.BY_UUID,
        "SGLANG_USE_AITER": "1",
    }
    assert environment.mask(environment.BY_UUID) is None
    assert environment.mask("3, 1") == [3, 1]
    assert environment.mask("0,-1,1") == [0]
    assert environment.mask("") is None


def test_of_hips_masks_the_first_that_is_set_counts():
    both = {"HIP_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert environment.masks(both) == [("HIP_VISIBLE_DEVICES", [2, 3])]
    shell = {"CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "2,3"}
    assert environment.masks(shell) == [
        ("ROCR_VISIBLE_DEVICES", [2, 3]),
        ("CUDA_VISIBLE_DEVICES", [1]),
    ]


def test_masks_leave_devices_by_the_drivers_order():
    assert environment.visible({}, 4) is None
    assert environment.visible({"ROCR_VISIBLE_DEVICES": "3,1"}, 4) == [3, 1]
    shell = {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1,2"}
    assert environment.visible(shell, 4) == [3]
    assert environment.visible({"HIP_VISIBLE_DEVICES": "-1"}, 4) == []


def test_two_spellings_of_one_mask_do_not_stack():
    both = {"HIP_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}
    facts = replace(recorded.healthy(), environment=both, tp=2)
    assert not {"masks-stack", "fewer-devices-than-ranks"} & {f.id for f in findings.judge(facts)}


def test_a_folder_is_told_with_its_file_system(tmp_path, monkeypatch):
    shared = tmp_path / "scratch [1]"
    shared.mkdir()
    mounts = tmp_path / "root/proc/self/mounts"
    mounts.parent.mkdir(parents=True)
    escaped = str(shared).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nmds@tcp:/lus {escaped} lustre rw 0 0\n")
    paths = {"model": shared, "state": tmp_path / "not/there"}
    found = places.gather(paths, tmp_path / "root")
    assert (found["model"].file_system, found["model"].executable) == ("lustre", True)
    assert (found["model"].has_bracket, found["model"].writable) == (True, True)
    assert places.is_network(found["model"])
    assert (found["state"].exists, found["state"].file_system) == (False, "ext4")
    assert not places.is_network(found["state"])
    assert abs(found["model"].clock_skew_s) < 5
    assert list(shared.iterdir()) == []


def test_a_folder_mounted_without_exec_is_told(tmp_path, monkeypatch):
    real = os.statvfs(tmp_path)
    parts = {name: getattr(real, name) for name in ("f_bavail", "f_frsize", "f_blocks")}
    mounted = SimpleNamespace(**parts, f_flag=os.ST_NOEXEC)
    monkeypatch.setattr(os, "statvfs", lambda path: mounted)
    assert not places.gather({"jit-cache": tmp_path})["jit-cache"].executable


def test_a_folder_of_another_user_is_told(tmp_path, monkeypatch):
    (tmp_path / "mine").touch()
    (tmp_path / "theirs").mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda p, m: "theirs" not in str(p) and real(p, m))
    found = places.gather({"jit-cache": tmp_path, "state": tmp_path / "theirs"})
    assert found["jit-cache"].num_unreadable == 1
    assert not found["state"].writable


@pytest.mark.parametrize(
    ("content", "holder"),
    [
        ("", "none"),
        ("no number\n", "none"),
        (f"{os.getpid()}\n{socket.gethostname()}\n", "alive"),
        (f"99999999\n{socket.gethostname()}\n", "dead"),
        ("1\nanother-machine\n", "another host"),
    ],
)
def test_a_builds_lock_is_told_with_its_holder_and_left_alone(tmp_path, content, holder):
    lock = tmp_path / "jit/build/lock_module_norm"
    lock.parent.mkdir(parents=True)
    lock.write_text(content)
    os.utime(lock, (1, 1))
    (found,) = build_locks.gather(tmp_path / "jit", tmp_path / "none", tmp_path / "none")
    assert (found.place, found.name) == ("jit-cache", "build/lock_module_norm")
    assert found.holder == holder
    assert found.age_s > 1e6
    assert lock.exists()


def test_locks_of_merged_tables_and_of_torchs_extensions_are_told(tmp_path):
    for name in ("configs/tuned.csv.lock", "ext/py310_rocm/op/lock", "ext/op/lock", "ext/op/clock"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = build_locks.gather(tmp_path / "none", tmp_path / "configs", tmp_path / "ext")
    assert [(lock.place, lock.name) for lock in found] == [
        ("aiter-configs", "tuned.csv.lock"),
        ("torch-extensions", "op/lock"),
        ("torch-extensions", "py310_rocm/op/lock"),
    ]


def test_compiled_modules_are_counted_in_the_folder_and_in_stores(tmp_path):
    assert build_locks.compiled(tmp_path / "none", [tmp_path / "none"]).num_modules == 0
    (tmp_path / "module_norm.so").touch()
    assert build_locks.compiled(tmp_path, []) == JitCache(1, False)
    name = "mha_batch_prefill_bf16_nlogits_nbias_nmask_nlse_ndropout"
    entry = tmp_path / "store/entries" / ("ab" * 32) / "modules"
    entry.mkdir(parents=True)
    for stored in (
        StoredModule("batch-prefill-nmask", (StoredFile(f"{name}.so", "cd" * 32, 5),)),
        StoredModule("pa_ragged", (StoredFile("build/pa_ragged/lib.so", "ef" * 32, 5),)),
        StoredModule("pa_other", (StoredFile("build/pa_other/lib.so", "ab" * 32, 5),)),
    ):
        (entry / f"{stored.name}.json").write_text(json.dumps(stored.to_data()))
    assert build_locks.compiled(tmp_path, [tmp_path / "store"]) == JitCache(4, True)


@pytest.mark.parametrize(
    ("source", "dialect"),
    [
        ("os.open(path, os.O_CREAT | os.O_EXCL)", "no owner"),
        ("os.O_EXCL ... socket.gethostname()", "pid and host"),
        ("os.O_EXCL ... socket.gethostname() ... fcntl.flock", "pid, host, namespace and start"),
        ("something else", "unknown"),
    ],
)
def test_the_dialect_of_aiters_locks_is_read_from_its_source(tmp_path, source, dialect):
    for name in software.AITER_MODULES[1:]:
        path = tmp_path / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "jit/utils").mkdir(parents=True)
    (tmp_path / "jit/utils/file_baton.py").write_text(source)
    found = software.aiter_install(tmp_path)
    assert found.lock_dialect == dialect
    assert found.missing_modules == software.AITER_MODULES[:1]
    assert len(found.lock_source_sha256) == 16


def test_the_sglang_that_would_be_imported_is_found_without_importing_it(tmp_path, monkeypatch):
    for name, version in (("site-packages", "0.5.18"), ("checkout", "0.5.17")):
        (tmp_path / name / "sglang/srt").mkdir(parents=True)
        text = f'__version__ = version = "{version}"\n'
        (tmp_path / name / "sglang/_version.py").write_text(text)
    installed, checkout = tmp_path / "site-packages", tmp_path / "checkout"
    found = software.sglang_import([installed], tmp_path)
    assert (found.version, found.place, found.num_candidates) == ("0.5.18", "site-packages", 1)
    found = software.sglang_import([installed], checkout)
    assert (found.version, found.place, found.num_candidates) == ("0.5.17", "working directory", 2)
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    found = software.sglang_import([checkout, installed], tmp_path)
    assert (found.version, found.place, found.num_candidates) == ("0.5.17", "PYTHONPATH", 2)
    assert software.sglang_import([tmp_path], tmp_path) is None


def test_patches_are_told_by_how_they_stand(tmp_path):
    root = trees.small(tmp_path / "site-packages")
    first, *_, last = trees.SERIES.patches
    folder = root / "sglang"
    assert software.patches_in(folder, "applied") == software.patches_in(None, "applied") == ()
    assert software.patches_in(folder, "half applied") == ()
    change.apply(trees.SERIES, [first, last], root)
    assert software.patches_in(folder, "applied") == (first.name, last.name)
    path = next(iter(last.touches))
    shutil.copy(trees.INSTALLED / path, root / path)
    assert software.patches_in(folder, "applied") == (first.name,)
    assert software.patches_in(folder, "half applied") == (last.name,)
    (folder / change.JOURNAL).write_text(json.dumps({"action": "apply", "patches": ["some"]}))
    assert software.patches_in(folder, "half applied") == (last.name, "some")
    (folder / change.JOURNAL).write_text("{")
    assert software.patches_in(folder, "half applied") == (last.name, "unknown")


def test_looking_at_the_software_imports_neither_torch_nor_sglang():
    program = (
        "import json, sys; from sglang_mi300a.doctor import software; found = software.gather();"
        "assert found.python;"
        "print(json.dumps(sorted({'torch', 'sglang'} & set(sys.modules))))"
    )
    trial, modules = trials.attempt(program, (), 60)
    assert (trial.status, modules) == ("fine", [])


TUNED = (
    "Validator,PT_VERSION,2.9.0\nValidator,ROCM_VERSION,7.0.0\n"
    "GemmTunableOp,tn_1_2_3,Rocblas_4,0.1\n"
)


def test_tunableops_table_is_told_by_device(tmp_path, monkeypatch):
    (tmp_path / "t0.csv").write_text(TUNED)
    (tmp_path / "t1.csv").write_bytes(TUNED.replace("\n", "\r\n").encode())
    monkeypatch.setenv("PYTORCH_TUNABLEOP_ENABLED", "1")
    monkeypatch.setenv("PYTORCH_TUNABLEOP_FILENAME", str(tmp_path / "t%d.csv"))
    first, second, third = tuned_tables.gather(3, tmp_path / "own", None).tunable
    assert (first.num_rows, first.has_carriage_return) == (1, False)
    assert first.validators == {"PT_VERSION": "2.9.0", "ROCM_VERSION": "7.0.0"}
    assert second.has_carriage_return
    assert (first.sha256, third.exists) == (second.sha256, False)
    assert tuned_tables.tunable_path("dir/results.csv", 2).name == "results2.csv"


def test_without_tunableop_its_tables_are_not_looked_at(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTORCH_TUNABLEOP_ENABLED", raising=False)
    assert tuned_tables.gather(4, tmp_path, None).tunable == ()


HEAD = "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,us\n"
ROW = "gfx942,228,16,512,4096,False,bf16,bf16,False,False,hipblaslt,7,{}\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (HEAD + ROW.format("9.5"), ""),
        (HEAD.replace(",us", "") + ROW.format("9.5"), "no column us"),
        (HEAD + ROW.format("inf"), "1 rows without a finite time"),
        (HEAD + ROW.format("9.5") * 2, "1 shapes twice"),
        ((HEAD + ROW.format("9.5")).replace("\n", "\r\n"), "carriage returns at line ends"),
    ],
)
def test_a_table_that_aiter_would_misread_is_told(tmp_path, text, fault):
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    assert tuned_tables.aiter_fault(path) == fault


def test_an_applied_table_that_was_damaged_is_told(tmp_path):
    (tmp_path / "gemm-1").mkdir()
    (tmp_path / "gemm-1/table.json").write_text("{}\n")
    assert tuned_tables.gather(4, tmp_path, None).others == ()
    (tmp_path / "gemm").symlink_to("gemm-1")
    (found,) = tuned_tables.gather(4, tmp_path, None).others
    assert (found.name, found.fault) == ("the applied table of dense products", "schema None")


QUARK = {
    "quant_method": "quark",
    "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32, "qscheme": "per_group"}},
}


def made(directory):
    """Return a small checkpoint that this package serves."""
    artifacts.make_checkpoint(directory)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = QUARK
    config["text_config"]["max_position_embeddings"] = 4096
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_whole_checkpoint_and_its_artifact_have_no_fault(tmp_path):
    source = made(tmp_path / "source")
    whole = model.gather(source, tp=2)
    assert (whole.kind, whole.fault, whole.tp) == ("checkpoint", "", 0)
    artifacts.shard(source, tmp_path / "out", tp=2)
    found = model.gather(tmp_path / "out", tp=2, probe=True)
    assert (found.kind, found.fault, found.tp, found.ep) == ("artifact", "", 2, 1)
    assert found.rank_bytes == whole.rank_bytes > 0
    assert found.load_s >= 0


def test_a_preset_that_does_not_fit_the_node_is_told_with_what_is_missing(tmp_path):
    root = unpack(tmp_path, "mi300a-node")
    lacks = model.plan_fault(SHIPPED_CONFIG, 4, "tuned", root, None)
    assert "missing under" in lacks
    assert lacks.startswith("APU ")
    assert model.plan_fault(tmp_path / "none", 4, "tuned", root, None).endswith("no such directory")


def test_a_small_model_fits_the_node(tmp_path):
    root = unpack(tmp_path / "root", "mi300a-node")
    assert model.plan_fault(made(tmp_path / "small"), 2, "tuned", root, None) == ""


def test_what_is_wrong_with_a_model_is_told_without_its_path(tmp_path):
    source = made(tmp_path / "source")
    weights = max(source.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-3])
    found = model.gather(source, tp=2)
    assert found.fault.startswith(f"<model>/{weights.name}: ")
    assert str(tmp_path) not in found.fault
    assert model.gather(tmp_path / "none", tp=2).fault == "<model>: no such directory"


def test_what_crashes_hangs_or_fails_does_so_in_a_process_of_its_own():
    assert trials.attempt("print('{\"a\": 1}')", (), 30)[1] == {"a": 1}
    crash = f"import os; os.kill(os.getpid(), {signal.SIGSEGV.value})"
    assert trials.attempt(crash, (), 30)[0].status == "signal 11"
    assert trials.attempt("import time; time.sleep(60)", (), 0.2)[0].status == "no answer in 0.2 s"
    assert trials.attempt("raise SystemExit('no HIP')", (), 30)[0].status == "no HIP"


def test_hips_runtime_is_asked_in_a_process_of_its_own(tmp_path):
    trial, rows = trials.attempt(trials.HIP, [str(tmp_path / "libamdhip64.so")], 30)
    assert trial.status.startswith("no HIP runtime: ")
    assert rows is None


def test_a_port_that_somebody_listens_on_is_taken():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not gather._is_free(listener.getsockname()[1])
