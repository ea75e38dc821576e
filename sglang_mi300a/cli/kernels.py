"""The compiled gfx942 kernels: what they are, whether they are right here, and how fast.

    sglang-mi300a kernels list                  every kernel: registers, LDS, spills
    sglang-mi300a kernels inspect NAME          one kernel: arguments, compiler, flags, digest
    sglang-mi300a kernels selftest              one small expert layer on every rung, compared
    sglang-mi300a kernels bench                 the expert layer timed on this device, by its parts

`list` and `inspect` read the code objects and need no GPU.

`selftest` runs what every rank runs before it loads a model, at the sizes of one rank of
Qwen3.5-397B-A17B at TP 4 unless told otherwise. It exits with 1 if a rung that can run here gives a
wrong result, or if on gfx942 the compiled kernels cannot run.

`bench` times each launch of an expert layer for some batches and both tiles, weights not cached, in
under two minutes; beside that the first stage's loads alone, its decode alone, and the same stage
on weights in a checkpoint's order. Predictions (E3) stand beside. It ends with what this says to
the questions that the cost model leaves open, and with 1 if the model does not hold here.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sglang_mi300a import code_objects, settings
from sglang_mi300a import device as devices
from sglang_mi300a.code_objects import BuildRecord, CodeObject, Kernel
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError
from sglang_mi300a.moe.kernels import candidates, prediction
from sglang_mi300a.moe.kernels.prediction import Shape
from sglang_mi300a.weights.progress_bar import ProgressBar

BENCH_TOKENS = (1, 4, 16, 64, 337, 1024, 2048)
SAMPLES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their flags."""
    verbs = parser.add_subparsers(metavar="VERB", dest="verb", required=True)
    listed = verbs.add_parser("list", help="every kernel and what it takes of the hardware")
    listed.add_argument("--json", action="store_true", help="for machines")
    listed.set_defaults(run_verb=_list)
    inspect = verbs.add_parser("inspect", help="one kernel: arguments, compiler, flags, digest")
    inspect.add_argument("name", help="a kernel of `kernels list`")
    inspect.add_argument("--json", action="store_true", help="for machines")
    inspect.set_defaults(run_verb=_inspect)
    selftest = verbs.add_parser("selftest", help="one small expert layer on every rung")
    add = selftest.add_argument
    add("--hidden", type=int, default=4096, metavar="N", help="hidden size (4096)")
    add("--neurons", type=int, default=256, metavar="N", help="of an expert on a rank (256)")
    add("--layout", default="stream/1", metavar="ID", help="layout of the experts (stream/1)")
    add("--json", action="store_true", help="for machines")
    selftest.set_defaults(run_verb=_selftest)
    bench = verbs.add_parser("bench", help="the expert layer timed on this device, by its parts")
    add_layer_arguments(bench)
    bench.add_argument(
        "--tokens", type=int, nargs="+", default=list(BENCH_TOKENS), metavar="M",
        help=f"batches ({' '.join(map(str, BENCH_TOKENS))})",
    )  # fmt: skip
    bench.add_argument("--json", action="store_true", help="for machines")
    bench.set_defaults(run_verb=_bench)


