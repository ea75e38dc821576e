"""How fast the loader's ring fills device memory, beside a plain copy from pinned memory.

    python benchmarks/device_copy.py [--gib 4] [--rounds 7] [--json]

Both copy the same bytes to the same device in one process, in alternating order: once through
``ParameterSink`` in pieces of a read buffer, as a load does after each read, and once as plain
``copy_`` calls from one pinned buffer. Needs an accelerator; what it proves of an NVIDIA GPU is
level E2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch

from sglang_mi300a.weights.parameter_sink import ParameterSink
from sglang_mi300a.weights.steps import Stored

BUFFER_BYTES = 16 << 20


def seconds_through_the_sink(target: torch.nn.Parameter, ring: list[np.ndarray]) -> float:
    """Return the seconds to fill ``target`` from the ring's buffers through the loader's sink."""
    sink = ParameterSink({"w": target}, {"w": Stored("w", "U8", tuple(target.shape))})
    with sink.pinned(ring):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for number, start in enumerate(range(0, target.numel(), BUFFER_BYTES)):
            sink.write("w", start, ring[number % len(ring)])
        torch.cuda.synchronize()
        return time.perf_counter() - began


def seconds_of_a_plain_copy(target: torch.nn.Parameter, pinned: torch.Tensor) -> float:
    """Return the seconds to fill ``target`` from one pinned buffer, as often as it takes."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for start in range(0, target.numel(), BUFFER_BYTES):
        target.data[start : start + BUFFER_BYTES].copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("not run: no accelerator here")
        return 2
    size = args.gib << 30
    target = torch.nn.Parameter(
        torch.empty(size, dtype=torch.uint8, device="cuda"), requires_grad=False
    )
    # As the loader's ring: page-aligned ordinary memory, registered for the copies.
    ring = [
        np.frombuffer(torch.empty(BUFFER_BYTES, dtype=torch.uint8).numpy(), dtype=np.uint8)
        for _ in range(8)
    ]
    pinned = torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=True)
    seconds: dict[str, list[float]] = {"sink": [], "plain": []}
    for number in range(args.rounds + 1):  # the first round warms up
        for kind in ("sink", "plain") if number % 2 else ("plain", "sink"):
            took = (
                seconds_through_the_sink(target, ring)
                if kind == "sink"
                else seconds_of_a_plain_copy(target, pinned)
            )
            if number:
                seconds[kind].append(took)
    rate = {kind: size / 1e9 / statistics.median(took) for kind, took in seconds.items()}
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "gib": args.gib,
        "rounds": args.rounds,
        "sink_gb_per_s": round(rate["sink"], 2),
        "plain_gb_per_s": round(rate["plain"], 2),
        "device_copy_ratio": round(rate["sink"] / rate["plain"], 3),
        "evidence": "E2",
    }
    print(json.dumps(result) if args.json else "\n".join(f"{k:<18} {v}" for k, v in result.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
