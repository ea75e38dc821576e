"""Tables made of result files that TunableOp or AITER wrote elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import aiter_csv, tunableop_csv, tuned_table
from sglang_mi300a.tables import Table


def table_of(
    path: Path, *, device: Mapping[str, Any], stamp: Mapping[str, str] | None, date: str
) -> Table:
    """Return the table that a result file makes; which of the two it is, its first line tells.

    Args:
        path: The file.
        device: ``name``, ``arch`` and ``visible_cus`` it was made on.
        stamp: Validators of the software that an AITER file was made with; it names none, and its
            numbers mean nothing to another build.
        date: When it is imported.

    Raises:
        UserError: A line of it cannot be, it is for another device, or it lacks a stamp.
    """
    data = read_bytes(path)
    made = {"by": f"sglang-mi300a tables import {path.name}", "date": date}
    if data.startswith((b"gfx,", b"cu_num,", b"M,", b"N,")):
        rows = aiter_csv.parse(
            data, str(path), arch=device["arch"], visible_cus=device["visible_cus"]
        )
        if stamp is None:
            raise UserError(
                str(path),
                found="an AITER table, which names no software",
                allowed="one whose software is known: solution numbers belong to one library build",
                do="pass --stamp with a TunableOp file of the same machine, or --made-here",
            )
        return tuned_table.make(rows, device=device, validators=stamp, made=made)
    results = tunableop_csv.parse(data, str(path))
    arch = results.validators["GCN_ARCH_NAME"].split(":")[0]
    if arch != device["arch"]:
        raise UserError(
            str(path),
            found=f"GCN_ARCH_NAME {results.validators['GCN_ARCH_NAME']}",
            allowed=device["arch"],
            do="import a file of this architecture",
        )
    if results.num_of_other_operations:
        made["left_out"] = f"{results.num_of_other_operations} rows of other operations"
    return tuned_table.make(results.rows, device=device, validators=results.validators, made=made)


def stamp_in(path: Path) -> dict[str, str]:
    """Return the validators at the head of a TunableOp file; it may hold no rows.

    Raises:
        UserError: It is not readable, or lacks a validator.
    """
    lines = read_bytes(path).decode("ascii", errors="replace").splitlines()
    found = dict(
        line.removeprefix("Validator,").split(",", 1)
        for line in lines
        if line.startswith("Validator,") and line.count(",") == 2
    )
    missing = [name for name in tuned_table.VALIDATORS if not found.get(name)]
    if missing:
        raise UserError(
            f"--stamp {path}",
            found=f"no {', '.join(missing)}",
            allowed="a TunableOp file with its five Validator lines",
            do="let TunableOp write one on that machine: PYTORCH_TUNABLEOP_ENABLED=1",
        )
    return {name: found[name] for name in tuned_table.VALIDATORS}


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        UserError: It is not readable.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            str(path),
            found=f"not readable ({error.strerror})",
            allowed="a file",
            do="correct the path",
        ) from error
