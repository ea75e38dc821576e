"""Wheels of a tree with kernels: one for every Python, and one that says that it has none."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sglang_mi300a import shipped
from sglang_mi300a.launcher import native_build
from tests import repository
from tests.launcher import sample, standin
from tests.package.test_other_pythons import interpreter

NEEDED = (
    *("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"),
    *("sglang_mi300a/", "csrc/launcher/", "csrc/host/", "patches/", "tuning_tables/"),
)
# What the standard library, and so a wheel for many Linuxes, may rely on.
SYSTEM_LIBRARIES = {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "libdl.so.2"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory, launcher_folder):
    """This repository's files that make a wheel, with the sample as the only room.

    Launcher and host library are built already, as here; nothing of them is in the files.
    """
    root = tmp_path_factory.mktemp("tree")
    for name in repository.files():
        if name.startswith(NEEDED):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository.ROOT / name, root / name)
    shutil.copytree(sample.CSRC / sample.ROOM, root / "csrc" / sample.ROOM)
    shutil.copytree(launcher_folder, root / "build/native/launcher")
    host, _ = native_build.build_host(repository.ROOT)
    shutil.copytree(host.parent, root / "build/native/host")
    return root


def setup(tree, *arguments, **variables):
    """Run setup.py; return the finished process."""
    return subprocess.run(
        [sys.executable, "setup.py", "-q", *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def wheel(tree, out, **variables):
    """Return the wheel that a build makes."""
    done = setup(tree, "bdist_wheel", "--dist-dir", str(out), **variables)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def built(tree, tmp_path_factory):
    return wheel(tree, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder)
    return folder


def compiled_files(path):
    """Return the names of the files in a wheel that are no text."""
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if re.search(r"\.(so|co|key)$", name)}


def test_one_wheel_is_for_every_python_and_holds_core_and_kernels(built):
    version = shipped.version()
    assert re.fullmatch(rf"sglang_mi300a-{version}-py3-none-manylinux_2_\d+_x86_64.whl", built.name)
    assert compiled_files(built) == {
        "sglang_mi300a/code_objects/sample.gfx942.co",
        f"sglang_mi300a/host/{native_build.HOST_FILE}",
        f"sglang_mi300a/launcher/{native_build.CORE_FILE}",
    }


def test_the_wheels_kernels_are_the_trees(built):
    with zipfile.ZipFile(built) as archive:
        image = archive.read("sglang_mi300a/code_objects/sample.gfx942.co")
        record = json.loads(archive.read("sglang_mi300a/code_objects/sample.gfx942.json"))
    assert image == sample.image()
    assert record["sources"] == [
        *("sample/add_table.hip", "sample/mixed_widths.hip"),
        *("sample/sample.hip", "sample/scale_rows.hip", "sample/threads.h"),
    ]


def test_the_platform_tag_is_the_oldest_glibc_that_the_libraries_run_with(built, unpacked):
    tagged = int(re.search(r"manylinux_2_(\d+)_", built.name)[1])
    readelf = shutil.which("readelf") or "llvm-readelf-19"
    wanted, needed = [], set()
    for name in (f"launcher/{native_build.CORE_FILE}", f"host/{native_build.HOST_FILE}"):
        command = [readelf, "-dV", unpacked / "sglang_mi300a" / name]
        dynamic = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        wanted += map(int, re.findall(r"GLIBC_2\.(\d+)", dynamic))
        needed |= set(re.findall(r"NEEDED.*\[(.+)\]", dynamic))
        assert not re.search(r"RPATH|RUNPATH", dynamic)
    assert max(wanted) == tagged
    assert "libc.so.6" in needed
    assert needed <= SYSTEM_LIBRARIES


def test_auditwheel_agrees_with_the_tag(built):
    auditwheel = Path(sys.executable).with_name("auditwheel")
    if not auditwheel.is_file():
        pytest.skip("auditwheel is not installed")
    done = subprocess.run([auditwheel, "show", built], capture_output=True, text=True, check=False)
    said = " ".join(done.stdout.split())
    tag = re.search(r"manylinux_2_\d+_x86_64", built.name)[0]
    assert f'consistent with the following platform tag: "{tag}"' in said, done.stdout + done.stderr


LAUNCH_FROM_THE_WHEEL = """
import ctypes, sys
from sglang_mi300a import code_objects
from sglang_mi300a.launcher import binding
ctypes.CDLL(sys.argv[1])
code = code_objects.load("sample")
through = binding.binding()
module = through.load(0, code.image)
kernel = through.kernel(module, "mixed_widths", ((0, 8), (8, 4), (16, 8), (24, 8), (32, 8)))
try:
    through.launch(kernel, (1, 1, 1), (64, 1, 1), 0, 0, (0, 1, 2, 3, 4))
