"""What every Python process with the stand-ins on its path starts with."""

from __future__ import annotations

import os
from pathlib import Path

from sglang_mi300a.cpu_engine import recipe
from tests.cpu_engine import standin_process


def test_a_process_starts_without_torch() -> None:
    code = "import sys; print([n for n in ('torch', 'numpy', 'sglang_mi300a') if n in sys.modules])"
    assert standin_process.output(code) == "[]"


def test_the_defaults_are_the_recipe_s() -> None:
    names = [each.name for each in recipe.VARIABLES if "sitecustomize" in each.read]
    wanted = recipe.environment(1, [0], "bfloat16")
    code = f"import os; print([os.environ[name] for name in {names}])"
    assert standin_process.output(code) == str([wanted[name] for name in names])
    assert len(names) == 3


def test_what_the_user_set_is_kept() -> None:
    code = "import os; print(os.environ['OMP_NUM_THREADS'])"
    assert standin_process.output(code, environment={"OMP_NUM_THREADS": "4"}) == "4"


def test_torchvision_can_be_imported_beside_this_torch() -> None:
    code = (
        "import sys; from torchvision.io import decode_jpeg; "
        "print(any(type(finder).__name__.startswith('_Schemas') for finder in sys.meta_path))"
    )
    assert standin_process.output(code) == "False"  # the finder takes itself away


def test_a_schema_that_torchvision_registered_itself_is_left_alone() -> None:
    code = """
import torch
own = torch.library.Library("torchvision", "FRAGMENT")
own.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
own.impl("nms", lambda dets, scores, iou_threshold: dets + 1, "CPU")
import torchvision
print(int(torch.ops.torchvision.nms(torch.zeros(1), torch.zeros(1), 0.5)))
"""
    assert standin_process.output(code) == "1"


def test_a_sitecustomize_that_is_hidden_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nos.environ['HIDDEN_RAN'] = f\"{__name__} {os.environ['OMP_NUM_THREADS']}\"\n"
        "if os.path.basename(__file__) != 'sitecustomize.py':\n    raise RuntimeError(__file__)\n"
    )
    code = "import os, sys; print(os.environ['HIDDEN_RAN'], sys.modules['sitecustomize'].__file__)"
    got = standin_process.output(code, tmp_path)
    assert got == f"sitecustomize 1 {recipe.standins_path() / 'sitecustomize.py'}"


def test_the_hidden_one_s_failure_is_reported_as_python_reports_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise KeyError('hidden')\n")
    done = standin_process.run("print('goes on')", tmp_path)
    assert done.stdout.strip() == "goes on"
    assert "Error in sitecustomize" in done.stderr
    assert "KeyError: 'hidden'" in done.stderr


def test_the_folder_twice_on_the_path_runs_it_once() -> None:
    code = "import sys; print(sum(type(f).__name__.startswith('_Schemas') for f in sys.meta_path))"
    again = Path(os.path.relpath(recipe.standins_path()))
    assert standin_process.output(code, again) == "1"
