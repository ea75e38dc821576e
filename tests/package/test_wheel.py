"""What the wheel and the source archive hold, and what the wheel says of itself."""

import configparser
import json
import re
import tarfile
import zipfile

import pytest
from packaging.requirements import Requirement

from sglang_mi300a import shipped


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(built.wheel) as archive:
        yield archive


@pytest.fixture(scope="module")
def entry_points(wheel):
    parser = configparser.ConfigParser(delimiters="=")
    parser.optionxform = str
    name = f"sglang_mi300a-{shipped.version()}.dist-info/entry_points.txt"
    parser.read_string(wheel.read(name).decode())
    return parser


def test_the_wheel_holds_the_package_and_the_data_folders_and_nothing_else(built, wheel):
    package = {name for name in built.files if name.startswith("sglang_mi300a/")}
    data = {
        f"sglang_mi300a/data/{name}"
        for name in built.files
        if name.startswith(("tuning_tables/", "patches/"))
    }
    made = {
        "sglang_mi300a/supported.json",
        "sglang_mi300a/code_objects/gemm.gfx942.co",
        "sglang_mi300a/code_objects/gemm.gfx942.json",
        "sglang_mi300a/code_objects/moe.gfx942.co",
        "sglang_mi300a/code_objects/moe.gfx942.json",
        "sglang_mi300a/host/libsglang_mi300a_host.so",
        "sglang_mi300a/launcher/libsglang_mi300a_launcher.so",
    }
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == package | data | made


def test_presets_pins_and_stand_ins_are_in_the_wheel(wheel):
    names = wheel.namelist()
    assert "sglang_mi300a/serving/presets/baseline.json" in names
    assert "sglang_mi300a/hook_pins.json" in names
    assert "sglang_mi300a/cpu_engine/standins/sgl_kernel/__init__.py" in names


def test_the_source_archive_holds_every_file_of_the_repository(built):
    with tarfile.open(built.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert not set(built.files) - inside


def test_the_wheel_runs_on_any_python_that_it_admits(built, metadata):
    tag = "py3-none-manylinux_2_[0-9]+_x86_64"
    assert re.fullmatch(f"sglang_mi300a-{shipped.version()}-{tag}.whl", built.wheel.name)
    assert metadata["Requires-Python"] == shipped.supported()["python"]


def test_nothing_the_wheel_asks_for_brings_torch_or_sglang(metadata):
    asked = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    always = {one.name for one in asked if one.marker is None}
    assert always == {"numpy", "packaging", "tqdm", "xxhash"}
    by_extra = {one.name for one in asked if one.marker is not None}
    # `sglang-mi300a` is this package's own name, which `dev` uses to take in `test`.
    assert by_extra == {
        *("build", "hypothesis", "matplotlib", "mypy", "pytest", "ruff", "setuptools", "vermin"),
        "zstandard",
        "sglang-mi300a",
    }


def test_the_wheel_names_its_licence_and_version(metadata, wheel):
    assert metadata["Name"] == "sglang-mi300a"
    assert metadata["Version"] == shipped.version()
    assert metadata["License-Expression"] == "Apache-2.0"
    text = wheel.read(f"sglang_mi300a-{shipped.version()}.dist-info/licenses/LICENSE").decode()
    assert "Apache License" in text


def test_sglang_finds_one_plugin_and_the_shell_two_commands(entry_points):
    assert dict(entry_points["sglang.srt.plugins"]) == {"mi300a": "sglang_mi300a.plugin:activate"}
    assert dict(entry_points["console_scripts"]) == {
        "sglang-mi300a": "sglang_mi300a.cli.main:main",
        "shard-weights": "sglang_mi300a.cli.main:shard_weights",
    }


def test_the_wheel_carries_the_versions_that_pyproject_states(wheel):
    assert json.loads(wheel.read("sglang_mi300a/supported.json")) == shipped.facts()
