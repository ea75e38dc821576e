"""The pinned environment: complete, without GPU builds, and the one the tests run in."""

import importlib.metadata
import re

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from sglang_mi300a import shipped
from tests import repository

FOLDER = repository.ROOT / "requirements"
FILES = ("torch-cpu.txt", "cpu-engine.txt", "dev.txt")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def lines(file):
    text = (FOLDER / file).read_text().splitlines()
    return [line for line in text if line and not line.startswith(("#", "--"))]


def pins(python=None):
    """Return the pinned versions by name, as a Python (default: this one) would install them."""
    environment = default_environment()
    if python:
        environment |= {"python_version": python, "python_full_version": f"{python}.0"}
    found = {}
    for file in FILES:
        for line in lines(file):
            one = Requirement(line)
            if one.marker is None or one.marker.evaluate(environment):
                found.setdefault(canonicalize_name(one.name), []).append(str(one.specifier)[2:])
    return found


def test_every_line_pins_one_version():
    for file in FILES:
        for line in lines(file):
            assert re.fullmatch(r"[\w.-]+==[\w.+]+( ; python_version (<|>=) '3\.\d+')?", line), line


@pytest.mark.parametrize("python", PYTHONS)
def test_no_package_is_pinned_twice(python):
    assert {name: found for name, found in pins(python).items() if len(found) > 1} == {}


@pytest.mark.parametrize("python", PYTHONS)
def test_no_pin_brings_a_gpu_build(python):
    assert pins(python)["torch"][0].endswith("+cpu")
    gpu = r"nvidia|cuda|cupy|sgl-?(ang-)?kernel|flashinfer|flash-attn|cutlass|torchaudio"
    assert [name for name in pins(python) if re.search(gpu, name)] == []


@pytest.mark.parametrize("name", ["sglang", "torch"])
def test_the_pins_lie_in_the_supported_range(name):
    assert SpecifierSet(shipped.supported()[name]).contains(pins()[name][0])


def test_the_tests_run_in_the_pinned_environment():
    here = {}
    for name in pins():
        try:
            here[name] = [importlib.metadata.version(name)]
        except importlib.metadata.PackageNotFoundError:
            here[name] = ["not installed"]
    assert here == pins()


def test_what_the_pinned_packages_ask_for_is_pinned():
    # SGLang's list is the reason for --no-deps: it holds the CUDA builds. What SGLang really needs
    # on a CPU is shown by the server tests.
    lacking = []
    for name in set(pins()) - {"sglang"}:
        for line in importlib.metadata.requires(name) or []:
            asked = Requirement(line)
            if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
                continue
            (found,) = pins().get(canonicalize_name(asked.name), ["nothing"])
            if found == "nothing" or not asked.specifier.contains(found, prereleases=True):
                lacking.append(f"{name} asks for {asked}, pinned is {found}")
    assert lacking == []


def test_the_package_asks_for_nothing_that_the_pins_refuse(metadata):
    for line in metadata.get_all("Requires-Dist"):
        asked = Requirement(line)
        if asked.name == "sglang-mi300a":
            continue
        if asked.marker is None or asked.marker.evaluate({"extra": "dev"}):
            (found,) = pins()[canonicalize_name(asked.name)]
            assert asked.specifier.contains(found), f"{asked} refuses {found}"


def test_only_the_torch_file_names_an_index():
    for path in FOLDER.glob("*.txt"):
        named = re.findall(r"https?://\S+", path.read_text())
        wanted = ["https://download.pytorch.org/whl/cpu"] if path.name == "torch-cpu.txt" else []
        assert named == wanted, path.name
