"""What PyTorch's TunableOp on an accelerator does with good and spoilt result files.

    python benchmarks/tunableop_reading.py --json

Each case is a process of its own that is told a file by environment variables, runs one bf16
product, and ends. It says which rows TunableOp then held and whether the file had changed when the
process was gone. The stand-in of `tests/gemm` is held to the answers
(`results/tunableop_reading.json`). On an NVIDIA GPU TunableOp knows `Default` alone and fewer
validators; what is proved there of reading, naming and writing files is level E2.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_mi300a import settings
from sglang_mi300a.gemm import tunableop_csv
from sglang_mi300a.gemm.shape_grid import Cell

CELL = Cell(512, 4096, 16)
ROW = f"{tunableop_csv.OPERATION},{tunableop_csv.key_of(CELL)},Default,0.25\n"

CHILD = """
import json, os, sys, torch
tunable = torch.cuda.tunable
x = torch.ones(({m} + 1, {k}), dtype=torch.bfloat16, device="cuda")
w = torch.ones(({n}, {k}), dtype=torch.bfloat16, device="cuda")
if "calm" in sys.argv and hasattr(tunable, "write_file_on_exit"):
    tunable.write_file_on_exit(False)
def record():
    os.environ["PYTORCH_TUNABLEOP_UNTUNED_FILENAME"] = sys.argv[1]
    tunable.record_untuned_enable(True)
if "record first" in sys.argv:
    record()
y = torch.nn.functional.linear(x[:{m}], w)
if "record then" in sys.argv:
    record()
if any(word.startswith("record") for word in sys.argv):
    torch.nn.functional.linear(x[:{m}], w)
    torch.nn.functional.linear(x, w)
    tunable.record_untuned_enable(False)
torch.cuda.synchronize()
print("SAYS " + json.dumps({{
    "validators": dict(tunable.get_validators()),
    "filename": tunable.get_filename(),
    "rows": [[row[0], row[1], row[2], float(row[3])] for row in tunable.get_results()],
    "write_file_on_exit": hasattr(tunable, "write_file_on_exit"),
    "result": float(y[0, 0]),
}}))
"""

Spoil = Callable[[str], str]
CASES: dict[str, Spoil] = {
    "as written": lambda text: text,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "byte-order mark": lambda text: "\N{BOM}" + text,
    "one version unlike": lambda text: text.replace(
        "Validator,PT_VERSION,2", "Validator,PT_VERSION,3"
    ),
    "one version missing": lambda text: text.split("\n", 1)[1],
    "a version too many": lambda text: "Validator,NEW_VERSION,1\n" + text,
    "a second row": lambda text: text + ROW.replace("0.25", "0.5"),
    "unknown solution": lambda text: text.replace("Default", "Gemm_Rocblas_999999"),
    "no time": lambda text: text.replace(",0.25", ""),
    "another product": lambda text: text.replace("tn_512_16_", "tn_512_17_"),
}


def run_case(
    text: str | None, directory: Path, *, tuning: bool = False, words: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return what a process that is told this file says, and what became of the file.

    Args:
        text: The file's content, or None for no file.
        directory: Where it lies.
        tuning: Whether tuning is on.
        words: ``calm``: the process turns rewriting at exit off, where its torch can; ``record
            first`` and ``record then``: it lets products without a row be written down, from the
            beginning or after its first product, and makes one more row of it.
    """
    path = directory / "t0.csv"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_bytes(text.encode())
    environment = settings.child_environment(
        {
            "PYTORCH_TUNABLEOP_ENABLED": "1",
            "PYTORCH_TUNABLEOP_TUNING": "1" if tuning else "0",
            "PYTORCH_TUNABLEOP_FILENAME": str(directory / "t%d.csv"),
        }
    )
    child = CHILD.format(n=CELL.n, k=CELL.k, m=CELL.m)
    done = subprocess.run(
        [sys.executable, "-c", child, str(directory / "untuned.csv"), *words],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if line.startswith("SAYS ")]
    after = path.read_bytes() if path.is_file() else None
    untuned = directory / "untuned0.csv"
    recorded = untuned.read_text().splitlines() if untuned.is_file() else None
    untuned.unlink(missing_ok=True)
    return {
        "exit_code": done.returncode,
        "changed": after != (None if text is None else text.encode()),
        "error": (done.stderr.strip().splitlines() or [""])[-1][:200] if done.returncode else "",
        **(json.loads(said[0].removeprefix("SAYS ")) if said else {}),
        "after": None if after is None else after.decode(errors="replace"),
        **({} if recorded is None else {"untuned": recorded}),
    }


def main() -> int:
    """Run every case and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("not run: no accelerator here")
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        tuned = run_case(None, directory, tuning=True)
        head = "".join(f"Validator,{n},{v}\n" for n, v in tuned["validators"].items())
        cases = {"no file, tuning on": tuned}
        for name, spoil in CASES.items():
            cases[name] = run_case(spoil(head + ROW), directory)
        cases["no file"] = run_case(None, directory)
        cases["CRLF, calm"] = run_case(CASES["CRLF"](head + ROW), directory, words=("calm",))
        for words in (("record then",), ("record first",)):
            cases[words[0]] = run_case(head + ROW, directory, words=words)
    for case in cases.values():
        case["filename"] = Path(case.get("filename", "")).name
    report = {
        "command": "python benchmarks/tunableop_reading.py --json",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "evidence": "E4" if torch.version.hip else "E2",
        "cases": cases,
    }
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        for name, case in cases.items():
            print(f"{name}: {len(case.get('rows', []))} rows, changed {case['changed']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
