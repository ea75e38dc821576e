"""Which HIP runtime a process gets: the one that is mapped, else version 7, else 6; never two."""

import json
import os
import subprocess
import sys

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import binding, ctypes_binding, native_build
from tests import repository
from tests.gfx942 import toolchain as products
from tests.launcher import sample, standin

# Each program runs in a process of its own, since a runtime stays mapped. It prints JSON.
START = """
import ctypes, json, sys
from pathlib import Path
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import binding, native_build
from sglang_mi300a.launcher.failure import LauncherError
folder, kind, *paths = sys.argv[1:]
through = (binding.open_binding if kind == "ctypes" else binding.pybind_module)(Path(folder))
def say(what): print(json.dumps(what))
def opened():
    try:
        return through.open_runtime()
    except (UserError, LauncherError) as error:
        return [type(error).__name__, str(error)]
"""
OPEN = "say(opened())"
MAP_FIRST_THEN_OPEN = """
library = ctypes.CDLL(paths[0])
say([*opened(), library.mi300aStandinCalls(b"hipInit")])
"""
MAP_ALL_THEN_OPEN = "for path in paths: ctypes.CDLL(path)\nsay(opened())"
FAIL_AT_FIRST = """
library = ctypes.CDLL(paths[0])
library.mi300aStandinFailNext(b"hipInit", 100)
say([opened(), opened()])
"""
MAP_A_SECOND_LATER = """
first = opened()
ctypes.CDLL(paths[0])
try:
    through.load(0, Path(paths[1]).read_bytes())
    say([first, "loaded"])
except UserError as error:
    say([first, str(error)])
"""


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory):
    """Folders with stand-ins: of both versions, of 6 alone, and one of torch's own."""
    made = {}
    for name, sonames in {
        "seven": ["libamdhip64.so.7"],
        "six": ["libamdhip64.so.6"],
        "both": ["libamdhip64.so.7", "libamdhip64.so.6"],
        "torch": ["libamdhip64.so"],
    }.items():
        made[name] = tmp_path_factory.mktemp(name)
        for soname in sonames:
            standin.library(made[name], soname=soname)
    return made


@pytest.fixture(params=["ctypes", "pybind11"])
def run(request, launcher_folder):
    """Run a program through a binding; return what it printed."""
    if request.param == "pybind11" and len(list(launcher_folder.glob("pybind_module*.so"))) == 0:
        pytest.skip("the pybind11 module is not built")

    def program(code, *paths, on_path=None):
        environment = {**os.environ, "PYTHONPATH": str(repository.ROOT)}
        environment.pop("LD_LIBRARY_PATH", None)
        if on_path is not None:
            environment["LD_LIBRARY_PATH"] = str(on_path)
        done = subprocess.run(
            [sys.executable, "-c", START + code, launcher_folder, request.param, *paths],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return program


def test_without_a_runtime_both_names_that_were_tried_are_said(run):
    kind, text = run(OPEN)
    assert kind == "UserError"
    assert text.startswith("HIP runtime: found libamdhip64.so.7: cannot open")
    assert "libamdhip64.so.6: cannot open" in text
    assert "do: run where ROCm is installed" in text


@pytest.mark.parametrize(
    ("where", "file"),
    [("seven", "libamdhip64.so.7"), ("six", "libamdhip64.so.6"), ("both", "libamdhip64.so.7")],
)
def test_version_7_is_taken_before_version_6(run, runtimes, where, file):
    assert run(OPEN, on_path=runtimes[where]) == [str(runtimes[where] / file), True]


def test_the_runtime_that_is_mapped_is_taken_before_any_on_the_path(run, runtimes):
    mapped = runtimes["torch"] / "libamdhip64.so"
    assert run(MAP_FIRST_THEN_OPEN, mapped, on_path=runtimes["both"]) == [str(mapped), True, 1]


def test_two_mapped_runtimes_are_refused_by_name(run, runtimes):
    paths = [runtimes["torch"] / "libamdhip64.so", runtimes["seven"] / "libamdhip64.so.7"]
    kind, text = run(MAP_ALL_THEN_OPEN, *paths)
    assert kind == "UserError"
    assert text.startswith("HIP runtime: found ")
    for path in paths:
        assert str(path) in text


def test_a_second_runtime_that_is_mapped_later_is_refused_at_the_next_load(run, runtimes, tmp_path):
    image = tmp_path / "sample.co"
    image.write_bytes(sample.image())
    second = runtimes["torch"] / "libamdhip64.so"
    first, refused = run(MAP_A_SECOND_LATER, second, image, on_path=runtimes["seven"])
    assert first == [str(runtimes["seven"] / "libamdhip64.so.7"), True]
    assert "HIP runtime: found " in refused
    assert str(second) in refused


def test_a_runtime_without_a_needed_function_is_refused_with_its_name(run, tmp_path):
    source = tmp_path / "empty.c"
    source.write_text("int hipInit(unsigned flags) { return (int)flags; }\n")
    library = tmp_path / "libamdhip64.so.7"
    products.run([products.tool("g++"), "-x", "c", "-shared", "-fPIC", source, "-o", library])
    kind, text = run(OPEN, on_path=tmp_path)
    assert kind == "UserError"
    assert f"{library} lacks hipGetDevice" in text


def test_a_runtime_that_does_not_start_is_an_error_and_may_start_later(run, runtimes):
    failed, again = run(FAIL_AT_FIRST, runtimes["seven"] / "libamdhip64.so.7")
    assert failed == [
        "LauncherError",
        "hipInit: HIP error 100 (hipErrorNoDevice): no ROCm-capable device is detected",
    ]
    assert again == [str(runtimes["seven"] / "libamdhip64.so.7"), True]


CPU_TENSORS = """
import torch
from sglang_mi300a import code_objects
from sglang_mi300a.launcher import kernels
code = code_objects.read(Path(paths[0]).read_bytes(), "sample")
try:
    kernels.load(code, torch.device("cpu"), through)
except UserError as error:
    say(str(error))
"""


def test_tensors_on_the_cpu_never_reach_a_runtime_that_is_no_stand_in(run, tmp_path):
    standin.library(tmp_path, flags=["-DSTANDIN_WITHOUT_MARK"])
    image = tmp_path / "sample.co"
    image.write_bytes(sample.image())
    text = run(CPU_TENSORS, image, on_path=tmp_path)
    assert text.startswith("loading sample: found device cpu; supported: GPUs of ")


def test_a_core_of_another_version_is_refused(launcher_folder, tmp_path):
    with pytest.raises(UserError, match=rf"{native_build.CORE_FILE}: found .*make setup"):
        binding.open_binding(tmp_path)
    names = ctypes_binding._PARAMETERS
    source = tmp_path / "other.c"
    source.write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name in names))
    core = tmp_path / native_build.CORE_FILE
    products.run([products.tool("g++"), "-x", "c", "-shared", source, "-o", core])
    with pytest.raises(UserError, match="found interface version 999, this package has 1"):
        binding.open_binding(tmp_path)


def test_this_process_gets_the_faster_binding_that_was_built(launcher_folder):
    built = len(list(launcher_folder.glob("pybind_module*.so"))) > 0
    binding.binding.cache_clear()
    found = binding.name_of(binding.binding())
    if not built:
        assert found == "ctypes"
    elif binding.pybind_module(launcher_folder) is not None:
        assert found == "pybind11"
