"""``report ingest``: hold predictions against times measured on MI300A, and fit the model to them.

Every file must be fit for it: one that is not is refused by name, and nothing is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_mi300a import (
    code_objects,
    fitted_constants,
    model_refit,
    reports,
    settings,
    shipped,
    tables,
    whole_files,
)
from sglang_mi300a.cli.one_file_tables import CONSTANTS
from sglang_mi300a.cost_model import MACHINE
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError
from sglang_mi300a.gemm import tuned_table
from sglang_mi300a.gemm.kernels import measured as measured_products
from sglang_mi300a.gemm.kernels import prediction as product_prediction
from sglang_mi300a.model_refit import Measurement, Refit
from sglang_mi300a.moe.kernels import candidates, measured, prediction
from sglang_mi300a.reports import Report
from sglang_mi300a.tables import Table

LEAST_SAMPLES = 5
"""Timings of each launch; the median of fewer is mostly the machine's noise."""
PART = ("gfx942", MACHINE.num_cus)
MADE_BY = "sglang-mi300a report ingest"


def run(paths: Sequence[Path], out: Path | None, *, as_json: bool) -> int:
    """Print measured beside predicted times, write what fits them; return the exit code."""
    folder = _writable(out or settings.state_dir() / "refits")
    rows, left_out = _read(paths)
    found = model_refit.refit(rows)
    claims = {
        claim: [row for row in rows if row.claim == claim] for claim in sorted(_claims_of(rows))
    }
    written = _write(folder, found, rows, paths) if found is not None else []
    if as_json:
        print(json.dumps(_as_data(claims, found, written, left_out), indent=1))
    else:
        print("\n".join(_in_words(claims, found, written, left_out)))
    return EXIT_OK if all(row.is_inside() for row in rows) else EXIT_JUDGED_AGAINST


def _claims_of(rows: Iterable[Measurement]) -> set[str]:
    return {row.claim for row in rows}


# -- reading ---------------------------------------------------------------------------------------


