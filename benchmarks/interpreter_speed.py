"""How fast the gfx942 interpreter executes, on a matrix product of the tests.

    python benchmarks/interpreter_speed.py [--launches N] [--json]

Prints wave-instructions a second, the median and the spread of N launches; a plain product of the
same matrices in numpy, in the same run, says what the machine was doing meanwhile. Ends with 1
below a million, the rate at which the tests of kernels take minutes. Evidence E0: about this CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from tests.gfx942 import toolchain
from tests.gfx942.machine import Machine

SOURCE = Path(__file__).parents[1] / "tests/gfx942/programs/tile_gemm.hip"
SIZE = 512
BAR = 1e6


def main() -> int:
    """Launch, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=9, help="default: 9")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    machine = Machine(toolchain.compile_hip(SOURCE))
    ones = np.full((SIZE, SIZE), 0x3F80, np.uint16)
    values = np.ones((SIZE, SIZE), np.float32)
    rates, seconds, plain = [], [], []
    for _ in range(args.launches):
        out = np.zeros((SIZE, SIZE), np.float32)
        begin = time.perf_counter()
        counters = machine.launch(
            "tile_gemm", (SIZE // 64, SIZE // 16), (256,), [ones, ones, out, SIZE, SIZE]
        )
        seconds.append(time.perf_counter() - begin)
        rates.append(counters.rate)
        if not (out == SIZE).all():
            raise SystemExit("the product is wrong")
        begin = time.perf_counter()
        _ = values @ values
        plain.append(time.perf_counter() - begin)
    found = {
        "evidence": "E0",
        "launches": args.launches,
        "wave_instructions_per_s": round(statistics.median(rates)),
        "slowest": round(min(rates)),
        "fastest": round(max(rates)),
        "of_numpy": round(statistics.median(seconds) / statistics.median(plain), 1),
    }
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        print(
            f"{found['wave_instructions_per_s'] / 1e6:.2f} million wave-instructions a second "
            f"({found['slowest'] / 1e6:.2f} to {found['fastest'] / 1e6:.2f}); "
            f"{found['of_numpy']:.0f} times numpy's product"
        )
    return 0 if found["wave_instructions_per_s"] >= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
