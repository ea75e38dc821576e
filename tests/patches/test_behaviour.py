"""On a copy of the installed SGLang each patch changes what it says, and hooks fit it still."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_mi300a import hook_fit, plugin
from sglang_mi300a.cli import hooks
from sglang_mi300a.cpu_engine import recipe
from sglang_mi300a.patches import change
from tests import repository
from tests.patches import trees

BEHAVIOUR = Path(__file__).with_name("behaviour.py")
MARKER = """
import os

def activate():
    if "MARKS" in os.environ:
        open(os.environ["MARKS"], "w").close()
"""


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """Every patch applied to a copy of the whole installed SGLang."""
    root = tmp_path_factory.mktemp("patched")
    shutil.copytree(trees.INSTALLED / "sglang", root / "sglang")
    change.apply(trees.SERIES, trees.SERIES.patches, root)
    yield root
    shutil.rmtree(root)


def misfits(root):
    """Return the targets of ours that do not fit an SGLang, and how many were judged."""
    rows = hooks.judge_all(hook_fit.DirectoryTree(root))
    return [row.target for row in rows if row.status != "fits"], len(rows)


def test_every_hook_fits_the_files_that_it_is_on_with_every_patch(tmp_path):
    root = trees.small(tmp_path)
    for seam in plugin.all_seams():
        found = hook_fit.find(seam.target, plugin.installed_sglang())
        (root / found.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(trees.INSTALLED / found.file, root / found.file)
    change.apply(trees.SERIES, trees.SERIES.patches, root)
    wrong, judged = misfits(root)
    assert wrong == []
    assert judged > 50


@pytest.mark.slow
def test_every_hook_fits_a_whole_sglang_with_every_patch(patched):
    wrong, judged = misfits(patched)
    assert wrong == []
    assert judged > 50


def say(sglang, tmp_path, *words):
    """Return what Python says with an SGLang first on its path, and a plugin that leaves marks."""
    info = tmp_path / "marker-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: marker\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nmarker = marker_plugin:activate")
    (tmp_path / "marker_plugin.py").write_text(MARKER)
    path = [recipe.standins_path(), repository.ROOT, tmp_path, sglang]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "SGLANG_USE_CPU_ENGINE": "1",
    }
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.slow
def test_stock_does_what_the_patches_are_for(tmp_path):
    found = json.loads(say(trees.INSTALLED, tmp_path, BEHAVIOUR, tmp_path).splitlines()[-1])
    assert found == {
        "saved": [["target", "one"], "'EAGLEWorkerV2' object has no attribute 'model_runner'"],
        "merged": {"merged-staged.trace.json.gz": ["mark DECODE", "mark EXTEND"]},
        "plugins": [],
    }


@pytest.mark.slow
def test_a_patched_sglang_does_it_right(patched, tmp_path):
    found = json.loads(say(patched, tmp_path, BEHAVIOUR, tmp_path).splitlines()[-1])
    assert found == {
        "saved": [["target", "one"], ["draft", "two"]],
        "merged": {
            "merged-run-prefixed.trace.json.gz": ["mark whole"],
            "merged-staged-DECODE.trace.json.gz": ["mark DECODE"],
            "merged-staged-EXTEND.trace.json.gz": ["mark EXTEND"],
        },
        "plugins": ["run_detokenizer_process", "run_data_parallel_controller_process"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("is_patched", [False, True])
def test_help_of_serve_lists_our_flag_only_with_the_patch(is_patched, patched, tmp_path):
    sglang = patched if is_patched else trees.INSTALLED
    code = "from sglang.cli.main import main; main()"
    said = say(sglang, tmp_path, "-c", code, "serve", "--model-type", "llm", "--help")
    assert "--model-path" in said
    assert ("--mi300a" in said) == is_patched
