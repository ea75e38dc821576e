"""What the shipped skinny-product kernels execute, and the time of a forward that follows from it.

    python benchmarks/gemm_counts.py [--json] [--out FILE] [--counts FILE]

Counts the room's code object in the gfx942 interpreter (evidence E1): two launches of different K
give what a workgroup executes once and for each step, a third must come out to the instruction.
From these the cost model chooses a kernel for each product of a forward and predicts its time (E3,
±30 %: no timing of a dense kernel of this kind is published), beside the published times of the
tuned library (E4), in three ways: `apart`, one launch a product; `paired`, the same products, those
that share their input in one launch (router and shared expert's gate·up; the linear attention's two
projections); `served`, what this package launches: the shared expert runs in the expert kernels, so
its products are not among these, nor is there a published time of the rest.

`--counts` writes the counts too: `tuning_tables/gemm/kernel_counts.jsonl`, which the package reads.
Takes a few seconds. Ends with 1, and names what failed, if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from sglang_mi300a import code_objects, model_dims, served_model
from sglang_mi300a.cost_model import MACHINE
from sglang_mi300a.gemm import linear_shapes
from sglang_mi300a.gemm.kernels import prediction
from sglang_mi300a.gemm.kernels.catalogue import KERNELS
from sglang_mi300a.gemm.kernels.prediction import WorkgroupCounts
from sglang_mi300a.weights import model_sizes
from tests.gemm.kernels import counting

TP = 4
TOKENS = (1, 4, 16, 48, 80, 128, 192, 256)

_PROJECTIONS = ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba")
_ROUTED = ("mlp.gate", "mlp.shared_expert.gate_up_proj")
PAIRS = {"served": (_PROJECTIONS,), "paired": (_PROJECTIONS, _ROUTED), "apart": ()}
"""Products of the same activations that one launch makes, by way."""

MOST_MS = {16: 2.8, 48: 3.1, 192: 4.5}
AIMED_MS = {16: 2.3, 48: 2.9, 192: 4.2}
FEWEST_BYTES_UNDER_WAY = 49_152
SEGMENTS_PER_WEIGHT_LOAD = 16

PUBLISHED_MS = {4: 2.60, 16: 2.58, 48: 3.68, 80: 4.19, 128: 5.06, 192: 6.21, 256: 6.1}
"""A forward's dense products with the tuned library on this part, as others measured it (E4)."""

PUBLISHED_US = {
    (5120, 4096): {1: 15.1, 16: 14.5, 48: 19.8, 192: 37.6, 256: 42.9},
    (4608, 4096): {1: 13.5, 16: 14.1, 48: 17.3, 192: 31.0, 256: 37.6},
    (4096, 2048): {1: 7.9, 16: 9.2, 48: 13.7, 192: 19.9, 256: 21.3},
    (4096, 256): {1: 5.3, 16: 5.6, 48: 6.4, 192: 10.5, 256: 7.4},
    (512, 4096): {1: 7.9, 16: 8.1, 48: 10.0, 192: 13.7, 256: 12.4},
    (32, 4096): {1: 7.4, 16: 8.1, 48: 13.9, 192: 20.0, 256: 8.9},
    (62080, 4096): {1: 140.9, 16: 159.3, 48: 177.8, 192: 298.7, 256: 310.7},
}
"""The same, a call: the tuner's own loop, in which small weights may stay in a cache."""


def products(way: str) -> list[dict[str, Any]]:
    """Return the products of a target's forward: names, n, k, how many of each name."""
    model = served_model.read(served_model.SHIPPED_CONFIG)
    sizes = asdict(model_sizes.from_config(model.config, where="config.json"))
    dims = model_dims.from_sizes(sizes, model.text, where="config.json")
    shapes = linear_shapes.of_text_model(
        dims, TP, with_draft=False, shared_expert_rides=way == "served"
    )
    return [
        {"name": shape.name, "n": shape.n, "k": shape.k, "count": shape.num_in_target}
        for shape in shapes
    ]


def launches(way: str) -> list[dict[str, Any]]:
    """Return the launches of a forward: name, n (of both matrices of a pair), k, how many."""
    singles = {row["name"]: row for row in products(way)}
    result = []
    for first, second in PAIRS[way]:
        one, two = singles.pop(first), singles.pop(second)
        assert (one["k"], one["count"]) == (two["k"], two["count"])
        result.append({**one, "name": f"{first} + {second}", "n": one["n"] + two["n"]})
    return [*result, *singles.values()]


