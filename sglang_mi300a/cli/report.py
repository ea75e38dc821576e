"""Write one file that tells others how this package fares on this machine; nothing private.

    sglang-mi300a report --out report.json                      what doctor sees
    sglang-mi300a report --out report.json --model S            and what the tuning tables cover
    sglang-mi300a report --out report.json --run-dir DIR        and how a server started
    sglang-mi300a report --out report.json --selftest           and whether the kernels are right
    sglang-mi300a report --out report.json --bench RESULT.json  and how fast it was
    sglang-mi300a report --show report.json                     check one and say what is in it
    sglang-mi300a report ingest FILE...                         measured beside predicted times

No claim of this project has been measured on an MI300A: such a file, sent back, is what changes
that. DIR is where ranks leave their reports when the server is started with
SGLANG_MI300A_RUN_DIR=DIR. Paths and the names of user, host and model are taken out of everything,
results too. Without --out the file goes to standard output.

`ingest` reads reports from MI300A with measured times among their --bench results: tables of `tune
moe` and `tune gemm`, and what `kernels bench --json` printed. It prints each time beside its
prediction, says which claims now stand at E4, fits the cost model's constants to the times, and
writes them, by which dense products can be chosen, and the expert layer's choices that follow to
--out DIR (default: below the state directory). Exit code 1: a time lies outside the band that its
prediction is quoted with.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_mi300a import boot_report, code_objects, reports, served_model, settings
from sglang_mi300a.cli import gemm_grid, ingest
from sglang_mi300a.doctor import findings, gather, record, trials
from sglang_mi300a.errors import EXIT_OK, UserError
from sglang_mi300a.gemm import staging, tuned_table
from sglang_mi300a.reports import Report
from sglang_mi300a.serving import preset as presets
from sglang_mi300a.serving import ready

SELF_TEST_SECONDS = 300.0
# Kernels may fault, so they run in a process of their own.
_SELF_TEST = """
import contextlib, io, json
from sglang_mi300a.cli.main import main
said = io.StringIO()
with contextlib.redirect_stdout(said):
    code = main(["kernels", "selftest", "--json"])
