"""Write the data files that follow from presets: tuning_tables/gemm/shapes.jsonl."""

from __future__ import annotations

from pathlib import Path

from sglang_mi300a import served_model
from sglang_mi300a.cli import gemm_grid
from sglang_mi300a.gemm import shape_grid
from sglang_mi300a.serving import preset as presets

ROOT = Path(__file__).parents[1]
SHAPES = ROOT / "tuning_tables/gemm/shapes.jsonl"


def shapes() -> str:
    """Return the grids of every preset for the real model on four ranks."""
    model = served_model.read(served_model.SHIPPED_CONFIG)
    grids = {name: gemm_grid.of_preset(model, name, 4) for name in presets.names()}
    return shape_grid.rendered("amd/Qwen3.5-397B-A17B-MXFP4", grids)


if __name__ == "__main__":
    SHAPES.write_text(shapes(), encoding="utf-8")
    print(SHAPES.relative_to(ROOT))
