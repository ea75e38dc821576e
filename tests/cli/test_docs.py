"""Generated pages of docs/ are those that would be generated now; the README names real things."""

import importlib.util
import re
from pathlib import Path

from sglang_mi300a.cli.main import COMMANDS
from sglang_mi300a.serving import preset

ROOT = Path(__file__).parents[2]


def generator():
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools/generate_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current():
    for name, text in generator().pages().items():
        assert (ROOT / "docs" / name).read_text() == text, "run python tools/generate_docs.py"


def test_every_link_in_the_readme_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


def test_the_readme_names_every_preset_and_only_real_commands():
    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in preset.names())
    known = {command.name for command in COMMANDS}
    assert set(re.findall(r"sglang-mi300a ([a-z]+(?:-[a-z]+)*) ", text)) <= known


def test_the_readmes_apt_line_is_that_of_the_set_up():
    packages = (ROOT / "requirements/apt.txt").read_text().split()
    lines = [
        line for line in (ROOT / "README.md").read_text().splitlines() if "apt-get ins" in line
    ]
    assert len(lines) == 2
    for line in lines:
        assert set(packages) == set(
            line.split("--no-install-recommends ")[1].split(" && ")[0].split()
        )
