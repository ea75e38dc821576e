"""Write the tuning tables that the cost model makes: tuning_tables/moe/expert_layer.json.

Reads the executed counts in benchmarks/results/moe_counts.json.
"""

from __future__ import annotations

import json
from pathlib import Path

from sglang_mi300a import tables
from sglang_mi300a.moe.kernels import candidates, prediction

ROOT = Path(__file__).parents[1]
COUNTS = ROOT / "benchmarks/results/moe_counts.json"
TABLE = ROOT / "tuning_tables/moe" / candidates.FILE
MADE_BY = "python tools/generate_tuning_tables.py"


def text() -> str:
    """Return the table's text."""
    counts = prediction.counts_of(json.loads(COUNTS.read_text(encoding="utf-8"))["kernels"])
    return tables.render(candidates.modelled(counts, MADE_BY))


if __name__ == "__main__":
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_text(text(), encoding="utf-8")
    print(TABLE.relative_to(ROOT))
