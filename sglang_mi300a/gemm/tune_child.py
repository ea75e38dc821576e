"""The process that tunes one weight shape on one device; a crash costs the product under way.

Standard input: one JSON line ``{"n", "k", "m": [...], "samples", "kernels", "known"}``, or ``{}``
to be asked only what this machine is; ``kernels`` names the build of our kernels, and where it is
empty none is timed; ``known`` is TunableOp's choice by row count, where it need not choose again.
Standard output, one JSON line each: ``{"machine": ...}`` first, ``{"dropped": ...}`` if kernels
failed their test on this device, ``{"begin": m}`` before a product, its result after.

With ``"parts": [n1, n2]`` it is two products of one input, which our kernels make in one launch,
timed beside stock's two and beside the two by what ``"apart": {m: [solution, solution]}`` names.

TunableOp's winner, each kernel of ours that takes the product, and stock are timed as the server
runs them: in captured graphs, in turns, over so many copies of the weight that none is found in a
cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from sglang_mi300a.gemm import candidates, tunableop_csv
from sglang_mi300a.gemm.candidates import APART, STOCK, Candidate
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuned_table import KERNEL
from sglang_mi300a.gemm.tuning_record import Machine, Measured

COLD_BYTES = 1 << 30
"""Weights that are cycled through: four times the last-level cache of an MI300A (256 MB)."""
MOST_COPIES = 4096
CALLS_A_GRAPH = 32
MOST_MILLISECONDS_A_CANDIDATE = 30
ROWS_AT_ONCE = 1024

Call = Callable[..., None]


class Tuner:
    """Tunes and times products on the current device.

    Args:
        scratch: A file that TunableOp may write what it finds into, nobody reads it; what is
            known of the products of a pair is put beside it.
        kernels: Build of our kernels to time too, or "".

    Attributes:
        dropped: Why each kernel that failed its test on this device is not timed, by name.
    """

    def __init__(self, scratch: Path, kernels: str = "") -> None:
        import torch

        self._torch: Any = torch
        self._known = scratch.with_name("known.csv")
        self._tunable: Any = torch.cuda.tunable
        self._tunable.set_filename(str(scratch))
        self._tunable.enable(True)
        self._tunable.set_max_tuning_duration(MOST_MILLISECONDS_A_CANDIDATE)
        self._tunable.set_rotating_buffer_size(COLD_BYTES >> 20)
        if hasattr(self._tunable, "write_file_on_exit"):
            self._tunable.write_file_on_exit(False)
        self._weights: Any = None
        self._kernels_build = kernels
        self._kernels: frozenset[str] = frozenset()
        self.dropped: Mapping[str, str] = {}

    def test_kernels(self) -> None:
        """Let those of our kernels be timed that give the right product on this device."""
        from sglang_mi300a.gemm import own_products, skinny

        device = self._torch.device("cuda", self._torch.cuda.current_device())
        test = own_products.self_test(skinny.product, device)
        self._kernels, self.dropped = test.usable, test.dropped

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

    def measure(self, cell: Cell, samples: int, known: str = "") -> Measured:
        """Return the result of one product.

        Args:
            cell: Which.
            samples: Timings of each candidate.
            known: TunableOp's choice, where it was made before.
        """
        torch = self._torch
        torch.manual_seed(cell.n * 31 + cell.k * 7 + cell.m)
        x = torch.randn((cell.m, cell.k), device="cuda").bfloat16()
        weights = self._copies(cell)
        if known:
            self._know({} if known == "Default" else {cell: known})
        tuned = known or self._tune(cell, x, weights[0])
        tried = [
            Candidate(name, self._relative_error(name, x, weights[0]))
            for name in candidates.solutions(cell, tuned, sorted(self._kernels))
        ]
        calls = {
            name: partial(self._call, name, x)
            for name in (STOCK, *(one.solution for one in tried if one.is_right))
        }
        times = self._times(calls, [(weight,) for weight in weights], samples)
        found = candidates.fastest(cell, tried, times, kernels=self._kernels_build)
        return found if tried else replace(found, solution=tuned)

    def measure_pair(
        self, cell: Cell, parts: Sequence[int], apart: Sequence[str], samples: int
    ) -> Measured:
        """Return the result of two products of one input.

        Args:
            cell: Its ``n`` is the sum of both.
            parts: Output features of each.
            apart: Best solution of each, "" for stock's.
            samples: Timings of each candidate.
        """
        torch = self._torch
        torch.manual_seed(cell.n * 31 + cell.k * 7 + cell.m)
        x = torch.randn((cell.m, cell.k), device="cuda").bfloat16()
        weights = [torch.split(weight, list(parts)) for weight in self._copies(cell)]
        self._know(
            {
                Cell(n, cell.k, cell.m): name
                for n, name in zip(parts, apart, strict=True)
                if name and not name.startswith(KERNEL)
            }
        )
        tried = [
            Candidate(name, self._relative_error_of_pair(name, x, weights[0]))
            for name in candidates.solutions_of_pair(parts, cell.k, sorted(self._kernels))
        ]
        calls: dict[str, Call] = {
            STOCK: partial(self._call_both, (STOCK, STOCK), x),
            APART: partial(self._call_both, apart, x),
        }
        for one in tried:
            if one.is_right:
                calls[one.solution] = partial(self._call_pair, one.solution, x)
        times = self._times(calls, weights, samples)
        return candidates.fastest(cell, tried, times, kernels=self._kernels_build, parts=parts)

    def _know(self, solutions: Mapping[Cell, str]) -> None:
        """Let TunableOp serve these products by these solutions, and tune nothing."""
        self._tunable.enable(True)
        self._tunable.tuning_enable(False)
        lines = [f"Validator,{name},{value}" for name, value in self._tunable.get_validators()]
        lines += [
            f"{tunableop_csv.OPERATION},{tunableop_csv.key_of(cell)},{name},1"
            for cell, name in solutions.items()
        ]
        self._known.write_text("\n".join(lines) + "\n")
        if not self._tunable.read_file(str(self._known)):
            raise RuntimeError(f"TunableOp did not take {lines}")

    def _times(
        self, calls: Mapping[str, Call], weights: Sequence[Sequence[Any]], samples: int
    ) -> dict[str, list[float]]:
        """Return timings of each call, taken in turns; none if there is stock's alone."""
        if not calls.keys() - {STOCK, APART}:
            return {}
        graphs = {
            name: self._graph(call, weights, tuned=name != STOCK) for name, call in calls.items()
        }
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(samples):
            for name, graph in graphs.items():
                times[name].append(self._us(graph))
        return times

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

    def _relative_error(self, solution: str, x: Any, weight: Any) -> float:
        """Return a candidate's error where each output was NaN before; NaN if one still is."""
        out = self._poisoned(x, weight)
        if solution.startswith(KERNEL):
            self._run_kernel(solution, x, weight, out)
        else:
            self._torch.mm(x, weight.t(), out=out)
        return self._error_of(x, [(weight, out)])

    def _relative_error_of_pair(self, solution: str, x: Any, weights: Sequence[Any]) -> float:
        outs = [self._poisoned(x, weight) for weight in weights]
        self._run_kernel(solution, x, weights[0], outs[0], weights[1], outs[1])
        return self._error_of(x, list(zip(weights, outs, strict=True)))

    def _poisoned(self, x: Any, weight: Any) -> Any:
        shape = (x.shape[0], weight.shape[0])
        return self._torch.full(shape, float("nan"), device="cuda").bfloat16()

    def _error_of(self, x: Any, made: Sequence[tuple[Any, Any]]) -> float:
        """Return the relative L2 error of results, given with their weights, against float32."""
        torch = self._torch
        self._tunable.enable(False)
        difference = total = 0.0
        for weight, out in made:
            for start in range(0, x.shape[0], ROWS_AT_ONCE):
                rows = slice(start, start + ROWS_AT_ONCE)
                right = x[rows].float() @ weight.float().t()
                difference += float((out[rows].float() - right).square().sum(dtype=torch.float64))
                total += float(right.square().sum(dtype=torch.float64))
        self._tunable.enable(True)
        return float((difference / total) ** 0.5)

    def _run_kernel(
        self, solution: str, x: Any, weight: Any, out: Any, second: Any = None, out_2: Any = None
    ) -> None:
        from sglang_mi300a.gemm import skinny

        skinny.product(x, weight, out, second, out_2, solution.split("/")[1])

    def _call(self, solution: str, x: Any, weight: Any) -> None:
        """Make a product as the server does: the result is allocated each time."""
        if solution.startswith(KERNEL):
            self._run_kernel(solution, x, weight, x.new_empty((x.shape[0], weight.shape[0])))
        else:
            self._torch.nn.functional.linear(x, weight)

    def _call_both(self, solutions: Sequence[str], x: Any, *weights: Any) -> None:
        for solution, weight in zip(solutions, weights, strict=True):
            self._call(solution, x, weight)

    def _call_pair(self, solution: str, x: Any, weight: Any, second: Any) -> None:
        outs = (x.new_empty((x.shape[0], one.shape[0])) for one in (weight, second))
        self._run_kernel(solution, x, weight, next(outs), second, next(outs))

    def _graph(
        self, call: Call, weights: Sequence[Sequence[Any]], *, tuned: bool
    ) -> tuple[Any, int]:
        """Return a captured graph of calls over cold weights, and their number."""
        torch = self._torch
        self._tunable.enable(tuned)
        call(*weights[0])  # never first in a capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        some = weights if len(weights) > CALLS_A_GRAPH else [*weights] * CALLS_A_GRAPH
        some = some[: max(CALLS_A_GRAPH, min(len(weights), 256))]
        with torch.cuda.graph(graph):
            for each in some:
                call(*each)
        graph.replay()
        self._tunable.enable(True)
        return graph, len(some)

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
        tuner = Tuner(Path(scratch) / "found.csv", asked.get("kernels", ""))
        _say({"machine": asdict(tuner.machine())})
        if asked.get("kernels"):
            tuner.test_kernels()
            if tuner.dropped:
                _say({"dropped": dict(tuner.dropped)})
        for m in asked.get("m", []):
            _say({"begin": m})
            cell = Cell(asked["n"], asked["k"], m)
            if asked.get("parts"):
                apart = asked["apart"][str(m)]
                found = tuner.measure_pair(cell, asked["parts"], apart, asked["samples"])
            else:
                known = asked.get("known", {}).get(str(m), "")
                found = tuner.measure(cell, asked["samples"], known)
            _say(asdict(found))


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