def predicted_row(
    num_tokens: int, way: str, counts: Mapping[str, WorkgroupCounts]
) -> dict[str, Any]:
    """Return the time of a forward's dense products."""
    per_shape = []
    for launch in launches(way):
        choice = prediction.best(num_tokens, launch["n"], launch["k"], counts)
        assert choice is not None
        per_shape.append(
            {
                **launch,
                "kernel": choice.kernel.name,
                "us": round(choice.prediction.us, 1),
                "binds": choice.prediction.binds,
                "library_us": PUBLISHED_US.get((launch["n"], launch["k"]), {}).get(num_tokens),
            }
        )
    return {
        "m": num_tokens,
        "way": way,
        "launches": sum(row["count"] for row in per_shape),
        "ms_per_forward": round(sum(row["count"] * row["us"] for row in per_shape) / 1000, 2),
        "library_ms": None if way == "served" else PUBLISHED_MS.get(num_tokens),
        "per_shape": per_shape,
    }


def kernel_row(kernel: Any) -> dict[str, Any]:
    """Return what a kernel uses, and how its loads lie."""
    facts = counting.running.machine().kernel(kernel.name)
    return {
        "name": kernel.name,
        "segments_per_weight_load": counting.segments_per_weight_load(kernel),
        "weight_bytes_under_way_per_cu": kernel.weight_bytes_under_way,
        "vgpr": facts.vgprs,
        "lds_bytes": facts.lds_bytes,
        "spills": facts.vgpr_spills + facts.sgpr_spills,
        "workgroups_per_cu": kernel.workgroups_per_cu,
    }


def result() -> dict[str, Any]:
    """Count, predict, and return all of it."""
    counts = {kernel.name: counting.counted(kernel) for kernel in KERNELS}
    folder = code_objects.compiled_folder("code_objects")
    return {
        "command": "python benchmarks/gemm_counts.py --out benchmarks/results/gemm_counts.json",
        "evidence": {"kernels": "E1", "predicted": "E3", "library": "E4"},
        "band_percent": list(prediction.BAND_PERCENT),
        "compiler": code_objects.load_from(folder, "gemm")[1].compiler,
        "model": MACHINE.digest,
        "kernels": [kernel_row(kernel) for kernel in KERNELS],
        "predicted": [
            predicted_row(num_tokens, way, counts) for way in PAIRS for num_tokens in TOKENS
        ],
    }


def counts_file() -> str:
    """Return the text of the counts that the package ships."""
    return "".join(json.dumps(counting.as_data(kernel)) + "\n" for kernel in KERNELS)


def missed(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what misses a bar, a line each."""
    for row in found["kernels"]:
        if row["segments_per_weight_load"] != SEGMENTS_PER_WEIGHT_LOAD:
            yield f"{row['name']}: {row['segments_per_weight_load']} segments a load, bar 16"
        if row["weight_bytes_under_way_per_cu"] < FEWEST_BYTES_UNDER_WAY:
            yield f"{row['name']}: {row['weight_bytes_under_way_per_cu']} bytes under way"
        if row["spills"]:
            yield f"{row['name']}: {row['spills']} spilled registers"
    for row in found["predicted"]:
        most = MOST_MS.get(row["m"])
        if row["way"] == "paired" and most is not None and row["ms_per_forward"] > most:
            yield f"M {row['m']}: {row['ms_per_forward']} ms predicted, bar {most}"


def show(found: Mapping[str, Any]) -> None:
    """Print the result for people."""
    print(f"{'kernel (E1)':<26} {'seg':>4} {'KiB under way':>13} {'VGPR':>4} {'WG/CU':>5}")
    for row in found["kernels"]:
        print(
            f"{row['name']:<26} {row['segments_per_weight_load']:>4.0f} "
            f"{row['weight_bytes_under_way_per_cu'] / 1024:>13.0f} {row['vgpr']:>4} "
            f"{row['workgroups_per_cu']:>5}"
        )
    print("\ndense products of a forward, predicted (E3, +-30 %); tuned library (E4), ms")
    print(f"{'way':<7} {'M':>4} {'launches':>8} {'ms':>6} {'library':>7} {'bar':>5} {'aim':>5}")
    for row in found["predicted"]:
        bar, aim = (MOST_MS, AIMED_MS) if row["way"] == "paired" else ({}, {})
        print(
            f"{row['way']:<7} {row['m']:>4} {row['launches']:>8} {row['ms_per_forward']:>6} "
            f"{row['library_ms'] or '':>7} {bar.get(row['m'], ''):>5} {aim.get(row['m'], ''):>5}"
        )


def main() -> int:
    """Count, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--out", type=Path, help="write the JSON to a file as well")
    parser.add_argument("--counts", type=Path, help="write the counts to a file")
    args = parser.parse_args()
    found = result()
    text = json.dumps(found, indent=1) + "\n"
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    if args.counts:
        args.counts.write_text(counts_file(), encoding="utf-8")
    if args.json:
        print(text, end="")
    else:
        show(found)
    lines = list(missed(found))
    for line in lines:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
