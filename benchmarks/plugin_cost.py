"""What the plugin adds to a launcher process of a machine that is not ours.

    python benchmarks/plugin_cost.py [--rounds 20] [--json]

Each round starts a fresh interpreter twice, in alternating order: once it imports SGLang and loads
its plugins without this package, once with it. Both print the seconds of the plugin step alone and
of `import sglang` with SGLang's own server arguments, so that the ratio is of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from sglang_mi300a.cpu_engine import recipe

PROBE = """
import json, time
began = time.perf_counter()
import sglang
import sglang.srt.server_args
imported = time.perf_counter()
from sglang.srt.plugins import load_plugins
load_plugins()
loaded = time.perf_counter()
print(json.dumps({"import_ms": (imported - began) * 1e3, "plugins_ms": (loaded - imported) * 1e3}))
"""


def one(with_package: bool) -> dict[str, float]:
    """Return the milliseconds of one fresh interpreter."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(recipe.standins_path()),
        # SGLang loads the plugins whose entry points are named here.
        "SGLANG_PLUGINS": "mi300a" if with_package else "none-of-that-name",
    }
    run = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout.strip().splitlines()[-1])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = {True: [], False: []}
    for number in range(args.rounds):
        for with_package in (True, False) if number % 2 else (False, True):
            rows[with_package].append(one(with_package))
    median = {
        key: {name: statistics.median(row[name] for row in found) for name in found[0]}
        for key, found in rows.items()
    }
    result = {
        "rounds": args.rounds,
        "import_sglang_ms": median[True]["import_ms"],
        "plugins_with_package_ms": median[True]["plugins_ms"],
        "plugins_without_package_ms": median[False]["plugins_ms"],
        "added_ms": median[True]["plugins_ms"] - median[False]["plugins_ms"],
        "evidence": "E0",
    }
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:<28} {value if isinstance(value, (int, str)) else round(value, 1)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
