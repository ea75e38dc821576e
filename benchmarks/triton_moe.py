"""The Triton rung on a GPU: right, fit for graphs, and how near to the speed of a plain copy.

    python benchmarks/triton_moe.py [--json] [--out benchmarks/results/triton_moe.json]

It asks whether every MXFP4 code, at every place of a block and under every scale of the stated
range, is decoded exactly. Then six expert layers of the served model's sizes on one rank of TP 4
(512 experts, 4096 x 256 neurons, top 10, layout stream/1), more than any cache holds, take 16, 64
and 337 tokens, with experts drawn uniformly and with a concentrated choice. Shown are

* the distance of layer 0 from the float32 reference, relative L2;
* whether a captured graph of all layers, replayed with other tokens, gives the bits of plain
  launches, and gives them again;
* the time of a layer in the replayed graph, all five launches, and the bytes of the experts drawn
  over that time, beside a device-to-device copy timed in the same rounds (read plus written bytes).

Medians over the rounds. Ends with 1 if a result is wrong or a row is below 0.30 of the copy. What
it shows of an NVIDIA GPU is level E2; it says nothing of the speed on an MI300A.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sglang_mi300a import mxfp4, stream_layout
from sglang_mi300a.moe import triton_rung
from sglang_mi300a.moe.reference import expert_layer
from sglang_mi300a.moe.rungs import Experts, ExpertSizes
from sglang_mi300a.moe.selftest import TOLERANCE
from sglang_mi300a.moe.triton_rung import Prepared, TritonRung

SIZES = ExpertSizes(
    num_experts=512, hidden=4096, inner=256, top_k=10, layout="stream/1", weights="mxfp4"
)
SHAPES = {"w13": (2 * SIZES.inner, SIZES.hidden), "w2": (SIZES.hidden, SIZES.inner)}
TOKENS = (16, 64, 337)
ROUTINGS = ("uniform", "concentrated")
CONCENTRATION = 1.4
"""An expert's popularity falls with this power of its rank."""

NUM_LAYERS = 6
COPY_BYTES = 4 << 30
LEAST_OF_COPY = 0.30


