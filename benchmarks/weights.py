"""What the loader and ``shard-weights`` cost beside a bare read and a bare copy of the same bytes.

    python benchmarks/weights.py --dir SCRATCH [--json] [--out benchmarks/results/weights.json]

A checkpoint of random bytes is made in the true tensor shapes of Qwen3.5-397B-A17B: all 512 experts
of a layer and the whole vocabulary, two layers instead of sixty. Ratios of wall times on one
machine and one disk are what is measured; seconds are given for orientation.

* Cold: before every pass what the page cache holds of the files is dropped and read back by
  ``mincore``; above 1 % the run is void.
* raw: the artifact's files one after another in blocks of a loader's read, with the same flags
  (direct where the file system takes it), into a buffer of ordinary memory, as ``dd`` does. Beside
  it the same into huge pages, as the loader's buffers are: what one reader gets at best. If the
  middle half of the raw passes spreads by more than 15 % of their median: noisy, no verdict.
* load: each of the four ranks in turn into parameters in host memory, checksums on, as served.
* copy: the artifact's files by a plain loop of 1 MiB reads and writes, each file synced.
* peers: other loaders read the same files into the same parameters, if they are installed. Beside
  the ratio of medians stands that of each round, ours over theirs: what slows a disk for a minute
  slows both.

Every pass is a process of its own; times start after its imports and a load of one small file.
Passes alternate, and each round of loads has an order of its own, drawn with a fixed seed: storage
that keeps what was read before favours one reader after a certain other. Before each, another
process fills 8 GiB and ends: a virtual machine must ask its host for memory not used for a while,
and a reader with large buffers would wait for that.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from sglang_mi300a import artifact_manifest  # noqa: E402
from sglang_mi300a.weights import page_cache  # noqa: E402
from sglang_mi300a.weights.loader_options import LoaderOptions  # noqa: E402
from sglang_mi300a.weights.reading import Files, Ring  # noqa: E402
from tests.weights import checkpoints  # noqa: E402
from tests.weights.residency import resident_bytes  # noqa: E402

TP = 4
JOBS = 2
MAX_RESIDENT = 0.01
NOISY = 0.15
FILE_BYTES = 4 << 30
BARS = {
    "load_ratio_vs_raw": 1 / 0.90,
    "shard_ratio_vs_copy": 1 / 0.60,
    "extra_rss_mib_per_rank": 1024.0,
    "cache_left_fraction": 0.02,
    "shard_peak_rss_mib": 4096.0,
    "source_reads_per_byte": 1.0,
}
PEER_BAR = 1.0
"""Of our wall time over a peer's, the median of all rounds."""
FILL_MEMORY = "import numpy; numpy.ones(1 << 30)"
PEERS = {
    "safetensors": "safetensors",
    "fastsafetensors": "fastsafetensors",
    "runai": "runai-model-streamer",
}


# -- the data --------------------------------------------------------------------------------------


