"""What the shipped expert kernels execute, and the times that follow from it.

    python benchmarks/moe_counts.py [--json] [--out FILE] [--shape TP4]

Runs the matrix kernels of the shipped code object in the gfx942 interpreter (evidence E1), at the
true K and the true number of items of a unit. Few units are enough: a worker executes so much for
each item, so much more for each change of unit, and so much once; three launches of 1, 2 and 5
units give the three numbers exactly, and a fourth, of 3, must come out to the instruction. From
these the cost model predicts the time of both stages of a layer (E3, uniform routing, weights not
cached: -9 % to +25 %, up to 8 tokens -40 % to +40 %), beside published measurements of the kernels
that reach 24 to 30 % of the memory's 5.3 TB/s.

Takes about a minute. Ends with 1, and names what failed, if a kernel misses a bar.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from sglang_mi300a import code_objects, cost_model
from sglang_mi300a.cost_model import MACHINE
from sglang_mi300a.moe.kernels import catalogue, prediction, published, steps
from sglang_mi300a.moe.kernels.catalogue import MatrixKernel
from sglang_mi300a.moe.kernels.prediction import Shape
from tests.gfx942.machine import Machine
from tests.moe.kernels import counting

TOKENS = (1, 4, 16, 64, 337, 919, 1024, 2048)
TILES = (16, 32)
LAYOUTS = {
    "subnormals": "stream/1",
    "bf8": "stream/1 restriped for bf8",
    "bf16": "bf16 stream",
    "loads_only": "stream/1",
    "checkpoint": "plain/1",
}
SERVED = next(shape for shape in prediction.SHAPES if shape.name == "TP4")

MOST_VALU_PER_WEIGHT = {
    (1, "subnormals"): (1.5, 1.8), (2, "subnormals"): (1.6, 2.0),
    (1, "bf8"): (2.1, 2.4), (2, "bf8"): (2.2, 2.7),
}  # fmt: skip
"""At 16 and at 32 tokens, by stage and decode; for the kernels of four ranks."""

SEGMENTS_PER_WEIGHT_LOAD = 16
FEWEST_RING_BYTES = {(1, 16): 49_152, (1, 32): 49_152, (2, 16): 49_152, (2, 32): 36_864}
"""By stage and tile."""

MOST_US = {
    "stream/1": {1: 14, 4: 33, 16: 90, 64: 222, 337: 313, 1024: 366, 2048: 573},
    "stream/1 restriped for bf8": {16: 95, 64: 235, 337: 330, 1024: 385, 2048: 610},
}
AIMED_US = {16: 84, 64: 211, 337: 298, 1024: 337, 2048: 519}
"""What a design of these kinds was thought to reach before any of it was written."""


def kernel_row(kernel: MatrixKernel, on: Machine) -> dict[str, Any]:
    """Return a kernel's counts as the result holds them."""
    facts = on.kernel(kernel.name)
    counted = counting.counted(kernel, on)
    waits = counting.waits(kernel, on)
    inner = counting.inner_of(kernel)
    items = counting.items_per_unit(kernel, inner)
    k = counting.running.HIDDEN if kernel.op == "gate_up" else inner
    weights_of_lane = items * kernel.item_rows * k / catalogue.LANES
    vector = items * counted.item.vector + counted.switch.vector
    per_cu = min(counting.workgroups_per_cu(kernel, on), kernel.workgroups_per_cu)
    fewest_records = min(records for _, records in waits)
    return {
        "name": kernel.name,
        "stage": 1 if kernel.op == "gate_up" else 2,
        "layout": LAYOUTS[kernel.weights],
        "decode": kernel.weights,
        "tile": kernel.token_tile,
        "inner": inner,
        "valu_per_weight": round(vector / weights_of_lane, 4),
        "segments_per_weight_load": counted.segments_per_weight_load,
        "ring_bytes_per_cu": per_cu * kernel.waves * fewest_records * kernel.record_bytes,
        "vgpr": facts.vgprs,
        "lds_bytes": facts.lds_bytes,
        "spills": facts.vgpr_spills + facts.sgpr_spills,
        "workgroups_per_cu": per_cu,
        "vmcnt": [vmcnt for vmcnt, _ in waits],
        "item": asdict(counted.item),
        "switch": asdict(counted.switch),
    }


