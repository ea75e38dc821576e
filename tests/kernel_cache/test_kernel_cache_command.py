"""``sglang-mi300a kernel-cache``: from nothing to another machine's store, and every refusal."""

import argparse
import hashlib
import json
import os
import re
import shlex

import pytest

from sglang_mi300a.cli import kernel_cache
from sglang_mi300a.cli.main import main
from sglang_mi300a.kernel_cache import jobs, key, needed
from tests import repository
from tests.kernel_cache import standin_aiter
from tests.kernel_cache.conftest import PLAIN

NO_GPU = ("--no-gpu", "--arch", "gfx942", "--cus", "228")


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch, compiled_by):
    """A machine with the stand-in AITER and a ROCm that tells its version; no variants to build."""
    standin_aiter.make(tmp_path / "opt")
    rocm = tmp_path / "rocm/bin"
    rocm.mkdir(parents=True)
    (rocm / "hipconfig").write_text("#!/bin/sh\necho 7.0.51831\n")
    (rocm / "hipconfig").chmod(0o755)
    monkeypatch.setenv("PATH", f"{rocm}:{os.environ['PATH']}")
    monkeypatch.setenv("SGLANG_MI300A_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setenv("SGLANG_MI300A_KERNEL_CACHE", str(tmp_path / "store"))
    monkeypatch.setattr(needed, "rows", lambda: PLAIN[:2])


@pytest.fixture
def run(tmp_path, capsys):
    """Run a verb; return its exit code, JSON (if any) and stderr."""

    def call(verb, *arguments, aiter=True):
        flags = ["--json", *(["--aiter", str(tmp_path / "opt/aiter"), *NO_GPU] if aiter else [])]
        code = main(["kernel-cache", verb, *map(str, arguments), *flags])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return call


def test_build_pack_unpack_verify_list(run, tmp_path):
    code, built, _ = run("build")
    assert (code, [one["how"] for one in built["modules"]]) == (0, ["built", "built"])
    archive = tmp_path / "kernels.tar.zst"
    assert run("pack", archive)[0] == 0
    other = ["--store", str(tmp_path / "other")]
    code, unpacked, _ = run("unpack", archive, *other)
    assert (code, unpacked["key"], len(unpacked["modules"])) == (0, built["key"], 2)
    assert run("verify", *other, aiter=False)[:2] == (
        0,
        {"store": str(tmp_path / "other"), "problems": {built["key"]: []}},
    )
    code, listed, _ = run("list", *other)
    assert listed["here"] == built["key"]
    assert (listed["keys"][0]["differs"], listed["keys"][0]["lacks"]) == ([], [])
    assert listed["keys"][0]["means"]["aiter_commit"] == "d9e5ef7ce"
    assert run("build", *other)[1]["modules"][0]["how"] == "kept"


def test_an_archive_of_another_key_is_refused_by_name_and_taken_with_any_key(
    run, tmp_path, monkeypatch
):
    run("build")
    run("pack", tmp_path / "kernels.tar.zst")
    monkeypatch.setenv("CK_TILE_FLOAT_TO_BFLOAT16_DEFAULT", "3")
    code, _, err = run("unpack", tmp_path / "kernels.tar.zst")
    assert code == 2
    assert "switch CK_TILE_FLOAT_TO_BFLOAT16_DEFAULT: 3 here, not there" in err
    code, _, err = run("pack", tmp_path / "more.tar.zst")
    assert (code, "the nearest key differs in switch CK" in err) == (2, True)
    assert run("unpack", tmp_path / "kernels.tar.zst", "--any-key")[0] == 0


def test_any_part_of_the_software_gives_another_key(run, tmp_path, monkeypatch):
    digests = [run("list")[1]["here"]]
    (tmp_path / "opt/csrc/kernel.cu").write_text("// another kernel\n")
    digests.append(run("list")[1]["here"])
    (tmp_path / "opt/aiter/_version.py").write_text("__version__ = '0.1.9'\n")
    digests.append(run("list")[1]["here"])
    (tmp_path / "rocm/bin/hipconfig").write_text("#!/bin/sh\necho 7.2.0\n")
    digests.append(run("list")[1]["here"])
    monkeypatch.setattr(key, "torch_build", lambda: "2.10.0")
    digests.append(run("list")[1]["here"])
    monkeypatch.setattr(key.sysconfig, "get_config_var", lambda name: "cpython-310")
    digests.append(run("list")[1]["here"])
    monkeypatch.setattr(needed, "names", lambda: ("one",))
    digests.append(run("list")[1]["here"])
    assert len(set(digests)) == 7
    assert (run("list")[1]["here"]) == digests[-1]


def test_a_changed_byte_is_found_and_exit_code_1(run, tmp_path):
    run("build")
    path = next((tmp_path / "store/objects").glob("*/*"))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    code, found, _ = run("verify", aiter=False)
    (problems,) = found["problems"].values()
    assert code == 1
    assert "other bytes than were stored" in problems[0]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_fetch_takes_a_path_or_an_address_and_its_checksum(run, tmp_path, scheme):
    run("build")
    archive = tmp_path / "kernels.tar.zst"
    run("pack", archive)
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    there = ("--store", tmp_path / "other")
    code, _, err = run("fetch", f"{scheme}{archive}", "--sha256", "0" * 64, *there)
    assert (code, f"found SHA-256 {checksum}" in err) == (2, True)
    assert not list((tmp_path / "other/entries").iterdir())
    assert run("fetch", f"{scheme}{archive}", "--sha256", checksum, *there)[0] == 0
    assert list((tmp_path / "other/tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("none.tar.zst", "No such file"),
        ("ftp://host/kernels.tar.zst", "scheme 'ftp'"),
        ("http://127.0.0.1:1/kernels.tar.zst", "not readable"),
        ("http://[", "not readable"),
    ],
)
def test_what_cannot_be_fetched_is_refused(run, source, says):
    code, _, err = run("fetch", source)
    assert (code, says in err) == (2, True), err


def test_fetch_stops_at_the_size_it_may_have(run, tmp_path):
    (tmp_path / "big").write_bytes(b"x" * 5000)
    code, _, err = run("fetch", tmp_path / "big", "--max-bytes", "4000")
    assert (code, "more than 4000 bytes" in err) == (2, True)


def test_record_takes_a_directory_of_aiters_and_waits_for_its_locks(run, tmp_path):
    jit_dir = tmp_path / "jit"
    linked = jit_dir / "build/module_more/build"
    linked.mkdir(parents=True)
    for path in (linked / "module_more.so", jit_dir / "module_more.so"):
        path.write_bytes(standin_aiter.shared_object(b"more"))
    lock = jit_dir / "build/lock_module_more"
    lock.touch()
    code, _, err = run("record", jit_dir, "--wait", "0")
    assert (code, f"rm {lock}" in err, lock.exists()) == (2, True, True)
    lock.unlink()
    assert run("record", jit_dir)[1]["recorded"] == ["module_more"]
    assert run("record", jit_dir)[1]["recorded"] == []
    assert run("verify", aiter=False)[0] == 0


def test_gc_removes_what_ended_builds_left_and_other_keys_if_told(run, tmp_path, monkeypatch):
    run("build")
    (tmp_path / "local/staging/rmsnorm-x").mkdir()
    (tmp_path / "local/launches/0-x").mkdir(parents=True)
    monkeypatch.setenv("ENABLE_CK", "0")
    would = run("gc", "--dry-run", "--foreign")[1]
    assert (tmp_path / "local/staging/rmsnorm-x").is_dir()
    did = run("gc", "--foreign")[1]
    assert {**would, "dry_run": False} == did
    assert [len(did[name]) for name in ("launches", "builds", "keys", "unused")] == [1, 1, 1, 0]
    assert not list((tmp_path / "local/staging").iterdir())
    assert run("list")[1]["keys"] == []


def test_without_aiter_rocm_or_gpu_the_command_says_what_is_missing(run, tmp_path, monkeypatch):
    code, _, err = run("build", "--aiter", tmp_path / "rocm", *NO_GPU, aiter=False)
    assert (code, "no jit/core.py" in err) == (2, True)
    code, _, err = run("build", "--aiter", tmp_path / "opt/aiter", aiter=False)
    assert (code, "found no AMD accelerator" in err) == (2, True)
    (tmp_path / "rocm/bin/hipconfig").unlink()
    code, _, err = run("build")
    assert (code, "hipconfig" in err and "ROCM_PATH" in err) == (2, True)


@pytest.mark.parametrize(
    ("num_cores", "free_gib", "jobs_that_fit"),
    [(24, 40, 3), (24, 400, 24), (2, 400, 2), (24, 17, 1), (24, 1, 1)],
)
def test_compilers_are_as_many_as_the_memory_holds(num_cores, free_gib, jobs_that_fit):
    assert jobs.that_fit(num_cores, free_gib << 30) == jobs_that_fit


def test_a_containers_limit_counts_where_it_is_the_smaller(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 1000 kB\n")
    assert jobs.free_bytes(tmp_path / "meminfo", tmp_path) == 1_024_000
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("100000\n")
    assert jobs.free_bytes(tmp_path / "meminfo", tmp_path) == 400_000
    (tmp_path / "memory.max").write_text("max\n")
    assert jobs.free_bytes(tmp_path / "meminfo", tmp_path) == 1_024_000


def test_the_table_of_needed_modules_names_each_once_with_its_reason():
    import importlib

    rows = importlib.import_module("sglang_mi300a.kernel_cache.needed")
    data = json.loads(rows.DATA.read_text())["modules"]
    assert len({row["name"] for row in data}) == len(data)
    assert all(len(row["why"]) > 10 and row["module"] for row in data)


@pytest.mark.parametrize("page", ["docs/kernel_cache.md", "examples/Containerfile"])
def test_every_command_line_of_the_page_parses(page, capsys):
    text = (repository.ROOT / page).read_text().replace("\\\n", " ")
    lines = re.findall(r"sglang-mi300a kernel-cache ([a-z]+[^#\n`&]*)", text)
    assert len(lines) >= 3
    parser = argparse.ArgumentParser()
    kernel_cache.add_arguments(parser)
    for line in lines:
        assert parser.parse_args(shlex.split(line)).verb == line.split()[0]