def make_checkpoint(directory: Path, num_layers: int, num_experts: int) -> int:
    """Write the checkpoint; return the bytes of its tensors."""
    text = {
        **checkpoints.REAL_TEXT,
        "num_hidden_layers": num_layers,
        "full_attention_interval": 2,
        "num_experts": num_experts,
        "mtp_num_hidden_layers": 0,
    }
    shapes = checkpoints.shapes(text, mtp=False)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(checkpoints.config(text)))
    names = list(shapes)
    sizes = {n: checkpoints.BYTES[d] * int(np.prod(s)) for n, (d, s) in shapes.items()}
    groups: list[list[str]] = [[]]
    for name in names:
        if groups[-1] and sum(sizes[n] for n in groups[-1]) + sizes[name] > FILE_BYTES:
            groups.append([])
        groups[-1].append(name)
    block = np.random.default_rng(0).integers(0, 256, 64 << 20, dtype=np.uint8)
    scales = np.random.default_rng(1).integers(100, 150, 1 << 20, dtype=np.uint8)
    weight_map = {}
    for number, group in enumerate(groups, start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        weight_map.update(dict.fromkeys(group, file))
        with (directory / file).open("wb") as out:
            out.write(_header(group, shapes, sizes))
            for name in group:
                source = scales if name.endswith("_scale") else block
                left = sizes[name]
                while left:
                    chunk = source[: min(left, len(source))]
                    out.write(chunk.data)
                    left -= len(chunk)
            out.flush()
            os.fsync(out.fileno())
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(sizes.values())


def _header(names: list[str], shapes: checkpoints.Shapes, sizes: dict[str, int]) -> bytes:
    entries: dict[str, Any] = {}
    at = 0
    for name in names:
        dtype, shape = shapes[name]
        offsets = [at, at + sizes[name]]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        at += sizes[name]
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


# -- one pass, in a process of its own -------------------------------------------------------------


def _work(name: str, source: Path, target: Path) -> dict[str, float]:
    """Run one pass; return seconds, and memory beyond what was there before."""
    run = {
        "raw": lambda s, t: _raw(s, huge_pages=False),
        "raw-huge": lambda s, t: _raw(s, huge_pages=True),
        "copy": _copy,
        "shard": _shard,
        "load-full": lambda s, t: _load(s, "full"),
        "load-off": lambda s, t: _load(s, "off"),
        "safetensors": lambda s, t: _peer(s, _safetensors),
        "fastsafetensors": lambda s, t: _peer(s, _fastsafetensors),
        "runai": lambda s, t: _peer(s, _runai),
    }[name]
    return run(source, target)


def _timed(work: Callable[[], None]) -> dict[str, float]:
    before = _status_bytes("VmRSS")
    begin, cpu = time.perf_counter(), time.process_time()
    work()
    return {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - cpu,
        "extra_rss_bytes": _status_bytes("VmHWM") - before,
    }


def _status_bytes(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def _weight_files(artifact: Path) -> list[Path]:
    return [artifact / file.name for file in artifact_manifest.read(artifact).files]


def _raw(artifact: Path, *, huge_pages: bool) -> dict[str, float]:
    options = LoaderOptions()
    read_bytes = Ring(options.ring_bytes // options.threads, 1).max_read_bytes
    memory = mmap.mmap(-1, 2 * read_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
    buffer = np.frombuffer(memory, dtype=np.uint8)
    files_read = _weight_files(artifact)

    def work() -> None:
        with Files() as files:
            for path in files_read:
                size = path.stat().st_size
                for at in range(0, size, read_bytes):
                    files.read(path, at, min(read_bytes, size - at), buffer)

    return _timed(work)


def _copy(artifact: Path, target: Path) -> dict[str, float]:
    files = _weight_files(artifact)
    target.mkdir()

    def work() -> None:
        for number, path in enumerate(files):
            with (
                path.open("rb", buffering=0) as source,
                (target / str(number)).open("wb", buffering=0) as out,
            ):
                while block := source.read(1 << 20):
                    out.write(block)
                os.fsync(out.fileno())

    return _timed(work)


def _shard(model: Path, out: Path) -> dict[str, float]:
    from sglang_mi300a.weights.shard import shard_weights

    reports = []

    def work() -> None:
        reports.append(shard_weights(model, out, tp=TP, jobs=JOBS))

    result = _timed(work)
    result["peak_rss_bytes"] = _status_bytes("VmHWM")
    result["num_bytes_read"] = reports[0].num_bytes_read
    return result


def _parameters(artifact: Path) -> dict[str, Any]:
    """Return one rank's parameters, resident; all ranks' have the same shapes."""
    import torch

    from sglang_mi300a.weights.parameter_sink import TORCH_DTYPES

    torch.set_num_threads(1)
    return {
        t.name: torch.nn.Parameter(
            torch.zeros(t.shape, dtype=TORCH_DTYPES[t.dtype]), requires_grad=False
        )
        for t in artifact_manifest.read(artifact).of_rank(0, "target")
    }


def _load(directory: Path, verify: str) -> dict[str, float]:
    from sglang_mi300a.weights import artifact as artifacts
    from sglang_mi300a.weights import filling
    from sglang_mi300a.weights.parameter_sink import ParameterSink
    from sglang_mi300a.weights.steps import Stored

    parameters = _parameters(directory)
    options = LoaderOptions.from_mapping({"verify": verify})

    def work() -> None:
        found = artifacts.read(directory)
        for rank in range(TP):
            tensors = artifacts.check_files(found, rank, "target")
            stored = {t.name: Stored(t.name, t.dtype, t.shape) for t in tensors}
            filling.from_artifact(found, tensors, ParameterSink(parameters, stored), options)
            page_cache.drop({found.path(tensor) for tensor in tensors})

    return _timed(work)


def _peer(directory: Path, tensors_of: Callable[[list[Path]], Iterator[Any]]) -> dict[str, float]:
    import torch
    from safetensors.torch import save_file

    parameters = _parameters(directory)
    files = _weight_files(directory)
    by_rank = [[p for p in files if p.parent.name == f"rank-{rank}"] for rank in range(TP)]
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.safetensors"
        save_file({"one": torch.zeros(1)}, small)
        next(iter(tensors_of([small])))  # its own late imports and pools

    def work() -> None:
        for of_rank in by_rank:
            for name, tensor in tensors_of(of_rank):
                parameters[name].data.copy_(tensor)

    return _timed(work)


def _safetensors(paths: list[Path]) -> Iterator[Any]:
    from safetensors import safe_open

    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                yield name, file.get_tensor(name)


def _fastsafetensors(paths: list[Path]) -> Iterator[Any]:
    from fastsafetensors import fastsafe_open

    for path in paths:  # one at a time, as SGLang's own load format uses it
        with fastsafe_open(filenames=[str(path)], nogds=True, device="cpu") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                yield name, file.get_tensor(name)


def _runai(paths: list[Path]) -> Iterator[Any]:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files([str(path) for path in paths])
        yield from streamer.get_tensors()


# -- all passes ------------------------------------------------------------------------------------


class Void(Exception):
    """A pass that cannot count."""


class Bench:
    """Runs passes on cold files."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.seconds: dict[str, list[float]] = {}
        self.cpu_seconds: dict[str, list[float]] = {}
        self.extra_rss: dict[str, list[float]] = {}
        self.cache_left: dict[str, list[float]] = {}
        self.cold: list[float] = []

    def run(self, name: str, source: Path, files: list[Path], target: Path) -> dict[str, float]:
        """Run one pass and note its figures."""
        page_cache.drop(files)
        size = sum(path.stat().st_size for path in files)
        resident = sum(map(resident_bytes, files)) / size
        if resident > MAX_RESIDENT:
            raise Void(f"{resident:.1%} of {size} bytes are still in the page cache")
        self.cold.append(resident)
        subprocess.run([sys.executable, "-c", FILL_MEMORY], check=True)
        command = [sys.executable, __file__, "--work", name, str(source), str(target)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise Void(f"{name}: {ran.stderr[-2000:]}")
        row: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
        left = sum(map(resident_bytes, files)) / size
        self.seconds.setdefault(name, []).append(row["seconds"])
        self.cpu_seconds.setdefault(name, []).append(row["cpu_seconds"])
        self.extra_rss.setdefault(name, []).append(row["extra_rss_bytes"])
        self.cache_left.setdefault(name, []).append(left)
        self.say(f"{name:<16} {row['seconds']:7.2f} s  {size / 1e9 / row['seconds']:5.2f} GB/s")
        return row

    def median(self, name: str) -> float:
        """Return the median wall time of a pass."""
        return statistics.median(self.seconds[name])

    def ours_over(self, peer: str) -> list[float]:
        """Return our loader's wall time over a peer's in each round."""
        pairs = zip(self.seconds["load-full"], self.seconds[peer], strict=True)
        return [ours / theirs for ours, theirs in pairs]


def installed_peers() -> dict[str, str]:
    """Return name and version of the other loaders that are here."""
    found = {}
    for name, distribution in PEERS.items():
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def measure(scratch: Path, args: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Make the data, run every pass, and return the result."""
    model, artifact, copy = scratch / "checkpoint", scratch / "artifact", scratch / "copy"
    say("making the checkpoint")
    source_bytes = make_checkpoint(model, args.layers, args.experts)
    bench = Bench(say)
    source_files = sorted(model.glob("*.safetensors"))
    shard_rows = []
    for number in range(args.passes):
        shutil.rmtree(artifact, ignore_errors=True)
        shard_rows.append(bench.run("shard", model, source_files, artifact))
        files = _weight_files(artifact)
        bench.run("copy", artifact, files, copy)
        shutil.rmtree(copy)
        say(f"pass {number + 1} of {args.passes} of converting done")
    output_bytes = sum(path.stat().st_size for path in files)
    peers = installed_peers()
    names = ["raw", "raw-huge", "load-full", "load-off", *peers]
    order = random.Random(0)
    for number in range(args.rounds):
        order.shuffle(names)
        for name in names:
            bench.run(name, artifact, files, copy)
        say(f"round {number + 1} of {args.rounds} of loading done")
    lower, raw, upper = statistics.quantiles(bench.seconds["raw"], n=4, method="inclusive")
    spread = (upper - lower) / raw
    load = bench.median("load-full")
    result: dict[str, Any] = {
        "load_ratio_vs_raw": load / raw,
        "load_ratio_vs_raw_in_huge_pages": load / bench.median("raw-huge"),
        "shard_ratio_vs_copy": bench.median("shard") / bench.median("copy"),
        "cpu_seconds_per_gb": {
            name: statistics.median(bench.cpu_seconds[name]) / (output_bytes / 1e9)
            for name in ("shard", "copy", "load-full")
        },
        "extra_rss_mib_per_rank": max(bench.extra_rss["load-full"]) / 2**20,
        "cache_left_fraction": max(bench.cache_left["load-full"]),
        "shard_peak_rss_mib": max(row["peak_rss_bytes"] for row in shard_rows) / 2**20,
        "source_reads_per_byte": max(row["num_bytes_read"] for row in shard_rows) / source_bytes,
        "verify_cost_fraction": load / bench.median("load-off") - 1,
        "peers": {
            name: {
                "version": version,
                "ratio_vs_raw": bench.median(name) / bench.median("raw"),
                "ours_over_theirs": statistics.median(bench.ours_over(name)),
                "ours_over_theirs_by_round": bench.ours_over(name),
                "extra_rss_mib": max(bench.extra_rss[name]) / 2**20,
                "cache_left_fraction": max(bench.cache_left[name]),
            }
            for name, version in peers.items()
        },
    }
    result["raw_spread"] = spread
    return {
        **result,
        "verdict": verdict(result),
        "bars": {**BARS, "ours_over_theirs": PEER_BAR},
        "resident_before_max": max(bench.cold),
        "artifact_bytes": output_bytes,
        "source_bytes": source_bytes,
        "seconds": bench.seconds,
        "tp": TP,
        "jobs": JOBS,
        "layers": args.layers,
        "experts": args.experts,
        "passes": args.passes,
        "rounds": args.rounds,
        "cpus": len(os.sched_getaffinity(0)),
        "evidence": "E0",
        "command": f"python benchmarks/weights.py --dir SCRATCH "
        f"--passes {args.passes} --rounds {args.rounds}",
    }


def verdict(result: dict[str, Any]) -> str:
    """Return what is over its bar, or that nothing is, or that the run is too noisy to tell."""
    if result["raw_spread"] > NOISY:
        return "noisy"
    over = [key for key, bar in BARS.items() if round(result[key], 4) > round(bar, 4)]
    over += [n for n, peer in result["peers"].items() if peer["ours_over_theirs"] > PEER_BAR]
    return f"over: {', '.join(over)}" if over else "within all bars"


def markdown(result: dict[str, Any]) -> str:
    """Return the tables of a result that the README shows."""
    rows = [
        ("a plain read into ordinary memory, as `dd` makes it", "load_ratio_vs_raw"),
        ("a plain read into huge pages", "load_ratio_vs_raw_in_huge_pages"),
    ]
    lines = ["| wall time of | over that of | median | by round |", "| --- | --- | --- | --- |"]
    lines += [f"| the loader | {theirs} | {result[key]:.2f} | |" for theirs, key in rows]
    for name, peer in result["peers"].items():
        by_round = peer["ours_over_theirs_by_round"]
        lines.append(
            f"| the loader | {PEERS[name]} {peer['version']} | {peer['ours_over_theirs']:.2f} | "
            f"{min(by_round):.2f} to {max(by_round):.2f} |"
        )
    shard = f"`shard-weights`, {result['jobs']} jobs"
    lines.append(f"| {shard} | a copy of its output | {result['shard_ratio_vs_copy']:.2f} | |")
    ours = result["extra_rss_mib_per_rank"] / 1024
    theirs = [peer["extra_rss_mib"] / 1024 for peer in result["peers"].values()]
    cpu = result["cpu_seconds_per_gb"]
    size = result["artifact_bytes"] / 1e9
    lines += [
        "",
        f"{size:.1f} GB, {size / result['tp']:.1f} GB a rank. The loader checks every byte and "
        f"needs {ours:.2f} GiB where the peers take {min(theirs):.1f} to {max(theirs):.1f}.",
        f"Of a core it takes {cpu['load-full']:.2f} s a GB, `shard-weights` {cpu['shard']:.2f} s, "
        f"the copy {cpu['copy']:.2f} s.",
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dir", type=Path, help="where to put 35 GB; on the disk to be measured")
    parser.add_argument("--passes", type=int, default=3, help="of converting and copying")
    parser.add_argument("--rounds", type=int, default=9, help="of loading by each loader")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--experts", type=int, default=512)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="also write the JSON there")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        name, source, target = args.work
        print(json.dumps(_work(name, Path(source), Path(target))))
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="bench-weights-", dir=args.dir))
    try:
        result = measure(scratch, args, lambda line: print(line, file=sys.stderr, flush=True))
    except Void as void:
        print(f"void: {void}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(scratch)
    text = json.dumps(result, indent=1, sort_keys=True)
    if args.out:
        args.out.write_text(text + "\n")
    if args.json:
        print(text)
    else:
        for key in (
            *BARS,
            "load_ratio_vs_raw_in_huge_pages",
            "verify_cost_fraction",
            "cpu_seconds_per_gb",
            "peers",
            "verdict",
            "raw_spread",
        ):
            value = result[key]
            print(f"{key:<24} {round(value, 4) if isinstance(value, float) else value}")
    return 0 if result["verdict"] == "within all bars" else 1


if __name__ == "__main__":
    raise SystemExit(main())
