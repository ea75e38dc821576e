"""Tuning tables: which there are, whether they fit this machine, and which one is in use.

    sglang-mi300a tables list                         shipped, tuned here, applied
    sglang-mi300a tables check                        the applied table against this machine
    sglang-mi300a tables check --model S              and against what the server will run
    sglang-mi300a tables import tunableop_results0.csv    a table from TunableOp's or AITER's file
    sglang-mi300a tables apply                        use the newest one made here
    sglang-mi300a tables apply FILE --dry-run         what would be written
    sglang-mi300a tables show                         its rows and where they come from
    sglang-mi300a tables remove gemm                  back to stock's own choices
    sglang-mi300a tables check moe                    the expert layer's table, likewise
    sglang-mi300a tables check constants              the constants of `report ingest`, likewise

Two rooms have tables: gemm (dense products) and moe (the expert layer, whose shipped table is the
cost model's). Dense products without a row are chosen by the cost model, whose constants can be
applied too. An applied gemm table is a directory of read-only files in your state directory
(SGLANG_MI300A_STATE_DIR); no file of an installed package is written. A table names the device and
the software it was made with, and is used whole or refused whole. Exit code 1: it does not fit.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sglang_mi300a import device as devices
from sglang_mi300a import settings, shipped, tables
from sglang_mi300a.cli import gemm as gemm_command
from sglang_mi300a.cli import one_file_tables
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError
from sglang_mi300a.gemm import coverage, importing, live_stack, stack_fit, staging, tuned_table
from sglang_mi300a.tables import Table

MI300A = {"name": "AMD Instinct MI300A", "arch": "gfx942", "visible_cus": 228}
ROOMS = ("gemm", *(one.room for one in one_file_tables.ALL))
DEFAULT_DEVICES = 4
"""Ordinals that files are written for where this machine shows no accelerator."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    found = actions.add_parser("list", help="shipped, made here, applied")
    found.add_argument("--json", action="store_true", help="for machines")
    check = actions.add_parser("check", help="whether a table fits this machine")
    check.add_argument("file", nargs="?", metavar="FILE|ROOM", help="default: gemm, the applied")
    gemm_command.add_grid_arguments(check, model_required=False)
    apply = actions.add_parser("apply", help="use a table from the next start on")
    apply.add_argument("source", nargs="?", type=Path, metavar="DIR|FILE",
                       help="default: the newest one made here")  # fmt: skip
    apply.add_argument("--devices", type=int, metavar="N", help="device ordinals (this node's)")
    apply.add_argument("--dry-run", action="store_true", help="say what would be written")
    take = actions.add_parser("import", help="make a table of a TunableOp or AITER file")
    take.add_argument("file", type=Path, metavar="FILE")
    take.add_argument("--stamp", type=Path, metavar="CSV",
                      help="a TunableOp file whose Validator lines say with which software an "
                      "AITER file was made")  # fmt: skip
    take.add_argument("--made-here", action="store_true",
                      help="an AITER file was made with the software of this machine")  # fmt: skip
    take.add_argument("--out", type=Path, metavar="FILE", help="where (default: state directory)")
    take.add_argument("--dry-run", action="store_true", help="check the file, write nothing")
    show = actions.add_parser("show", help="a table's rows")
    show.add_argument("file", nargs="?", metavar="FILE|ROOM", help="default: gemm, the applied")
    show.add_argument("--json", action="store_true", help="for machines")
    remove = actions.add_parser("remove", help="use no table any more")
    remove.add_argument("room", choices=ROOMS)
    remove.add_argument("--dry-run", action="store_true", help="say what would be removed")


def root() -> Path:
    """Return where applied tables lie."""
    return settings.state_dir() / "tables"


def made_here() -> Path:
    """Return where tables lie that were tuned or imported here."""
    return settings.state_dir() / "tuned"


def run(args: argparse.Namespace) -> int:
    """Run an action."""
    actions = {
        "list": _list, "check": _check, "apply": _apply, "import": _import, "show": _show,
        "remove": _remove,
    }  # fmt: skip
    return actions[args.action](args)