def predicted(
    rows: Iterable[Mapping[str, Any]], decode: str, tile: int, num_tokens: int, shape: Shape
) -> cost_model.Prediction:
    """Return the time of both stages of a layer."""
    counts = prediction.counts_of(rows)
    work = prediction.routing(num_tokens, tile, shape)
    kernels = [catalogue.matrix_kernel(op, decode, tile, shape.inner) for op in ("gate_up", "down")]
    first, second = (
        prediction.stream_kernel(kernel, counts[kernel.name], shape.inner).predict(work)
        for kernel in kernels
    )
    return prediction.both_stages(first, second)


def predicted_rows(rows: list[dict[str, Any]], shape: Shape) -> Iterator[dict[str, Any]]:
    """Yield, for each MXFP4 decode and number of tokens, the faster tile."""
    for decode in ("subnormals", "bf8"):
        for num_tokens in TOKENS:
            by_tile = {tile: predicted(rows, decode, tile, num_tokens, shape) for tile in TILES}
            tile = min(TILES, key=lambda tile: by_tile[tile].us)
            yield {
                "m": num_tokens,
                "shape": shape.name,
                "layout": LAYOUTS[decode],
                "tile": tile,
                "us": round(by_tile[tile].us, 1),
                "binds": by_tile[tile].binds,
                "terms_us": {name: round(us, 1) for name, us in by_tile[tile].terms_us.items()},
            }