def add_layer_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that say which layer is timed, and how often."""
    names = [shape.name for shape in prediction.SHAPES]
    add = parser.add_argument
    add("--shape", choices=names, default="TP4", help="how the layer is cut over ranks (TP4)")
    add("--weights", choices=("subnormals", "bf8"), help="decode (default: this device's)")
    add("--samples", type=int, default=SAMPLES, metavar="N", help=f"timings of each ({SAMPLES})")


def shape_named(name: str) -> Shape:
    """Return a shape by its name."""
    return next(shape for shape in prediction.SHAPES if shape.name == name)


def timed_device(what: str, would: str) -> Any:
    """Return the device that kernels are timed on.

    Args:
        what: The command.
        would: What it would do on one.

    Raises:
        UserError: This machine has none.
    """
    if all(one.arch != code_objects.ARCH for one in devices.accelerators()):
        raise UserError(
            what,
            found=f"no {code_objects.ARCH} device on this machine",
            allowed="a node with MI300A, its ROCm and a ROCm build of torch",
            do=f"run it there; it would {would}",
        )
    torch: Any = importlib.import_module("torch")
    return torch.device("cuda", 0)


def run(args: argparse.Namespace) -> int:
    """Run a verb."""
    code: int = args.run_verb(args)
    return code


# -- list, inspect --------------------------------------------------------------------------------


def _shipped() -> Iterator[tuple[str, CodeObject, BuildRecord]]:
    folder = code_objects.compiled_folder("code_objects")
    ending = f".{code_objects.ARCH}.co"
    for path in sorted(folder.glob(f"*{ending}")):
        room = path.name.removesuffix(ending)
        yield room, code_objects.load(room), code_objects.load_from(folder, room)[1]


def _budget(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "vgprs": kernel.vgprs,
        "agprs": kernel.agprs,
        "sgprs": kernel.sgprs,
        "lds_bytes": kernel.lds_bytes,
        "spills": kernel.vgpr_spills + kernel.sgpr_spills,
        "scratch_bytes": kernel.scratch_bytes,
        "threads": kernel.max_threads,
    }


def _object(code: CodeObject, record: BuildRecord) -> dict[str, Any]:
    return {
        "file": code.where,
        "sha256": code.digest,
        "arch": record.arch,
        "compiler": record.compiler,
        "flags": list(record.flags),
    }


def _list(args: argparse.Namespace) -> int:
    rooms = [
        {
            "room": room,
            **_object(code, record),
            "kernels": [_budget(kernel) for _, kernel in sorted(code.kernels.items())],
        }
        for room, code, record in _shipped()
    ]
    if args.json:
        print(json.dumps(rooms, indent=1))
        return EXIT_OK
    for room in rooms:
        print(f"{room['room']}: {room['arch']}, {room['compiler']}, sha256 {room['sha256'][:16]}")
        print(f"  {'kernel':<32} {'VGPR':>4} {'SGPR':>4} {'LDS':>6} {'spills':>6} {'threads':>7}")
        for row in room["kernels"]:
            print(
                f"  {row['name']:<32} {row['vgprs']:>4} {row['sgprs']:>4} {row['lds_bytes']:>6} "
                f"{row['spills']:>6} {row['threads']:>7}"
            )
    return EXIT_OK


def _inspect(args: argparse.Namespace) -> int:
    everything = list(_shipped())
    holding = [one for one in everything if args.name in one[1].kernels]
    if not holding:
        names = sorted(name for _, code, _ in everything for name in code.kernels)
        raise UserError(
            f"kernel {args.name}",
            found="no such kernel",
            allowed=", ".join(names),
            do="name one of `sglang-mi300a kernels list`",
        )
    room, code, record = holding[0]
    kernel = code.kernels[args.name]
    facts = {
        "room": room,
        **_budget(kernel),
        "arguments": [asdict(one) for one in kernel.arguments],
        "code_object": _object(code, record),
    }
    if args.json:
        print(json.dumps(facts, indent=1))
        return EXIT_OK
    for name, value in facts.items():
        if name == "arguments":
            print("arguments")
            for one in kernel.arguments:
                print(f"  {one.offset_bytes:>4} {one.size_bytes:>2} B  {one.kind:<14} {one.name}")
        elif name == "code_object":
            for key, text in facts["code_object"].items():
                print(f"{key:<14} {' '.join(text) if isinstance(text, list) else text}")
        else:
            print(f"{name:<14} {value}")
    return EXIT_OK


# -- selftest -------------------------------------------------------------------------------------


def _selftest(args: argparse.Namespace) -> int:
    torch: Any = importlib.import_module("torch")
    from sglang_mi300a.moe import ladder
    from sglang_mi300a.moe.rungs import ExpertSizes

    target = devices.target_device(
        cpu_engine=settings.cpu_engine_asked(), found=devices.accelerators()
    )
    device = torch.device("cuda" if target == "gfx942" else "cpu")
    sizes = ExpertSizes(ladder.SELF_TEST_EXPERTS, args.hidden, args.neurons, 2, args.layout)
    rows = ladder.examine(device, sizes, ladder.makers(1024, torch.bfloat16))
    must_run = {"hip"} if target == "gfx942" else set()
    bad = [row for row in rows if row.is_wrong or (row.rung in must_run and not row.passed)]
    if args.json:
        print(
            json.dumps({"device": str(device), "rungs": [row.report() for row in rows]}, indent=1)
        )
    else:
        print(f"expert layer, hidden {args.hidden}, {args.neurons} neurons, on {device}")
        for row in rows:
            print(f"  {row.rung:<7} {row.in_words()}")
    return EXIT_JUDGED_AGAINST if bad else EXIT_OK


# -- bench ----------------------------------------------------------------------------------------


def _bench(args: argparse.Namespace) -> int:
    tokens = sorted(set(args.tokens))
    if args.samples < 1 or tokens[0] < 1 or tokens[-1] > candidates.TOKENS[-1]:
        raise UserError(
            "kernels bench",
            found=f"batches {tokens}, {args.samples} samples",
            allowed=f"batches of 1 to {candidates.TOKENS[-1]} tokens, 1 sample or more",
            do="correct --tokens or --samples",
        )
    device = timed_device(
        "kernels bench",
        f"time sorting, both stages, the slot sum, the first stage's loads alone, its decode alone "
        f"and its checkpoint order: {args.shape}, batches of {', '.join(map(str, tokens))} tokens, "
        f"tiles of {' and '.join(map(str, candidates.TILES))}, {args.samples} samples each",
    )
    from sglang_mi300a.moe import hip_rung, layer_timing, part_timing

    shape = shape_named(args.shape)
    decode = args.weights or hip_rung.HipRung(1).decode(device)
    weights = layer_timing.random_weights(shape, decode, device)
    timer = layer_timing.EventTimer(device)
    times = []
    with ProgressBar("timing", 2 * len(tokens), unit=" batches") as bar:
        for num_tokens in tokens:
            for tile in candidates.TILES:
                times.append(
                    part_timing.time_parts(weights, decode, num_tokens, tile, timer, args.samples)
                )
                bar.advance(1)
    answers = part_timing.answers(times)
    if args.json:
        rows = [
            asdict(one)
            | {
                "layer_us": one.layer_us,
                "tb_s": {p: one.tb_s(p) for p in ("gate_up", "loads_only")},
            }
            for one in times
        ]
        found = {
            "device": str(device), "shape": shape.name, "weights": decode,
            "samples": args.samples, "batches": rows, "answers": [asdict(one) for one in answers],
        }  # fmt: skip
        print(json.dumps(found, indent=1))
    else:
        _show(times, answers, shape, decode)
    return EXIT_OK if all(one.holds for one in answers) else EXIT_JUDGED_AGAINST


def _show(times: list[Any], answers: list[Any], shape: Shape, decode: str) -> None:
    print(f"expert layer, {shape.name}, decode {decode}; us measured (predicted, E3)")
    print(
        f"{'M':>5} {'tile':>4} {'layer':>7} {'sort':>6} {'gate_up':>13} {'down':>13} {'sum':>6} "
        f"{'loads only':>13} {'decode only':>13} {'checkpoint':>13} {'TB/s':>5}"
    )
    for one in times:

        def cell(part: str, one: Any = one) -> str:
            if part not in one.measured_us:
                return "-"
            return f"{one.measured_us[part]:.1f} ({one.predicted_us[part]:.0f})"

        print(
            f"{one.num_tokens:>5} {one.tile:>4} {one.layer_us:>7.1f} "
            f"{one.measured_us['sort']:>6.1f} {cell('gate_up'):>13} {cell('down'):>13} "
            f"{one.measured_us['sum_slots']:>6.1f} {cell('loads_only'):>13} "
            f"{cell('decode_only'):>13} {cell('checkpoint'):>13} {one.tb_s('gate_up'):>5.2f}"
        )
    print()
    for answer in answers:
        verdict = "" if answer.holds else "  the model does not hold here"
        print(f"{answer.question}\n    {answer.measured}, predicted {answer.predicted}{verdict}")
