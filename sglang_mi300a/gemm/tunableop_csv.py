"""PyTorch TunableOp's result file: written from a table, and read with every check it lacks.

    Validator,PT_VERSION,2.9.0
    Validator,ROCM_VERSION,7.0.0.0-38-9428210
    ...
    GemmTunableOp_BFloat16_TN,tn_5120_16_4096_ld_4096_4096_5120,Gemm_Rocblas_1234,0.0145

A row's key is ``tn_N_M_K_ld_K_K_N`` in this package's names (BLAS counts columns first), its time
is in milliseconds. TunableOp itself drops a whole file for one unequal byte in one validator, a
carriage return included, with no more than a warning; a cut file, a second row for a key or an
unknown solution it takes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_mi300a.gemm.result_text import lines_of, refused
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuned_table import SOLUTIONS, VALIDATORS, Choice, choices
from sglang_mi300a.tables import Table

OPERATION = "GemmTunableOp_BFloat16_TN"
_KEY = re.compile(r"tn_(\d+)_(\d+)_(\d+)_ld_(\d+)_(\d+)_(\d+)")
_OPERATIONS = re.compile(r"(Scaled|GemmAndBias|GemmStridedBatched)?(Gemm)?TunableOp_\w+")


@dataclass(frozen=True)
class TunableOpResults:
    """What a result file says.

    Attributes:
        validators: Versions by name, as they stand there.
        rows: Solution and time by cell.
        num_of_other_operations: Rows of operations that this package does not tune.
    """

    validators: Mapping[str, str]
    rows: Mapping[Cell, Choice]
    num_of_other_operations: int


def render(table: Table) -> str:
    """Return the file for a table: its validators, then the rows that TunableOp dispatches."""
    lines = [f"Validator,{name},{table.software[name]}" for name in VALIDATORS]
    lines += [
        f"{OPERATION},{key_of(cell)},{choice.solution},{choice.us / 1000:.9g}"
        for cell, choice in choices(table).items()
        if choice.by_tunableop
    ]
    return "\n".join(lines) + "\n"


def key_of(cell: Cell) -> str:
    """Return TunableOp's key for a product of contiguous matrices."""
    return f"tn_{cell.n}_{cell.m}_{cell.k}_ld_{cell.k}_{cell.k}_{cell.n}"


def parse(data: bytes, where: str) -> TunableOpResults:
    """Return what a file says, whoever wrote it; rows may stand in any order.

    (TunableOp writes them in the order of a hash table.)

    Args:
        data: The file's bytes.
        where: Its path, for errors.

    Raises:
        UserError: A byte, a validator or a row is not as TunableOp means it; with its line.
    """
    validators: dict[str, str] = {}
    rows: dict[Cell, Choice] = {}
    others = 0
    for number, line in enumerate(lines_of(data, where, "Validator"), start=1):
        at = f"{where}: line {number}"
        parts = line.split(",")
        if parts[0] == "Validator":
            _take_validator(parts, validators, bool(rows or others), at)
        elif parts[0] == OPERATION:
            cell, choice = _row(parts, at)
            if cell in rows:
                raise refused(at, f"a second row for {parts[1]}", "one row a key")
            rows[cell] = choice
        elif _OPERATIONS.fullmatch(parts[0]):
            others += 1
        else:
            raise refused(at, f"{line[:60]!r}", f"Validator or {OPERATION} lines")
    missing = [name for name in VALIDATORS if name not in validators]
    if missing:
        raise refused(
            where, f"no validator {', '.join(missing)} (is the file cut?)", ", ".join(VALIDATORS)
        )
    if not rows:
        raise refused(where, f"no row of {OPERATION} (is the file cut?)", "at least one row")
    return TunableOpResults(validators, rows, others)


def _take_validator(parts: list[str], into: dict[str, str], rows_began: bool, at: str) -> None:
    if len(parts) != 3 or not parts[2]:
        raise refused(at, ",".join(parts), "Validator,NAME,VALUE")
    name, value = parts[1:]
    if name not in VALIDATORS:
        raise refused(at, f"validator {name}", ", ".join(VALIDATORS))
    if name in into:
        raise refused(at, f"a second {name}", "each validator once")
    if rows_began:
        raise refused(at, f"validator {name} below rows", "validators first")
    into[name] = value


def _row(parts: list[str], at: str) -> tuple[Cell, Choice]:
    if len(parts) != 4:
        raise refused(at, f"{len(parts)} fields", "operation, key, solution, milliseconds")
    _, key, solution, time_text = parts
    match = _KEY.fullmatch(key)
    if match is None:
        raise refused(at, f"key {key!r}", "tn_N_M_K_ld_K_K_N")
    n, m, k = (int(text) for text in match.groups()[:3])
    cell = Cell(n, k, m)
    if key != key_of(cell):
        raise refused(at, f"key {key!r}", f"{key_of(cell)} (contiguous matrices)")
    try:
        milliseconds = float(time_text)
    except ValueError as error:
        raise refused(
            at, f"time {time_text!r}", "milliseconds in the last of four columns"
        ) from error
    if not (math.isfinite(milliseconds) and milliseconds > 0):
        raise refused(at, f"time {time_text}", "a positive finite number of milliseconds")
    choice = Choice("library", solution, "imported", round(milliseconds * 1000, 6), None)
    if not choice.by_tunableop:
        raise refused(at, f"solution {solution!r}", SOLUTIONS.split(", aiter")[0])
    return cell, choice