def sort_round_trips(num_tokens: int, on: Machine) -> int:
    """Return the loads that a wave of the sorting workgroup executes, most of all waves."""
    layer = steps.Layer(num_tokens, prediction.TOP_K, 512, 4096, 256, "bf8", 16, 1)
    sizes = steps.scratch_bytes(layer)
    buffers = {name: np.zeros(max(size, 1), np.uint8) for name, size in sizes.items()}
    ids = np.arange(layer.num_pairs, dtype=np.int32) % layer.num_experts
    buffers[steps.TOPK_IDS] = ids
    buffers[steps.HIDDEN_STATES] = np.zeros(16, np.uint8)
    counters = counting.running.launch(steps.sort_pairs(layer), buffers, on=on)
    return -(-counters.by_class["vmem_load"] // counters.waves)


def beside(on: Machine) -> list[dict[str, Any]]:
    """Return the times of the two launches around the stages, which their sum leaves out."""
    return [
        {
            "m": num_tokens,
            "sort_us": round(
                prediction.sort_pairs_us(num_tokens, sort_round_trips(num_tokens, on)), 1
            ),
            "slot_sum_us": round(prediction.sum_slots_us(num_tokens), 1),
        }
        for num_tokens in TOKENS
    ]


def result(shape: Shape) -> dict[str, Any]:
    """Count, predict, and return all of it."""
    code = code_objects.load("moe")
    record = code_objects.load_from(code_objects.compiled_folder("code_objects"), "moe")[1]
    on = Machine(Path(code.where))
    rows = [kernel_row(kernel, on) for kernel in catalogue.MATRIX_KERNELS]
    return {
        "command": "python benchmarks/moe_counts.py --out benchmarks/results/moe_counts.json",
        "evidence": {"kernels": "E1", "predicted": "E3", "published": "E4"},
        "band_percent": list(cost_model.BAND_PERCENT),
        "band_percent_up_to_8_tokens": list(cost_model.SMALL_BATCH_BAND_PERCENT),
        "compiler": record.compiler,
        "model": MACHINE.digest,
        "kernels": rows,
        "timed_parts": [kernel_row(kernel, on) for kernel in catalogue.TIMED_KERNELS],
        "predicted": list(predicted_rows(rows, shape)),
        "beside": beside(on),
        "published": [
            {"m": one.num_tokens, "us": one.measured_us, "weights_cached": one.weights_cached}
            for one in published.TIMINGS
            if one.kernels == "grid"
        ],
    }


def missed(found: Mapping[str, Any]) -> list[str]:
    """Return what misses a bar, a line each."""
    lines = [line for row in found["kernels"] for line in _missed_by_kernel(row)]
    for row in found["predicted"]:
        most = MOST_US[row["layout"]].get(row["m"])
        if row["shape"] == SERVED.name and most is not None and row["us"] > most:
            lines.append(f"{row['layout']}, M {row['m']}: {row['us']} us predicted, bar {most}")
    return lines


def _missed_by_kernel(row: Mapping[str, Any]) -> Iterator[str]:
    name, stage, tile = row["name"], row["stage"], row["tile"]
    served = row["inner"] == SERVED.inner
    most = MOST_VALU_PER_WEIGHT.get((stage, row["decode"]))
    if served and most is not None and row["valu_per_weight"] > most[TILES.index(tile)]:
        yield f"{name}: {row['valu_per_weight']} VALU a weight, bar {most[TILES.index(tile)]}"
    if row["segments_per_weight_load"] != SEGMENTS_PER_WEIGHT_LOAD:
        yield f"{name}: {row['segments_per_weight_load']} segments a weight load, bar 16"
    fewest = FEWEST_RING_BYTES[stage, tile]
    if row["ring_bytes_per_cu"] < fewest:
        yield f"{name}: {row['ring_bytes_per_cu']} bytes under way, bar {fewest}"
    if row["spills"]:
        yield f"{name}: {row['spills']} spilled registers"


def show(found: Mapping[str, Any]) -> None:
    """Print the result for people."""
    print(f"{'kernel (E1)':<30} {'VALU/w':>6} {'seg':>4} {'ring KiB':>8} {'VGPR':>4} {'WG/CU':>5}")
    for row in found["kernels"]:
        print(
            f"{row['name']:<30} {row['valu_per_weight']:>6.3f} "
            f"{row['segments_per_weight_load']:>4.0f} {row['ring_bytes_per_cu'] / 1024:>8.1f} "
            f"{row['vgpr']:>4} {row['workgroups_per_cu']:>5}"
        )
    by_tokens = {row["m"]: row["us"] for row in found["published"]}
    aside = {row["m"]: row for row in found["beside"]}
    print("\nboth stages, predicted (E3, -9/+25 %; M <= 8 +-40 %), us; published kernels (E4)")
    print(
        f"{'layout':<28} {'M':>5} {'tile':>4} {'us':>7}  {'binds':<14} {'published':>9} {'bar':>5}"
    )
    for row in found["predicted"]:
        other, bar = by_tokens.get(row["m"], ""), MOST_US[row["layout"]].get(row["m"], "")
        print(
            f"{row['layout']:<28} {row['m']:>5} {row['tile']:>4} {row['us']:>7}  "
            f"{row['binds']:<14} {other:>9} {bar:>5}"
        )
    print("\nnot in these times: sorting and the slot sum (E3)")
    for num_tokens, row in aside.items():
        print(
            f"{'':<28} {num_tokens:>5} sort {row['sort_us']:>5}, slot sum {row['slot_sum_us']:>5}"
        )


def main() -> int:
    """Count, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--out", type=Path, help="write the JSON to a file as well")
    names = [shape.name for shape in prediction.SHAPES]
    parser.add_argument("--shape", choices=names, default=SERVED.name)
    args = parser.parse_args()
    found = result(next(shape for shape in prediction.SHAPES if shape.name == args.shape))
    text = json.dumps(found, indent=1) + "\n"
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    if args.json:
        print(text, end="")
    else:
        show(found)
    lines = missed(found)
    for line in lines:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
