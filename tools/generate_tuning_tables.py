"""Write tuning_tables/moe: the cost model's table, and the counts that it is made from.

Reads benchmarks/results/moe_counts.json.
"""

from __future__ import annotations

import json
from pathlib import Path

from sglang_mi300a import tables
from sglang_mi300a.moe.kernels import candidates, prediction

ROOT = Path(__file__).parents[1]
COUNTS = ROOT / "benchmarks/results/moe_counts.json"
FOLDER = ROOT / "tuning_tables/moe"
MADE_BY = "python tools/generate_tuning_tables.py"


def texts() -> dict[str, str]:
    """Return the text of each file by name."""
    found = json.loads(COUNTS.read_text(encoding="utf-8"))
    counts = prediction.counts_of([*found["kernels"], *found["timed_parts"]])
    return {
        candidates.FILE: tables.render(candidates.modelled(counts, MADE_BY)),
        prediction.COUNTS_FILE: prediction.counts_text(counts),
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print((FOLDER / name).relative_to(ROOT))
