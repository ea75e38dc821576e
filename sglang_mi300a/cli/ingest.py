"""Hold the cost model against measured times in a report, and keep constants that fit better."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from sglang_mi300a import code_objects, reports, settings, tables
from sglang_mi300a.cost_model import BAND_PERCENT, MACHINE
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError
from sglang_mi300a.moe.kernels import candidates, prediction, refit
from sglang_mi300a.moe.kernels.prediction import KernelCounts
from sglang_mi300a.moe.kernels.refit import Refit, Timed

COUNTS = "benchmarks/results/moe_counts.json"
SCHEMA = 1


def run(path: Path) -> int:
    """Print measured beside predicted times and what fits them; return the exit code."""
    report = reports.load(path)
    if report.level != "E4":
        raise UserError(
            f"report {path}",
            found=f"evidence {report.level}: nothing in it was measured on an MI300A",
            allowed="a report made on one",
            do="make it there: sglang-mi300a report --out FILE --bench RESULT",
        )
    rows = measured(report, path)
    print(f"{'tokens':>7} {'measured us':>12} {'predicted us':>13} {'ratio':>6}")
    for row in rows:
        mark = "" if row.is_inside() else "  outside the band"
        predicted = row.predicted_us()
        print(f"{row.num_tokens:>7} {row.us:>12.1f} {predicted:>13.1f} {row.ratio():>6.2f}{mark}")
    outside = sum(not row.is_inside() for row in rows)
    low, high = BAND_PERCENT
    print(f"{len(rows) - outside} of {len(rows)} inside the band ({low:+d} % to {high:+d} %)")
    found = refit.refit(rows)
    if found is None:
        print(
            f"no refit: fewer than {refit.FEWEST_ROWS} rows, or than {refit.FEWEST_BATCH_SIZES} "
            "batch sizes"
        )
    else:
        print(f"refit written to {_write(found, rows, path)}; the shipped constants are unchanged")
        for name in ("hbm_tb_s", "overlap"):
            print(f"  {name}: {getattr(MACHINE, name)} -> {getattr(found.machine, name):.3g}")
        print(f"  root mean square of the error: {found.before:.1%} -> {found.after:.1%}")
    return EXIT_JUDGED_AGAINST if outside else EXIT_OK


def measured(report: reports.Report, path: Path) -> list[Timed]:
    """Return the measured expert layers in a report.

    Raises:
        UserError: There are none, or they are not of these kernels.
    """
    shipped = code_objects.load("moe").digest
    theirs = report.kernels.get("moe", {}).get("sha256")
    if theirs != shipped:
        raise UserError(
            f"report {path}",
            found=f"expert kernels {str(theirs)[:12]}…",
            allowed=f"the kernels here, {shipped[:12]}…, whose instructions were counted",
            do="ingest it in the source tree that its wheel was built from",
        )
    counts = _counts()
    rows: list[Timed] = []
    for one in report.bench or []:
        result = one.get("result") if isinstance(one, dict) else None
        if isinstance(result, dict) and result.get("op") == candidates.OP:
            where = f"report {path}, result {one.get('name')}"
            table = tables.parse(json.dumps(result), where)
            rows += refit.timed(table, counts, where)
    if not rows:
        raise UserError(
            f"report {path}",
            found=f"no measured rows of {candidates.OP} among {len(report.bench or [])} results",
            allowed="at least one table that `sglang-mi300a tune moe` made",
            do="make the report again with --bench TABLE",
        )
    return sorted(rows, key=lambda row: row.num_tokens)


def _counts() -> dict[str, KernelCounts]:
    root = code_objects.source_tree()
    if root is None or not (root / COUNTS).is_file():
        raise UserError(
            COUNTS,
            found="not there",
            allowed="the source tree, which holds the executed counts",
            do="run this in a checkout",
        )
    return prediction.counts_of(json.loads((root / COUNTS).read_text(encoding="utf-8"))["kernels"])


def _write(found: Refit, rows: list[Timed], path: Path) -> Path:
    """Write a refit below the state directory, whole or not at all; return where."""
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "evidence": "E4",
        "report_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "shipped_model": MACHINE.digest,
        "model": found.machine.digest,
        "constants": {"hbm_tb_s": found.machine.hbm_tb_s, "overlap": found.machine.overlap},
        "rms_before": found.before,
        "rms_after": found.after,
        "num_rows": len(rows),
    }
    folder = settings.state_dir() / "refits"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"expert-layer-{found.machine.digest}.json"
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    temporary.replace(target)
    return target
