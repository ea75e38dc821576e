"""A table for dense products: applied, found damaged with its line, and a foreign one refused."""

from __future__ import annotations

import itertools
from pathlib import Path

from sglang_mi300a import served_model
from sglang_mi300a.cli import gemm_grid, tables
from sglang_mi300a.code_objects import ARCH
from sglang_mi300a.demo.account import Account
from sglang_mi300a.demo.child import sglang_mi300a
from sglang_mi300a.demo.journey import Journey
from sglang_mi300a.errors import EXIT_BAD_INPUT, EXIT_OK
from sglang_mi300a.gemm import staging, tunableop_csv, tuned_table
from sglang_mi300a.gemm.tuned_table import Choice

STACK = {
    "PT_VERSION": "2.9.0",
    "ROCM_VERSION": "7.0.0.0-38-9428210",
    "HIPBLASLT_VERSION": "100000-976b9c4a87",
    "GCN_ARCH_NAME": f"{ARCH}:sramecc+:xnack-",
    "ROCBLAS_VERSION": "5.0.0.976b9c4a87",
}
"""Versions as a ROCm node's TunableOp would say them."""
OTHER_ARCH = "gfx950"
NUM_ROWS = 3


def run(journey: Journey, account: Account) -> None:
    """Import, apply and check a table; spoil it; import one of another device."""
    results = journey.scratch / "tunableop_results0.csv"
    results.write_text(result_file(), encoding="ascii")
    account.say(
        f"a result file as PyTorch's TunableOp writes it on a node, for {NUM_ROWS} products of the "
        "397B model; its times are made up"
    )
    sglang_mi300a(account, journey, "tables", "import", results, expect=EXIT_OK)
    sglang_mi300a(account, journey, "tables", "apply", expect=EXIT_OK, says=["applied: "])
    model = ("--model", served_model.SHIPPED_CONFIG)
    covers = f"covers {NUM_ROWS} of "
    check = sglang_mi300a(
        account, journey, "tables", "check", *model, expect=EXIT_OK, says=[covers], shown=False
    )
    for line in check.output.splitlines():
        if covers in line:
            account.say(f"checked against what a server with preset tuned runs: {line.strip()}")
    spoilt = journey.scratch / "state" / "tables" / staging.LINK / (staging.TUNABLEOP % 1)
    number = spoil(spoilt)
    account.say(f"one digit of the second device's file is changed, in line {number}")
    sglang_mi300a(
        account, journey, "tables", "check", expect=EXIT_BAD_INPUT, says=[f": line {number}: found"]
    )
    foreign = results.with_name("from_another_device0.csv")
    foreign.write_text(result_file().replace(ARCH, OTHER_ARCH), encoding="ascii")
    account.say(f"a result file of a device of another kind, {OTHER_ARCH}")
    sglang_mi300a(
        account, journey, "tables", "import", foreign,
        expect=EXIT_BAD_INPUT, says=[f"found GCN_ARCH_NAME {OTHER_ARCH}"],
    )  # fmt: skip
    account.say(
        "what cannot be compared without ROCm, its versions, is compared on every rank at every "
        "start; a table is used whole or refused whole"
    )


def result_file() -> str:
    """Return a TunableOp file for a few products of the 397B model."""
    model = served_model.read(served_model.SHIPPED_CONFIG)
    cells = itertools.islice(gemm_grid.of_preset(model, "tuned", 4).cells(), NUM_ROWS)
    table = tuned_table.make(
        {
            cell: Choice("library", f"Gemm_Rocblas_{number}", "imported", 10.5 + number, None)
            for number, cell in enumerate(cells)
        },
        device=tables.MI300A,
        validators=STACK,
        made={"by": "sglang-mi300a demo", "date": "made up"},
    )
    return tunableop_csv.render(table)


def spoil(path: Path) -> int:
    """Change one digit in a file's last line; return the line's number."""
    text = path.read_text(encoding="ascii")
    digit = max(at for at, letter in enumerate(text) if letter.isdigit())
    other = str(9 - int(text[digit]))
    path.chmod(0o644)
    path.write_text(text[:digit] + other + text[digit + 1 :], encoding="ascii")
    return text.count("\n", 0, digit) + 1
