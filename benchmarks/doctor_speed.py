"""How long `sglang-mi300a doctor` takes, beside starting Python and importing SGLang.

    python benchmarks/doctor_speed.py [--rounds 9] [--out benchmarks/results/doctor_speed.json]

Rows, medians over rounds: fresh processes of a Python that does nothing, of doctor on the recorded
healthy node, and of doctor on this machine with all facts gathered; and inside this process, facts
gathered from the files of a composed MI300A node (tests/pools; SGLang's source is parsed in the
first round only), and judged. Processor time stands beside the clock's, since the latter grows with
what else the machine does. Evidence E0: a CPU and a local disk. On a node the one thing more is a
process that opens HIP's runtime.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sglang_mi300a.doctor import findings, gather, record

ROOT = Path(__file__).parents[1]
HEALTHY = ROOT / "tests/doctor/fixtures/mi300a-healthy.json"
NODE = ROOT / "tests/pools/fixtures/machines/mi300a-node.json"
DOCTOR = [sys.executable, "-m", "sglang_mi300a.cli.main", "doctor"]


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return how long something takes: by the clock, and of a processor, children included."""
    began, used = time.perf_counter(), sum(os.times()[:4])
    work()
    return time.perf_counter() - began, sum(os.times()[:4]) - used


def process(*command: str) -> Callable[[], object]:
    """Return something that runs a command and does not mind its exit code."""
    return lambda: subprocess.run(command, capture_output=True, check=False, cwd=ROOT)


def composed_node(root: Path) -> Path:
    """Write the composed node's files below a directory and return it."""
    for name, text in json.loads(NODE.read_text())["files"].items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="also write the result")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        node = composed_node(Path(scratch))
        healthy = record.load(HEALTHY)
        work = {
            "python_start": process(sys.executable, "-c", "pass"),
            "doctor_on_the_healthy_record": process(*DOCTOR, "--fixture", str(HEALTHY)),
            "doctor_on_this_machine": process(*DOCTOR),
            "gather_from_a_composed_node": lambda: gather.facts(gather.Question(root=node)),
            "judge": lambda: findings.judge(healthy),
        }
        rows = {name: [seconds(one) for _ in range(args.rounds)] for name, one in work.items()}
    wall = {name: [one[0] for one in found] for name, found in rows.items()}
    medians = {name: statistics.median(found) for name, found in wall.items()}
    start = medians["python_start"]
    result = {
        "command": "python benchmarks/doctor_speed.py --out benchmarks/results/doctor_speed.json",
        "evidence": "E0",
        "rounds": args.rounds,
        "num_findings": len(findings.JUDGES),
        "median_s": {name: round(value, 4) for name, value in medians.items()},
        "max_s": {name: round(max(found), 4) for name, found in wall.items()},
        "median_cpu_s": {
            name: round(statistics.median(one[1] for one in found), 3)
            for name, found in rows.items()
        },
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "times_python_start": {name: round(value / start, 1) for name, value in medians.items()},
    }
    text = json.dumps(result, indent=1) + "\n"
    if args.out is not None:
        args.out.write_text(text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
