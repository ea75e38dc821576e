"""`sglang-mi300a gemm`, and the data that follows from the presets."""

import importlib.util
import json
from pathlib import Path

from sglang_mi300a.cli.main import main
from tests.pools.plan import models

ROOT = Path(__file__).parents[2]


def test_the_committed_grids_are_those_of_the_presets():
    spec = importlib.util.spec_from_file_location("shapes", ROOT / "tools/generate_shapes.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.SHAPES.read_text() == generator.shapes(), "run python tools/generate_shapes.py"


def test_shapes_are_printed_for_people_and_for_machines(capsys):
    command = ["gemm", "shapes", "--model", str(models.REAL), "--chunked-prefill-size", "1024"]
    assert main(command) == 0
    assert "62080 x 4096" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["num_cells"] == sum(len(product["m"]) for product in data["products"])


def test_without_a_model_the_shipped_shapes_are_those_of_the_real_one(capsys):
    assert main(["gemm", "shapes", "--preset", "tuned", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert main(["gemm", "shapes", "--model", str(models.REAL), "--json"]) == 0
    products = json.loads(capsys.readouterr().out)["products"]
    assert [{name: row[name] for name in products[0]} for row in rows] == products
    assert main(["gemm", "shapes", "--preset", "tuned"]) == 0
    out = capsys.readouterr().out
    assert "62080 x 4096" in out
    assert "preset tuned, TP 4" in out


def test_what_changes_the_shapes_needs_a_model(capsys):
    assert main(["gemm", "shapes", "--tp-size", "8"]) == 2
    assert "--tp-size without --model" in capsys.readouterr().err
    assert main(["gemm", "shapes", "--preset", "fast"]) == 2
    assert "'fast'" in capsys.readouterr().err


def test_an_unknown_preset_is_refused(capsys):
    assert main(["gemm", "shapes", "--model", str(models.REAL), "--preset", "fast"]) == 2
    assert "'fast'" in capsys.readouterr().err