def _read(paths: Sequence[Path]) -> tuple[list[Measurement], list[str]]:
    """Return all measurements, and the results that are none.

    Raises:
        UserError: A file is not fit, or holds no measurement.
    """
    rows: list[Measurement] = []
    left_out: list[str] = []
    seen: dict[str, Path] = {}
    for path in paths:
        report = reports.load(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest in seen:
            raise _refused(
                path, f"the same bytes as {seen[digest]}", "each report once", "name it once"
            )
        seen[digest] = path
        _check_machine(report, path)
        found, others = _measured(report, path)
        rows += found
        left_out += others
    return sorted(rows, key=lambda row: (row.claim, row.num_tokens, row.what)), left_out


def _check_machine(report: Report, path: Path) -> None:
    """Check that a report is of whole MI300A and nothing else.

    Raises:
        UserError: It is of another part, or of none.
    """
    if report.level != "E4":
        raise _refused(
            path,
            f"evidence {report.level}: nothing in it was measured on an MI300A",
            "a report made on one",
            "make it there: sglang-mi300a report --out FILE --bench RESULT",
        )
    for one in report.facts["devices"]["found"]:
        part = (one.get("arch"), one.get("num_visible_cus"))
        if part != PART or not one.get("is_apu"):
            raise _refused(
                path,
                f"{one.get('name')}: {part[0]} with {part[1]} compute units",
                f"MI300A alone: {PART[0]} with {PART[1]}, not partitioned",
                "make the report on a node of them, in SPX mode",
            )


def _measured(report: Report, path: Path) -> tuple[list[Measurement], list[str]]:
    rows: list[Measurement] = []
    left_out: list[str] = []
    for one in report.bench or []:
        name = str(one.get("name")) if isinstance(one, dict) else "?"
        result = one.get("result") if isinstance(one, dict) else None
        where = f"report {path}, result {name}"
        op = result.get("op") if isinstance(result, dict) else None
        if measured.is_bench(result):
            assert isinstance(result, dict)
            _check_code_object(report, "moe", path)
            _check_samples(result.get("samples"), where)
            _check_device(result.get("device"), where)
            rows += measured.of_bench(result, prediction.shipped_counts(), where)
        elif op == candidates.OP:
            ours = _check_code_object(report, "moe", path)
            table = _table(result, where)
            _check_build(table.software.get("code_object"), ours, where)
            rows += measured.of_table(table, prediction.shipped_counts(), where)
        elif op == tuned_table.OP:
            ours = _check_code_object(report, "gemm", path)
            table = tuned_table.checked(_table(result, where), where)
            _check_build(table.made.get(tuned_table.KERNELS_BUILD), ours, where)
            rows += measured_products.of_table(table, product_prediction.shipped_counts(), where)
        else:
            left_out.append(f"{path}: {name}: no times that the model predicts")
    if not rows:
        raise _refused(
            path,
            f"no measured times among {len(report.bench or [])} results",
            "at least one of `tune moe`'s or `tune gemm`'s tables, or of `kernels bench --json`",
            "make the report again with --bench FILE",
        )
    return rows, left_out


def _table(result: object, where: str) -> Table:
    table = tables.parse(json.dumps(result), where)
    device = (table.device["arch"], table.device["visible_cus"])
    if device != PART or table.device["name"] != candidates.DEVICE["name"]:
        raise UserError(
            where,
            found=f"device {table.device['name']}, {device[0]} with {device[1]} compute units",
            allowed=f"{candidates.DEVICE['name']}, {PART[0]} with {PART[1]}",
            do="tune on an MI300A, and make the report again",
        )
    _check_samples(table.made.get("samples"), where)
    return table


def _check_code_object(report: Report, room: str, path: Path) -> str:
    """Return the digest of a room's kernels, once those of a report are the same."""
    ours = code_objects.load(room).digest
    theirs = report.kernels.get(room, {}).get("sha256")
    if theirs != ours:
        raise _refused(
            path,
            f"{room} kernels {str(theirs)[:12]}…",
            f"the kernels here, {ours[:12]}…, whose instructions were counted",
            "ingest it with the version that made it",
        )
    return ours


def _check_build(named: object, ours: str, where: str) -> None:
    """Check that a table was measured with the kernels that its report is of."""
    if named != ours[:16]:
        raise UserError(
            where,
            found=f"times of kernels {named}",
            allowed=f"times of kernels {ours[:16]}",
            do="tune again with this version, and make the report again",
        )


def _check_samples(samples: object, where: str) -> None:
    if not isinstance(samples, int) or samples < LEAST_SAMPLES:
        raise UserError(
            where,
            found=f"{samples!r} samples of each launch",
            allowed=f"{LEAST_SAMPLES} or more",
            do="measure again with more --samples",
        )


def _check_device(device: object, where: str) -> None:
    if not str(device).startswith("cuda"):  # what torch calls HIP's devices
        raise UserError(
            where,
            found=f"times of device {device!r}, a stand-in",
            allowed="times of an accelerator",
            do="measure on an MI300A, and make the report again",
        )


def _refused(path: Path, found: str, allowed: str, do: str) -> UserError:
    return UserError(f"report {path}", found=found, allowed=allowed, do=do)


# -- writing ---------------------------------------------------------------------------------------


def _writable(folder: Path) -> Path:
    """Return a folder that may be written: never one of an installed package.

    Raises:
        UserError: It is one.
    """
    for kept in (shipped.tuning_tables(), Path(__file__).parents[1]):
        if folder.resolve().is_relative_to(kept.resolve()):
            raise UserError(
                f"--out {folder}",
                found=f"a folder of the installed package ({kept})",
                allowed="a folder of yours",
                do="leave --out out, or name another",
            )
    return folder


def _write(
    folder: Path, found: Refit, rows: Sequence[Measurement], paths: Sequence[Path]
) -> list[Path]:
    """Write constants and the choices that follow from them, each whole or not at all."""
    table = candidates.modelled(prediction.shipped_counts(), MADE_BY, found.machine)
    constants = fitted_constants.as_table(
        found,
        device=candidates.DEVICE,
        software=CONSTANTS.software(),
        made={
            "by": MADE_BY,
            "evidence": "E4",
            "reports_sha256": sorted(
                hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
            ),
            "num_measurements": len(rows),
        },
    )
    texts = {
        fitted_constants.FILE: tables.render(constants),
        candidates.FILE: tables.render(table),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            whole_files.write(folder / name, text.encode("utf-8"))
    except OSError as error:
        raise UserError(
            f"--out {folder}",
            found=f"not writable ({error.strerror})",
            allowed="a folder that can be written",
            do="name another",
        ) from error
    return [folder / name for name in texts]


# -- saying ----------------------------------------------------------------------------------------


Claims = Mapping[str, Sequence[Measurement]]


def _stands(rows: Sequence[Measurement]) -> bool:
    return all(row.is_inside() for row in rows)


def _unmeasured(claims: Claims) -> list[str]:
    """Return the claims of predicted times that no measurement speaks to."""
    layers = [f"expert layer {shape.name}" for shape in prediction.SHAPES]
    parts = [f"{part} {shape.name}" for part in prediction.PARTS for shape in prediction.SHAPES]
    wanted = [*layers, *parts, "dense product"]
    return [one for one in wanted if not any(claim.startswith(f"{one} ") for claim in claims)]


def _in_words(
    claims: Claims, found: Refit | None, written: Sequence[Path], left_out: Sequence[str]
) -> Iterable[str]:
    width = max(len(claim) for claim in claims)
    yield (
        f"{'claim':<{width}} {'M':>5} {'predicted us':>12} {'measured us':>11} {'ratio':>5} "
        f"{'band':>9}  launch"
    )
    for claim, rows in claims.items():
        for row in rows:
            low, high = row.band_percent
            yield (
                f"{claim:<{width}} {row.num_tokens:>5} {row.predict(MACHINE):>12.1f} "
                f"{row.us:>11.1f} {row.ratio():>5.2f} {f'{low:+d}/{high:+d} %':>9}  {row.what}"
                + ("" if row.is_inside() else "  outside the band")
            )
    yield ""
    for claim, rows in claims.items():
        inside = sum(row.is_inside() for row in rows)
        verdict = "stands, at E4" if _stands(rows) else "does not stand"
        yield f"{claim:<{width}}  {verdict}: {inside} of {len(rows)} inside the band"
    yield f"not measured, so still at E3: {', '.join(_unmeasured(claims)) or 'none'}"
    yield from (f"left out: {line}" for line in left_out)
    yield ""
    if found is None:
        yield (
            f"no refit: fewer than {model_refit.FEWEST_ROWS} times, or than "
            f"{model_refit.FEWEST_BATCH_SIZES} batch sizes"
        )
        return
    yield from _refit_in_words(found)
    yield f"written: {', '.join(map(str, written))}; what is shipped is unchanged"
    commands = " && ".join(f"sglang-mi300a tables apply {path}" for path in written)
    yield f"to serve by these choices: {commands}"


def _refit_in_words(found: Refit) -> Iterable[str]:
    yield "constants of the model, fitted by least squares of ln(measured / predicted):"
    for name in model_refit.LIMITS:
        now = getattr(MACHINE, name)
        if name in found.held:
            yield f"  {name}: {now}, held: these times do not tell it"
            continue
        limit = ", the end of what is allowed: look at the times" if name in found.at_limit else ""
        yield (
            f"  {name}: {now} -> {getattr(found.machine, name):.3g} "
            f"(standard error {found.errors[name]:.1%}){limit}"
        )
    yield (
        f"  residuals: root mean square {found.before:.1%} -> {found.after:.1%}, largest "
        f"{found.largest:.1%}"
    )


def _as_data(
    claims: Claims, found: Refit | None, written: Sequence[Path], left_out: Sequence[str]
) -> dict[str, Any]:
    return {
        "claims": [
            {
                "claim": claim,
                "level": "E4" if _stands(rows) else "E3",
                "stands": _stands(rows),
                "times": [
                    {
                        "num_tokens": row.num_tokens,
                        "launch": row.what,
                        "predicted_us": round(row.predict(MACHINE), 2),
                        "measured_us": row.us,
                        "ratio": round(row.ratio(), 4),
                        "band_percent": list(row.band_percent),
                        "inside": row.is_inside(),
                    }
                    for row in rows
                ],
            }
            for claim, rows in claims.items()
        ],
        "not_measured": _unmeasured(claims),
        "left_out": list(left_out),
        "constants": None
        if found is None
        else {name: getattr(found.machine, name) for name in model_refit.LIMITS},
        "held": list(found.held) if found else [],
        "rms_before": found.before if found else None,
        "rms_after": found.after if found else None,
        "written": [str(path) for path in written],
    }