def decodes_exactly(layout: str, *, keeps_subnormals: bool, device: str) -> bool:
    """Return whether ``down`` gives every code exactly, at every place and under every scale.

    A token whose inner values are one 1 among zeros gets that column of the weights.

    Args:
        layout: ``stream/1`` or ``plain/1``.
        keeps_subnormals: Which of the two decodes.
        device: Where.
    """
    num_rows = k = stream_layout.RECORD_K
    exact = range(mxfp4.EXACT_SCALE_MIN, mxfp4.EXACT_SCALE_MAX + 1)
    scales = np.resize(np.array(exact, np.uint8), (num_rows, k // mxfp4.BLOCK))
    place = np.arange(k) % mxfp4.BLOCK
    codes = (place + np.repeat(scales.astype(int), mxfp4.BLOCK, axis=1)) % 16
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    tensors = {"w2_weight": packed, "w2_weight_scale": scales}
    if layout != "plain/1":
        tensors = {"w2_stream": stream_layout.split_mxfp4("w2", packed, scales)}
    on_device = {name: torch.from_numpy(one).to(device)[None] for name, one in tensors.items()}

    sizes = ExpertSizes(1, num_rows, k, 1, layout)
    shape = triton_rung.fitted(triton_rung.launch_shape(k, sizes, on_amd=False), sizes)
    tokens = torch.eye(k, dtype=torch.bfloat16, device=device)
    written = {
        name: torch.empty(size, dtype=dtype, device=device)
        for name, (size, dtype) in triton_rung.scratch(sizes, k, shape.tile).items()
    }
    given = {
        **triton_rung.words_of(Experts("decode", sizes, on_device), "w2"),
        **written,
        "hidden_states": tokens,
        "topk_ids": torch.zeros(k, 1, dtype=torch.int32, device=device),
        "inner": written["operands"],
    }
    launches = triton_rung.launches(sizes, k, shape, keeps_subnormals=keeps_subnormals)
    for one in launches:
        if one.kernel in ("count_pairs", "place_pairs", "down"):
            triton_rung.start(one, k, given)
    rows = written["rows"]
    want = torch.from_numpy(mxfp4.dequantise(packed, scales)).T
    return torch.equal(rows.float().cpu() + 0.0, want + 0.0)


@dataclass(frozen=True)
class Row:
    """One batch.

    Attributes:
        tokens: Of the batch.
        routing: How experts are drawn.
        experts: Distinct ones of a layer, mean over the layers.
        weight_mb: Their bytes, 10^6.
        us: Time of a layer.
        gb_per_s: Weight bytes a second.
        of_copy: The same as a part of the copy's bytes a second.
        relative_l2: Distance of layer 0 from the reference.
        replay_equal: Whether replays gave the bits of plain launches.
    """

    tokens: int
    routing: str
    experts: float
    weight_mb: float
    us: float
    gb_per_s: float
    of_copy: float
    relative_l2: float
    replay_equal: bool


def stream_bytes(projection: str) -> int:
    """Return the bytes of one expert's stream."""
    rows, k = SHAPES[projection]
    return rows * k * 17 // 32


def random_layer(seed: int) -> dict[str, torch.Tensor]:
    """Return random streams on the GPU: every code, scales of seven octaves."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def integers(low: int, high: int, *size: int) -> torch.Tensor:
        kind = {"dtype": torch.uint8, "device": "cuda"}
        return torch.randint(low, high, size, generator=generator, **kind)

    tensors = {}
    for projection in SHAPES:
        records = stream_bytes(projection) // stream_layout.RECORD_BYTES
        stream = integers(0, 256, SIZES.num_experts, records, stream_layout.RECORD_BYTES)
        scales = stream[..., : stream_layout.SCALE_BYTES]
        scales[:] = integers(114, 121, *scales.shape)
        tensors[stream_layout.stream_name(projection)] = stream.reshape(SIZES.num_experts, -1)
    return tensors


def plain_layer(layer: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return ``w13``, its scales, ``w2`` and its scales of a layer, in SGLang's own order."""
    tensors = []
    for projection, (rows, k) in SHAPES.items():
        streams = layer[stream_layout.stream_name(projection)].cpu().numpy()

        def joined(stream: Any, name: str = projection, rows: int = rows, k: int = k) -> Any:
            return stream_layout.join_mxfp4(name, stream, rows, k)

        with ThreadPoolExecutor(8) as pool:
            parts = list(pool.map(joined, streams))
        for which in (0, 1):
            stacked = np.stack([part[which] for part in parts])
            tensors.append(torch.from_numpy(stacked).cuda())
    return tensors


@dataclass(frozen=True)
class Batch:
    """What a layer is given."""

    hidden: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    def become(self, other: Batch) -> None:
        """Take over another batch's values, in place."""
        for name in ("hidden", "ids", "weights"):
            getattr(self, name).copy_(getattr(other, name))


def random_batch(tokens: int, routing: str, seed: int, padding: float = 0.0) -> Batch:
    """Return random tokens on the GPU, with experts drawn by a routing; some slots without one."""
    draw = np.random.default_rng([tokens, seed])
    rank = np.arange(1, SIZES.num_experts + 1)
    power = CONCENTRATION if routing == "concentrated" else 0.0
    popularity = draw.permutation(-power * np.log(rank))
    noise = draw.gumbel(size=(tokens, SIZES.num_experts))
    ids = np.argsort(-(popularity + noise), axis=1)[:, : SIZES.top_k].astype(np.int32)
    ids[draw.random(ids.shape) < padding] = -1
    weights = draw.random(ids.shape, dtype=np.float32)
    weights /= weights.sum(axis=1, keepdims=True)
    hidden = draw.standard_normal((tokens, SIZES.hidden), np.float32)
    return Batch(
        torch.from_numpy(hidden).bfloat16().cuda(),
        torch.from_numpy(ids).cuda(),
        torch.from_numpy(weights).cuda(),
    )


@dataclass
class Recorded:
    """All layers in one graph, and where it reads and writes."""

    graph: torch.cuda.CUDAGraph
    batches: list[Batch]
    results: list[torch.Tensor]


def apply(layer: Prepared, batch: Batch) -> torch.Tensor:
    """Return a layer's result by plain launches."""
    return TritonRung().apply(layer, batch.hidden, batch.ids, batch.weights)


def recorded(layers: list[Prepared], batches: list[Batch]) -> Recorded:
    """Return the graph of all layers, after a run that compiles."""
    apply(layers[0], batches[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [apply(*one) for one in zip(layers, batches, strict=True)]
    return Recorded(graph, batches, results)


def replays_are_equal(layers: list[Prepared], tokens: int, routing: str) -> bool:
    """Return whether a graph, replayed twice with other tokens, gives what plain launches give."""
    static = [random_batch(tokens, routing, 100 + n) for n in range(len(layers))]
    held = recorded(layers, static)
    for seed, padding in ((200, 0.0), (300, 0.3), (400, 1.0), (200, 0.0)):
        for number, batch in enumerate(static):
            batch.become(random_batch(tokens, routing, seed + number, padding))
        wanted = [apply(*one) for one in zip(layers, static, strict=True)]
        for _ in range(2):
            for result in held.results:
                result.fill_(float("nan"))
            held.graph.replay()
            pairs = zip(held.results, wanted, strict=True)
            if not all(torch.equal(got, want) for got, want in pairs):
                return False
    return True


def distance(layer: Prepared, plain: list[torch.Tensor], batch: Batch) -> float:
    """Return the relative L2 distance of a layer's result from the float32 reference."""
    want = expert_layer(batch.hidden.float(), *plain, batch.ids, batch.weights).double()
    return float((apply(layer, batch).double() - want).norm() / want.norm())


def seconds(work: Callable[[], object]) -> float:
    """Return the GPU's seconds for what ``work`` enqueues."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def measured(rounds: int) -> dict[str, Any]:
    """Return all rows, and the copy beside them."""
    decodes = {
        layout: all(
            decodes_exactly(layout, keeps_subnormals=keeps, device="cuda")
            for keeps in (True, False)
        )
        for layout in ("stream/1", "plain/1")
    }
    tensors = [random_layer(number) for number in range(NUM_LAYERS)]
    layers = [TritonRung().prepare(Experts("benchmark", SIZES, one)) for one in tensors]
    plain = plain_layer(tensors[0])
    checks, graphs = {}, {}
    for tokens in TOKENS:
        for routing in ROUTINGS:
            batches = [random_batch(tokens, routing, number) for number in range(NUM_LAYERS)]
            far = distance(layers[0], plain, batches[0])
            checks[tokens, routing] = (far, replays_are_equal(layers, tokens, routing))
            graphs[tokens, routing] = recorded(layers, batches)
    del plain
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_(0, 256)
    target = torch.empty_like(source)
    times: dict[Any, list[float]] = {"copy": [], **{key: [] for key in graphs}}
    for number in range(rounds + 1):  # the first round warms up
        took = {"copy": seconds(lambda: target.copy_(source))}
        took |= {key: seconds(held.graph.replay) for key, held in graphs.items()}
        for key, value in took.items():
            if number:
                times[key].append(value)
    copy = 2 * COPY_BYTES / statistics.median(times["copy"]) / 1e9
    rows = []
    for (tokens, routing), held in graphs.items():
        experts = sum(len(torch.unique(one.ids)) for one in held.batches) / NUM_LAYERS
        num_bytes = experts * sum(stream_bytes(name) for name in SHAPES)
        took_s = statistics.median(times[tokens, routing]) / NUM_LAYERS
        rate = num_bytes / took_s / 1e9
        far, equal = checks[tokens, routing]
        row = Row(
            tokens,
            routing,
            round(experts, 1),
            round(num_bytes / 1e6, 1),
            round(took_s * 1e6, 1),
            round(rate, 1),
            round(rate / copy, 3),
            round(far, 6),
            equal,
        )
        rows.append(asdict(row))
    return {"decodes_exactly": decodes, "copy_gb_per_s": round(copy, 1), "rows": rows}


def failures(result: dict[str, Any]) -> list[str]:
    """Return what a result was judged against for, a line each; empty if nothing."""
    found = [
        f"{layout}: not every code is exact"
        for layout, exact in result["decodes_exactly"].items()
        if not exact
    ]
    for row in result["rows"]:
        name = f"{row['tokens']} tokens, {row['routing']}"
        if not row["relative_l2"] < TOLERANCE:
            found.append(f"{name}: relative L2 {row['relative_l2']} of {TOLERANCE}")
        if not row["replay_equal"]:
            found.append(f"{name}: a replayed graph gave other bits")
        if row["of_copy"] < LEAST_OF_COPY:
            found.append(f"{name}: {row['of_copy']} of the copy, {LEAST_OF_COPY} wanted")
    return found


def table(result: dict[str, Any]) -> str:
    """Return the result for people."""
    columns = ("tokens", "routing", "experts", "weight_mb", "us", "gb_per_s", "of_copy")
    columns += ("relative_l2", "replay_equal")
    lines = [f"{result['device']}: a copy reads and writes {result['copy_gb_per_s']} GB/s"]
    lines.append(" ".join(f"{name:>12}" for name in columns))
    for row in result["rows"]:
        lines.append(" ".join(f"{row[name]!s:>12}" for name in columns))
    return "\n".join(lines)


def markdown(runs: list[dict[str, Any]]) -> str:
    """Return a table of several runs' medians, as it stands in the README beside this file."""
    lines = [
        "| tokens | routing | distinct experts | weights, MB | µs a layer | of the copy |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rows in zip(*(run["rows"] for run in runs), strict=True):
        row = rows[0]
        us, of_copy = (statistics.median(one[name] for one in rows) for name in ("us", "of_copy"))
        cells = (row["tokens"], row["routing"], f"{row['experts']:.0f}", f"{row['weight_mb']:.0f}")
        lines.append("| " + " | ".join(map(str, (*cells, f"{us:.0f}", f"{of_copy:.2f}"))) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measure, judge and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=21, help="timed rounds (default 21)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="also write the JSON to a file")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("not run: no accelerator here", file=sys.stderr)
        return 2
    import triton

    result = {
        "command": f"python benchmarks/triton_moe.py --rounds {args.rounds} --json",
        "device": torch.cuda.get_device_name(),
        "evidence": "E2",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "layers": NUM_LAYERS,
        "rounds": args.rounds,
        **measured(args.rounds),
    }
    text = json.dumps(result, indent=1)
    if args.out:
        args.out.write_text(text + "\n")
    print(text if args.json else table(result))
    found = failures(result)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