except Exception as error:
    print(binding.name_of(through), code.where, error, sep="|")
"""


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_wheel_launches_on_each_python(unpacked, tmp_path, version):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no CPython {version} on this machine")
    library = standin.library(tmp_path)
    done = subprocess.run(
        [python, "-c", LAUNCH_FROM_THE_WHEEL, library],
        env={"PYTHONPATH": str(unpacked), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name, where, error = done.stdout.strip().split("|")
    assert name == "ctypes"
    assert where == str(unpacked / "sglang_mi300a/code_objects/sample.gfx942.co")
    # The launch came through to the runtime, which here has nobody to execute it.
    assert error.startswith("hipModuleLaunchKernel of kernel mixed_widths, grid 1 x 1 x 1")
    assert "HIP error 801 (hipErrorNotSupported)" in error


def test_the_wheels_host_library_is_found_and_makes_records(unpacked, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import numpy; from sglang_mi300a import stream_layout, stream_records; "
            "stream_layout.split_mxfp4('w2', numpy.ones((32, 64), numpy.uint8), "
            "numpy.ones((32, 4), numpy.uint8)); "
            "print(stream_records.is_built(), stream_records.__file__)",
        ],
        env={"PYTHONPATH": str(unpacked), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", str(unpacked / "sglang_mi300a/stream_records.py")]


def test_a_wheel_without_kernels_says_so_and_needs_no_compiler(tree, tmp_path):
    path = wheel(tree, tmp_path, SGLANG_MI300A_NO_KERNELS="1", SGLANG_MI300A_CLANG="/nowhere/clang")
    assert path.name == f"sglang_mi300a-{shipped.version()}+nokernels-py3-none-any.whl"
    assert compiled_files(path) == set()
    with zipfile.ZipFile(path) as archive:
        facts = json.loads(archive.read("sglang_mi300a/supported.json"))
    assert facts["version"] == f"{shipped.version()}+nokernels"


def test_a_tree_without_kernels_makes_such_a_wheel_too(tree, tmp_path):
    bare = shutil.copytree(tree, tmp_path / "bare", ignore=shutil.ignore_patterns(sample.ROOM))
    assert "+nokernels-py3-none-any" in wheel(bare, tmp_path / "dist").name


def test_a_source_archive_is_never_without_kernels(tree, tmp_path):
    done = setup(tree, "sdist", "--dist-dir", str(tmp_path), SGLANG_MI300A_NO_KERNELS="1")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [
        f"sglang_mi300a-{shipped.version()}.tar.gz"
    ]


def test_a_build_without_a_clang_fails_and_says_the_way_out(tree, tmp_path):
    done = setup(
        tree, "bdist_wheel", "--dist-dir", str(tmp_path), SGLANG_MI300A_CLANG="/nowhere/clang"
    )
    assert done.returncode != 0
    assert "/nowhere/clang: No such file or directory" in done.stderr
    assert "SGLANG_MI300A_NO_KERNELS=1" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_with_the_pybind11_module_a_wheel_is_for_one_python(tree, tmp_path):
    if not native_build.can_build_pybind():
        pytest.skip("pybind11, or Python's headers, are not installed")
    path = wheel(tree, tmp_path, SGLANG_MI300A_PYBIND11="1")
    tag = "cp{}{}".format(*sys.version_info[:2])
    assert f"-{tag}-{tag}-manylinux_2_" in path.name
    assert f"sglang_mi300a/launcher/{native_build.PYBIND_FILE}" in compiled_files(path)


def test_building_into_the_tree_says_what_it_compiled_and_only_that(tree):
    setup(tree, "native")
    assert setup(tree, "native").stdout == ""
    (tree / "build/native/launcher" / native_build.CORE_FILE).unlink()
    (tree / "build/native/host" / native_build.HOST_FILE).unlink()
    (tree / "build/native/code_objects/sample.gfx942.co").unlink()
    assert setup(tree, "native").stdout.splitlines() == [
        f"compiled {native_build.CORE_FILE}",
        f"compiled {native_build.HOST_FILE}",
        "compiled sample.gfx942.co",
    ]