def _list(args: argparse.Namespace) -> int:
    applied = staging.current(root())
    paths = [
        *(("shipped", path) for path in sorted(shipped.tuning_tables().rglob("*.json"))),
        *(("made here", path) for path in newest_first(made_here())),
    ]
    rows = [_summary(where, tables.load(path), path) for where, path in paths]
    if applied is not None:
        rows.append(_summary("applied", applied.table, applied.directory / staging.TABLE))
    for one in one_file_tables.ALL:
        if (table_and_path := one.applied()) is not None:
            rows.append(_summary("applied", *table_and_path))
    if args.json:
        print(json.dumps(rows, indent=1))
        return EXIT_OK
    for row in rows:
        print(
            f"{row['where']:<9}  {row['op']:<10}  {row['rows']:>5} rows  {row['device']}, "
            f"{row['visible_cus']} CUs  {row['made']}\n           {row['path']}"
        )
    if applied is None:
        print("no gemm table is applied: our kernels for few tokens and stock's own choices serve")
    return EXIT_OK


def _summary(where: str, table: Table, path: Path) -> dict[str, Any]:
    return {
        "where": where,
        "op": table.op,
        "rows": len(table.rows),
        "device": table.device["name"],
        "visible_cus": table.device["visible_cus"],
        "made": " ".join(str(table.made[name]) for name in ("by", "date") if name in table.made),
        "path": str(path),
    }


def newest_first(directory: Path) -> list[Path]:
    """Return the tables in a directory, the newest first."""
    return sorted(
        directory.glob("*.json"), key=lambda path: (path.stat().st_mtime, path.name), reverse=True
    )


def read(path: Path) -> Table:
    """Return the table in a file, or in a directory's ``table.json``.

    Raises:
        UserError: There is none, it is of no known operation, or it is not whole.
    """
    if path.is_dir():
        path = path / staging.TABLE
    table = tables.load(path)
    one = one_file_tables.of_table(table)
    checked = one.checked if one is not None else tuned_table.checked
    return checked(table, str(path))


def _table_asked_for(name: str | None) -> tuple[Table, str]:
    """Return the table of a file, or a room's applied one, and where it lies."""
    if name not in (None, *ROOMS):
        return read(Path(str(name))), str(name)
    if (one := one_file_tables.of_room(name)) is not None:
        if (table_and_path := one.applied()) is not None:
            return table_and_path[0], str(table_and_path[1])
        raise UserError(
            str(one.destination()),
            found=f"no applied {one.what}",
            allowed="one, or a FILE",
            do=f"nothing need be done: {one.without} (`sglang-mi300a tables list`)",
        )
    applied = staging.current(root())
    if applied is None:
        raise UserError(
            f"state directory {settings.state_dir()}",
            found="no applied gemm table",
            allowed="one, or a FILE",
            do="`sglang-mi300a tune gemm` makes one, `sglang-mi300a tables apply` uses it",
        )
    return applied.table, str(applied.directory)


def this_device() -> dict[str, Any] | None:
    """Return the first accelerator of this node as tables name it, or None."""
    found = devices.accelerators()
    if not found:
        return None
    return {
        "name": found[0].name, "arch": found[0].arch, "visible_cus": found[0].num_visible_cus
    }  # fmt: skip


def misfits(table: Table) -> tuple[list[str], list[str]]:
    """Return how a table does not fit this machine, and what could not be compared here."""
    if (one := one_file_tables.of_table(table)) is not None:
        return one.misfits(table)
    here = this_device()
    bad, unseen = [], []
    if here is None:
        unseen.append("device: no AMD accelerator here")
    else:
        bad += stack_fit.differing_device(table.device, here)
    versions, why = live_stack.read_here()
    if versions is None:
        unseen.append(f"software: {why}")
    else:
        bad += stack_fit.differing_validators(table.software, versions)
    return bad, unseen


def _check(args: argparse.Namespace) -> int:
    table, where = _table_asked_for(args.file)
    bad, unseen = misfits(table)
    print(f"table {where}: {len(table.rows)} rows")
    for line in bad:
        print(f"  does not fit: {line}")
    for line in unseen:
        print(f"  not compared here: {line}")
    if args.model is not None and table.op == tuned_table.OP:
        for line in coverage.lines(table, gemm_command.grid_asked_for(args)):
            print(f"  {line}")
    if bad:
        print(f"  make one for this machine: `{_made_by(table)}`")
    elif not unseen:
        print("  fits this machine")
    return EXIT_JUDGED_AGAINST if bad else EXIT_OK


def _made_by(table: Table) -> str:
    """Return the command that makes such a table for this machine."""
    one = one_file_tables.of_table(table)
    return one.made_by if one is not None else "sglang-mi300a tune gemm"