print(json.dumps({"exit_code": code, **json.loads(said.getvalue() or "{}")}))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add = parser.add_argument
    add("verb", nargs="?", choices=("ingest",), help="hold predictions against reports")
    add("files", nargs="*", type=Path, metavar="FILE", help="reports to ingest")
    add(
        "--out", type=Path, metavar="FILE",
        help="where to write (default: standard output); with ingest, a folder",
    )  # fmt: skip
    add("--json", action="store_true", help="with ingest: for machines")
    add("--show", type=Path, metavar="FILE", help="check a report and say what is in it")
    add("--model", "--model-path", type=Path, metavar="DIR", help="what is served")
    add("--tp-size", "--tp", type=int, metavar="N", help="ranks (default: the artifact's, else 4)")
    add(
        "--preset", "--mi300a", default="tuned", metavar="NAME",
        help=f"whose products tables are to cover: {', '.join(presets.names())} (tuned)",
    )  # fmt: skip
    add("--run-dir", type=Path, metavar="DIR", help="of a server's start")
    add("--selftest", action="store_true", help="run the kernels on one small expert layer")
    add("--probe", action="store_true", help="as `doctor --probe`")
    add(
        "--bench", type=Path, action="append", default=[], metavar="FILE",
        help="a benchmark's JSON result; may be repeated",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Make or show a report."""
    if args.show is not None:
        print(in_words(reports.load(args.show)))
        return EXIT_OK
    if args.verb == "ingest":
        if not args.files:
            raise UserError(
                "report ingest", found="no FILE", allowed="one report or more", do="name them"
            )
        return ingest.run(args.files, args.out, as_json=args.json)
    text = make(args).render()
    report = reports.parse(text, "just made")
    if args.out is None:
        sys.stdout.write(text)
        return EXIT_OK
    try:
        args.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"--out {args.out}",
            found=f"not writable ({error.strerror})",
            allowed="a file that can be written",
            do="name another",
        ) from error
    print(f"{args.out}: {in_words(report)}")
    return EXIT_OK


def make(args: argparse.Namespace) -> Report:
    """Return the report that the flags ask for, with nothing private in it."""
    seen, paths = gather.facts(
        gather.Question(args.model, args.tp_size, deep=args.probe, preset=args.preset)
    )
    words = gather.private_words(paths)
    found = findings.judge(seen)
    facts = record.as_data(seen, words)
    sections: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    if args.run_dir is None:
        left_out["boot"] = left_out["start"] = left_out["hooks"] = "no --run-dir"
    else:
        sections["boot"], sections["hooks"] = _ranks(args.run_dir)
        said = _launcher(args.run_dir)
        if said is None:
            left_out["start"] = "the start came to no end of a warm-up"
        else:
            sections["start"] = said
    if args.model is None:
        left_out["tables"] = "no --model"
    else:
        _add_tables(sections, left_out, args.model, args.preset, seen.tp)
    if args.selftest:
        sections["self_test"] = _self_test()
    else:
        left_out["self_test"] = "no --selftest"
    if args.bench:
        sections["bench"] = [_result(path) for path in args.bench]
    else:
        left_out["bench"] = "no --bench"
    return Report(
        made_with=seen.software.package,
        level=reports.level_of(facts),
        facts=facts,
        findings=record.scrubbed(
            [{"id": one.id, "severity": one.severity, "seen": one.seen} for one in found], words
        ),
        kernels=_kernels(),
        left_out=left_out,
        **record.scrubbed(sections, words),
    )


def _launcher(run_dir: Path) -> dict[str, Any] | None:
    try:
        return ready.read(run_dir)
    except (OSError, ValueError) as error:
        raise _unfit(run_dir, f"a launcher's report that cannot be read ({error})") from error


def _ranks(run_dir: Path) -> tuple[list[Any], dict[str, Any]]:
    try:
        ranks = boot_report.read_all(run_dir)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _unfit(run_dir, f"a rank's report that cannot be read ({error})") from error
    if not ranks:
        raise _unfit(run_dir, "no rank's report")
    boot = [
        {
            "rank": one.rank,
            "stage": one.stage,
            "reached_s": one.reached_s,
            "refusal": one.refusal,
            "exit_code": one.exit_code if one.refusal else 0,
            "said": one.facts,
        }
        for one in ranks.values()
    ]
    return boot, boot_report.summary(ranks)


def _unfit(run_dir: Path, found: str) -> UserError:
    return UserError(
        f"--run-dir {run_dir}",
        found=found,
        allowed="the folder of a start with this version",
        do=f"start the server with {settings.RUN_DIR}=DIR and give that folder",
    )


def _add_tables(
    sections: dict[str, Any], left_out: dict[str, str], path: Path, preset: str, tp: int
) -> None:
    """Add how much of what a preset runs the applied table covers, or why that is not known."""
    try:
        model = served_model.read(path)
        cells = list(gemm_grid.of_preset(model, preset, tp).cells())
        applied = staging.current(settings.state_dir() / "tables")
    except UserError as error:
        left_out["tables"] = f"{error.found}"
        return
    have = tuned_table.covered(applied.table, cells)[0] if applied else []
    sections["tables"] = {
        "gemm": {
            "preset": preset,
            "cells": len(cells),
            "covered": len(have),
            "digest": applied.digest if applied else None,
            "software": dict(applied.table.software) if applied else {},
        }
    }


def _self_test() -> dict[str, Any]:
    trial, said = trials.attempt(_SELF_TEST, (), SELF_TEST_SECONDS)
    return {"status": trial.status, "seconds": trial.seconds, "said": said}


def _result(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"--bench {path}",
            found=f"not readable as JSON ({error})",
            allowed="a result that a benchmark wrote",
            do="give the file of its --out or --json",
        ) from error
    return {"name": path.stem, "result": result}


def _kernels() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(code_objects.compiled_folder("code_objects").glob("*.co")):
        room = path.name.split(".")[0]
        try:
            code, built = code_objects.load_from(path.parent, room)
        except UserError as error:
            found[room] = {"fault": error.found}
            continue
        found[room] = {
            "sha256": built.code_sha256,
            "compiler": built.compiler,
            "kernels": len(code.kernels),
        }
    return found


def in_words(report: Report) -> str:
    """Return what is in a report, in a few lines."""
    names = [one["name"] for one in report.facts["devices"]["found"]]
    machine = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    lines = [
        f"evidence {report.level}, made with {report.made_with} on {machine or 'no accelerator'}",
        f"  findings   {_findings(report.findings)}",
    ]
    if report.boot is not None:
        stages = [f"{one['rank']} {one['stage']}{_seconds(one)}" for one in report.boot]
        lines.append(f"  boot       rank {', '.join(stages)}")
    if report.start is not None:
        lines.append(f"  start      {_start_in_words(report.start)}")
    if report.hooks is not None:
        live = sum(bool(row["live"]) for row in report.hooks.values())
        lines.append(f"  hooks      {live} of {len(report.hooks)} live on every rank")
    if report.tables is not None:
        gemm = report.tables["gemm"]
        lines.append(f"  tables     {gemm['covered']} of {gemm['cells']} dense products covered")
    if report.self_test is not None:
        lines.append(f"  self-test  {_self_test_in_words(report.self_test)}")
    if report.bench is not None:
        lines.append(f"  bench      {', '.join(one['name'] for one in report.bench)}")
    lines += [f"  not in it: {name} ({why})" for name, why in report.left_out.items()]
    return "\n".join(lines)


def _findings(rows: Sequence[Any]) -> str:
    return ", ".join(f"{row['id']} ({row['severity']})" for row in rows) or "none"


def _seconds(rank: Any) -> str:
    at = rank["reached_s"].get(rank["stage"])
    return f" after {at:.1f} s" if at is not None else ""


def _start_in_words(start: Any) -> str:
    if "refusal" in start:
        return str(start["refusal"])
    seconds = sum(row["seconds"] for row in start["timeline"])
    taken = sum(one["status"] == "taken" for one in start["paths"].values())
    return (
        f"ready after {seconds:.1f} s, {taken} of {len(start['paths'])} fast paths taken, "
        f"{len(start['warnings'])} warnings"
    )


def _self_test_in_words(found: Any) -> str:
    if found["said"] is None:
        return str(found["status"])
    rungs = found["said"].get("rungs", [])
    words = []
    for row in rungs:
        test = row["self_test"]
        words.append(
            f"{row['rung']} "
            + ("cannot run" if test is None else "passed" if test["passed"] else "WRONG")
        )
    return ", ".join(words) or f"exit code {found['said']['exit_code']}"
