"""The process that tunes one weight shape on one device; a crash costs the product under way.

Standard input: one JSON line ``{"n", "k", "m": [...], "samples"}``, or ``{}`` to be asked only what
this machine is. Standard output, one JSON line each: ``{"machine": ...}`` first, ``{"begin": m}``
before a product, its result after.

Winner and stock are timed as the server runs them: in a captured graph, over so many copies of the
weight that none is found in a cache.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sglang_mi300a.gemm import tunableop_csv
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuning_record import Machine, Measured, judged

COLD_BYTES = 1 << 30
"""Weights that are cycled through: four times the last-level cache of an MI300A (256 MB)."""
MOST_COPIES = 4096
CALLS_A_GRAPH = 32
MOST_MILLISECONDS_A_CANDIDATE = 30
ROWS_AT_ONCE = 1024


class Tuner:
    """Tunes and times products on the current device.

    Args:
        scratch: A file that TunableOp may write what it finds into; nobody reads it.
    """

    def __init__(self, scratch: Path) -> None:
        import torch

        self._torch: Any = torch
        self._tunable: Any = torch.cuda.tunable
        self._tunable.set_filename(str(scratch))
        self._tunable.enable(True)
        self._tunable.set_max_tuning_duration(MOST_MILLISECONDS_A_CANDIDATE)
        self._tunable.set_rotating_buffer_size(COLD_BYTES >> 20)
        if hasattr(self._tunable, "write_file_on_exit"):
            self._tunable.write_file_on_exit(False)
        self._weights: Any = None

    def machine(self) -> Machine:
        """Return what this process runs on."""
        from sglang_mi300a import device as devices
        from sglang_mi300a.gemm import live_stack

        live_stack.run_first_product()
        properties = self._torch.cuda.get_device_properties(self._torch.cuda.current_device())
        found = devices.accelerators()
        device = {
            # torch's own name is empty in some containers; the driver's is not.
            "name": found[0].name if found else properties.name,
            "arch": str(getattr(properties, "gcnArchName", "unknown")).split(":")[0],
            "visible_cus": properties.multi_processor_count,
        }
        return Machine(device, live_stack.validators(self._tunable))

    def measure(self, cell: Cell, samples: int) -> Measured:
        """Return the result of one product."""
        torch = self._torch
        torch.manual_seed(cell.n * 31 + cell.k * 7 + cell.m)
        x = torch.randn((cell.m, cell.k), device="cuda").bfloat16()
        weights = self._copies(cell)
        solution = self._tune(cell, x, weights[0])
        if solution in ("", "Default"):  # nothing beats stock, or nothing is known of it
            return Measured(*cell, "lost", solution)
        error = self._relative_error(x, weights[0])
        tuned, stock = (self._graph(x, weights, tuned=flag) for flag in (True, False))
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(samples):
            for flag, graph in ((True, tuned), (False, stock)):
                times[flag].append(self._us(graph))
        us, stock_us = (round(statistics.median(times[flag]), 3) for flag in (True, False))
        found = Measured(*cell, "lost", solution, us, stock_us, error, samples)
        return replace(found, outcome=judged(found))

    def _copies(self, cell: Cell) -> list[Any]:
        """Return as many weights as fill more than a cache; made once for a shape."""
        if self._weights is None:
            one = 2 * cell.n * cell.k
            count = min(MOST_COPIES, max(2, COLD_BYTES // one))
            first = self._torch.randn((cell.n, cell.k), device="cuda").bfloat16()
            self._weights = [first, *(first.clone() for _ in range(count - 1))]
        found: list[Any] = self._weights
        return found

    def _tune(self, cell: Cell, x: Any, weight: Any) -> str:
        """Let TunableOp choose; return its choice."""
        self._tunable.enable(True)
        self._tunable.tuning_enable(True)
        self._torch.nn.functional.linear(x, weight)
        self._torch.cuda.synchronize()
        self._tunable.tuning_enable(False)
        wanted = (tunableop_csv.OPERATION, tunableop_csv.key_of(cell))
        for operation, key, solution, *_ in self._tunable.get_results():
            if (operation, key) == wanted:
                return str(solution)
        return ""

    def _relative_error(self, x: Any, weight: Any) -> float:
        """Return the winner's error where each output was NaN before; NaN if one still is."""
        torch = self._torch
        out = torch.full((x.shape[0], weight.shape[0]), float("nan"), device="cuda").bfloat16()
        torch.mm(x, weight.t(), out=out)
        self._tunable.enable(False)
        difference = total = 0.0
        for start in range(0, x.shape[0], ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            right = x[rows].float() @ weight.float().t()
            difference += float((out[rows].float() - right).square().sum(dtype=torch.float64))
            total += float(right.square().sum(dtype=torch.float64))
        self._tunable.enable(True)
        return float((difference / total) ** 0.5)

    def _graph(self, x: Any, weights: list[Any], *, tuned: bool) -> tuple[Any, int]:
        """Return a captured graph of calls over cold weights, and their number."""
        torch = self._torch
        self._tunable.enable(tuned)
        torch.nn.functional.linear(x, weights[0])  # never first in a capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        calls = weights if len(weights) > CALLS_A_GRAPH else weights * CALLS_A_GRAPH
        calls = calls[: max(CALLS_A_GRAPH, min(len(weights), 256))]
        with torch.cuda.graph(graph):
            for weight in calls:
                torch.nn.functional.linear(x, weight)
        graph.replay()
        self._tunable.enable(True)
        return graph, len(calls)

    def _us(self, captured: tuple[Any, int]) -> float:
        """Return microseconds a call of one replay."""
        graph, count = captured
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1000 / count


def main() -> None:
    """Tune what standard input names."""
    asked = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as scratch:
        tuner = Tuner(Path(scratch) / "found.csv")
        _say({"machine": asdict(tuner.machine())})
        for m in asked.get("m", []):
            _say({"begin": m})
            _say(asdict(tuner.measure(Cell(asked["n"], asked["k"], m), asked["samples"])))


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