def _apply(args: argparse.Namespace) -> int:
    source = args.source
    if source is None:
        newest = newest_first(made_here())
        if not newest:
            raise UserError(
                str(made_here()),
                found="no table",
                allowed="a table that was tuned or imported here, or a FILE",
                do="run `sglang-mi300a tune gemm`, or name a file",
            )
        source = newest[0]
    table = read(source)
    count = args.devices or len(devices.accelerators()) or DEFAULT_DEVICES
    bad, unseen = misfits(table)
    if bad:
        raise UserError(
            f"table {source}",
            found="; ".join(bad),
            allowed="the device and software of this machine",
            do=f"make one for this machine: `{_made_by(table)}`",
        )
    print(f"{source}: {len(table.rows)} rows for {count} devices")
    for line in unseen:
        print(f"  not compared here, but at every start: {line}")
    if (one := one_file_tables.of_table(table)) is not None:
        return _apply_one_file(table, one.destination(), dry_run=args.dry_run)
    if args.dry_run:
        staging.check_root(root())
        for name, text in staging.files_of(table, count).items():
            print(f"  would write {root() / staging.LINK / name} ({len(text)} bytes)")
        return EXIT_OK
    applied = staging.apply(table, root(), count)
    print(f"  applied: {applied.directory}; servers use it from their next start on")
    return EXIT_OK


def _apply_one_file(table: Table, path: Path, *, dry_run: bool) -> int:
    if dry_run:
        print(f"  would write {path} ({len(tables.render(table))} bytes)")
        return EXIT_OK
    save(table, path)
    print(f"  applied: {path}; servers use it from their next start on")
    return EXIT_OK


def _import(args: argparse.Namespace) -> int:
    stamp: Mapping[str, str] | None = None
    if args.stamp is not None:
        stamp = importing.stamp_in(args.stamp)
    elif args.made_here:
        stamp, why = live_stack.read_here()
        if stamp is None:
            raise UserError(
                "--made-here", found=why, allowed="ROCm's torch on an accelerator", do="use --stamp"
            )
    today = datetime.date.today().isoformat()
    table = importing.table_of(args.file, device=this_device() or MI300A, stamp=stamp, date=today)
    print(f"{args.file}: {len(table.rows)} rows")
    if "left_out" in table.made:
        print(f"  left out: {table.made['left_out']}")
    if args.dry_run:
        return EXIT_OK
    path = args.out or made_here() / f"imported-{args.file.stem}.json"
    save(table, path)
    print(f"  table {path}; use it with: sglang-mi300a tables apply {path}")
    return EXIT_OK


def save(table: Table, path: Path) -> None:
    """Write a table whole.

    Raises:
        UserError: The directory cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(tables.render(table), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UserError(
            str(path.parent),
            found=f"not writable ({error.strerror})",
            allowed="a directory of yours",
            do="pass --out, or set SGLANG_MI300A_STATE_DIR",
        ) from error


def _show(args: argparse.Namespace) -> int:
    table, where = _table_asked_for(args.file)
    if args.json:
        print(tables.render(table), end="")
        return EXIT_OK
    print(f"table {where}")
    name, arch, visible_cus = (table.device[part] for part in ("name", "arch", "visible_cus"))
    print(f"  device {name}, {arch}, {visible_cus} CUs")
    for fact, value in {**table.software, **table.made}.items():
        print(f"  {fact} {value}")
    for line in _dense_rows(table) if table.op == tuned_table.OP else _plain_rows(table):
        print(f"  {line}")
    return EXIT_OK


def _dense_rows(table: Table) -> Iterator[str]:
    yield f"{'N x K':>13}  {'M':>5}  {'us':>8}  {'stock us':>8}  {'basis':<8}  solution"
    for cell, choice in tuned_table.choices(table).items():
        stock = "-" if choice.stock_us is None else f"{choice.stock_us:.1f}"
        yield (
            f"{f'{cell.n} x {cell.k}':>13}  {cell.m:>5}  {choice.us:>8.1f}  {stock:>8}  "
            f"{choice.basis:<8}  {choice.solution}"
        )


def _plain_rows(table: Table) -> Iterator[str]:
    yield "  ".join(table.columns)
    for row in table.rows.values():
        yield "  ".join("-" if row[name] is None else str(row[name]) for name in table.columns)


def _remove(args: argparse.Namespace) -> int:
    one = one_file_tables.of_room(args.room)
    if args.dry_run:
        path = one.destination() if one is not None else (root() / staging.LINK).resolve()
        print(f"would remove {path}" if path.exists() else "nothing is applied")
        return EXIT_OK
    removed = one.remove() if one is not None else staging.remove(root())
    for path in removed:
        print(f"removed {path}")
    if not removed:
        print("nothing was applied")
    return EXIT_OK
