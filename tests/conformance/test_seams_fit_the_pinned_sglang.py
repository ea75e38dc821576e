"""Every seam fits the SGLang that is installed here, which is the supported one."""

import json

import pytest

from sglang_mi300a import hook_fit, hooking, plugin, shipped
from sglang_mi300a.cli import hooks as command
from sglang_mi300a.cpu_engine import recipe
from sglang_mi300a.serving import preset
from sglang_mi300a.supported import fits, installed_version

SEAMS = plugin.all_seams()


@pytest.fixture(scope="module")
def tree():
    return plugin.installed_sglang()


def test_the_installed_sglang_is_the_supported_one():
    assert fits(installed_version("sglang"), shipped.supported()["sglang"])


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_the_seam_fits(seam, tree):
    fit = hooking.judge(seam, tree, hook_fit.Pins.load())
    assert fit.fits, fit.detail


def test_the_pins_are_those_of_the_installed_sglang_and_of_no_seam_that_is_gone(tree):
    version = hook_fit.version_in(tree)
    regenerated = hook_fit.pin([seam.target for seam in SEAMS], tree, version)
    assert json.loads(hook_fit.PINS_FILE.read_text()) == json.loads(regenerated)
    assert version == "0.5.18"


def test_seam_names_are_unique_and_begin_with_their_room():
    names = [seam.name for seam in SEAMS]
    assert len(names) == len(set(names))
    assert {name.split(".")[0] for name in names} <= set(plugin.ROOMS_WITH_SEAMS)


def test_every_seam_says_why_and_when_it_goes():
    assert all(len(seam.why) > 20 and len(seam.remove_when) > 10 for seam in SEAMS)


@pytest.mark.parametrize("name", preset.names())
@pytest.mark.parametrize("device", ["gfx942", "cpu"])
def test_every_field_a_preset_sets_is_one_of_sglangs(name, device, tree):
    fields = command.server_fields(tree)
    set_by_us = {k for k, line in preset.load(name).on(device).items() if not line.is_environment}
    assert set_by_us <= fields
    assert {field.name for field in recipe.FIELDS} <= fields


def test_importing_every_declaration_imports_neither_torch_nor_sglang():
    import subprocess
    import sys

    code = (
        "import sys; from sglang_mi300a import plugin; plugin.all_seams(); "
        "print([m for m in ('torch', 'sglang', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
