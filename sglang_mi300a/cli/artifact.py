"""Look at what shard-weights made: what it holds, whether it is intact, how two of them differ.

    sglang-mi300a artifact inspect DIR            what is inside; reads the manifest alone
    sglang-mi300a artifact inspect DIR --probe    and how fast this node reads it (two seconds)
    sglang-mi300a artifact verify DIR             every byte against its checksum
    sglang-mi300a artifact diff DIR OTHER         in what two artifacts differ; reads no weights

`verify` exits with 1 if a byte is not what was written, `diff` if anything differs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_mi300a import artifact_manifest, golden
from sglang_mi300a.artifact_manifest import PARTS, Manifest
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError

if TYPE_CHECKING:
    from sglang_mi300a.weights.comparing import Comparison
    from sglang_mi300a.weights.storage_probe import LoadForecast

_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their flags."""
    verbs = parser.add_subparsers(metavar="VERB", dest="verb", required=True)
    inspect = verbs.add_parser("inspect", help="what is inside")
    inspect.add_argument("directory", type=Path, metavar="DIR")
    inspect.add_argument(
        "--probe", action="store_true", help="also read some of it, and say how long a load takes"
    )
    verify = verbs.add_parser("verify", help="every byte against its checksum")
    verify.add_argument("directory", type=Path, metavar="DIR")
    verify.add_argument("--ranks", type=ranks, metavar="A,B", help="only these ranks (all)")
    verify.add_argument("--quiet", action="store_true", help="no progress bar")
    diff = verbs.add_parser("diff", help="in what two artifacts differ")
    diff.add_argument("directory", type=Path, metavar="DIR")
    diff.add_argument("other", type=Path, metavar="OTHER")
    for verb in (inspect, verify, diff):
        verb.add_argument("--json", action="store_true", help="for machines")


def ranks(text: str) -> tuple[int, ...]:
    """Return the ranks in ``0,2``."""
    return tuple(int(part) for part in text.split(","))


def run(args: argparse.Namespace) -> int:
    """Inspect, verify or compare."""
    _check_is_artifact(args.directory)
    if args.verb == "inspect":
        return _inspect(args)
    if args.verb == "verify":
        return _verify(args)
    _check_is_artifact(args.other)
    return _diff(args)


def _check_is_artifact(directory: Path) -> None:
    if not artifact_manifest.is_artifact(directory):
        raise UserError(
            str(directory),
            found="no directory"
            if not directory.is_dir()
            else f"no {artifact_manifest.NAME} in it",
            allowed="a directory made by shard-weights",
            do="give the --out of a shard-weights run that has finished",
        )


# -- inspect ---------------------------------------------------------------------------------------


def _inspect(args: argparse.Namespace) -> int:
    manifest = artifact_manifest.read(args.directory)
    forecast = _probe(args.directory) if args.probe else None
    if args.json:
        print(json.dumps(_as_data(manifest, forecast), indent=1))
    else:
        print("\n".join(_in_words(args.directory, manifest, forecast)))
    return EXIT_OK


def _probe(directory: Path) -> LoadForecast:
    from sglang_mi300a.weights import storage_probe

    return storage_probe.of_artifact(directory)


def _as_data(manifest: Manifest, forecast: LoadForecast | None) -> dict[str, Any]:
    rows = asdict(manifest)
    del rows["tensors"]
    rows["ranks"] = [
        {
            part: {"num_tensors": len(tensors), "num_bytes": sum(t.size for t in tensors)}
            for part in PARTS
            if (tensors := manifest.of_rank(rank, part))
        }
        for rank in range(manifest.tp)
    ]
    rows["experts"] = {part: dtypes for part in PARTS if (dtypes := _experts(manifest, part))}
    if forecast is not None:
        rows["probe"] = {**asdict(forecast), "gb_per_s": forecast.probe.gb_per_s}
    return rows


def _experts(manifest: Manifest, part: str) -> list[str]:
    """Return the element types of one part's expert tensors."""
    tensors = (t for t in manifest.tensors if t.part == part and ".mlp.experts." in t.name)
    return sorted({tensor.dtype for tensor in tensors})


def _in_words(directory: Path, m: Manifest, forecast: LoadForecast | None) -> Iterable[str]:
    yield f"{directory}: {m.architecture} for TP {m.tp}, EP {m.ep}"
    yield f"  made by        sglang-mi300a {m.tool_version}, parameters of SGLang {m.sglang}"
    yield f"  expert layout  {m.layout}"
    yield f"  KV heads       {m.heads} where ranks outnumber them"
    yield f"  visual tower   {'left out' if m.text_only else 'inside'}"
    yield f"  draft (MTP)    {_draft_in_words(m)}"
    for rank in range(m.tp):
        sizes = [
            f"{part} {sum(t.size for t in tensors) / 1e9:.3f} GB in {len(tensors)} tensors"
            for part in PARTS
            if (tensors := m.of_rank(rank, part))
        ]
        yield f"  rank {rank:<10}{'; '.join(sizes)}"
    total = sum(file.size for file in m.files)
    yield f"  files          {len(m.files)} of weights, {total / 1e9:.3f} GB; copied: " + ", ".join(
        file.name for file in m.copied
    )
    source_bytes = sum(file.size for file in m.source_files)
    yield (
        f"  source         {len(m.source_files)} files, {source_bytes / 1e9:.3f} GB; "
        f"{m.source_num_tensors} tensors with checksum {m.source_data_xxh3_128}"
    )
    if (directory / golden.NAME).is_file():
        yield f"  golden logits  {golden.NAME}; `sglang-mi300a golden --show` reads it"
    if m.neutralised_blocks:
        yield f"  rewritten      scales of {m.neutralised_blocks} all-zero blocks"
    if forecast is not None:
        probe = forecast.probe
        yield (
            f"  read probe     {probe.gb_per_s:.2f} GB/s ({probe.num_bytes / 1e9:.2f} GB in "
            f"{probe.seconds:.1f} s, {'direct' if probe.is_direct else 'through the page cache'})"
        )
        yield (
            f"  expect         {forecast.rank_seconds:.0f} s for one rank alone, "
            f"{forecast.node_seconds:.0f} s for all at once if the storage gives them no more"
        )


def _draft_in_words(manifest: Manifest) -> str:
    if not manifest.has_draft:
        return "left out, or not in the checkpoint"
    is_mxfp4 = "U8" in _experts(manifest, "draft")
    experts = "MXFP4" if is_mxfp4 else "/".join(_experts(manifest, "draft"))
    note = ", re-quantised from the checkpoint's floats" if manifest.draft_requantised else ""
    return f"inside, experts {experts}{note}"


# -- verify ----------------------------------------------------------------------------------------


def _verify(args: argparse.Namespace) -> int:
    from sglang_mi300a.weights import artifact as artifacts
    from sglang_mi300a.weights.progress_bar import ProgressBar

    try:
        found = artifacts.read(args.directory)
    except UserError as damaged:  # there is a manifest, and it is not as it was written
        return _tell(args, 0, 0, 0.0, (damaged,))
    chosen = range(found.manifest.tp) if args.ranks is None else args.ranks
    if not set(chosen) <= set(range(found.manifest.tp)):
        raise UserError(
            "--ranks",
            found=",".join(map(str, chosen)),
            allowed=f"ranks 0 to {found.manifest.tp - 1} of {args.directory}",
            do="name ranks of the artifact",
        )
    begin = time.perf_counter()
    total = artifacts.num_bytes(found, chosen)
    wanted = False if args.quiet or args.json else None
    with ProgressBar("verify", total, wanted=wanted) as bar:
        result = artifacts.verify(found, ranks=chosen, advance=bar.advance)
    seconds = time.perf_counter() - begin
    problems = (*result.problems, *_golden_problems(args.directory, found.manifest))
    return _tell(args, result.num_bytes, result.num_tensors, seconds, problems)


def _golden_problems(directory: Path, manifest: Manifest) -> Iterable[UserError]:
    try:
        values = golden.read(directory)
        if values is not None:
            golden.check_source(values, manifest.source_files, directory)
    except UserError as problem:
        yield problem


def _tell(
    args: argparse.Namespace,
    num_bytes: int,
    num_tensors: int,
    seconds: float,
    problems: tuple[UserError, ...],
) -> int:
    if args.json:
        rows = [
            {"where": p.where, "found": p.found, "allowed": p.allowed, "do": p.do} for p in problems
        ]
        body = {
            "directory": str(args.directory),
            "num_bytes": num_bytes,
            "num_tensors": num_tensors,
            "seconds": seconds,
            "problems": rows,
        }
        print(json.dumps(body, indent=1))
    else:
        for problem in problems:
            print(problem)
        verdict = f"{len(problems)} problems" if problems else "intact"
        print(
            f"{args.directory}: {verdict}; {num_tensors} tensors, {num_bytes / 1e9:.3f} GB read in "
            f"{seconds:.1f} s"
        )
    return EXIT_JUDGED_AGAINST if problems else EXIT_OK


# -- diff ------------------------------------------------------------------------------------------


def _diff(args: argparse.Namespace) -> int:
    from sglang_mi300a.weights.comparing import compare

    found = compare(artifact_manifest.read(args.directory), artifact_manifest.read(args.other))
    if args.json:
        body = {**asdict(found), "same_weights": found.same_weights, "is_equal": found.is_equal}
        print(json.dumps(body, indent=1))
    else:
        print("\n".join(_difference_in_words(found)))
    return EXIT_OK if found.is_equal else EXIT_JUDGED_AGAINST


def _difference_in_words(found: Comparison) -> Iterable[str]:
    for change in found.facts:
        yield f"{change.what}: {change.left} | {change.right}"
    kinds = [f"{c.what} ({c.left} | {c.right})" for c in found.other_kind]
    for title, names in (
        ("only in the first", found.only_left),
        ("only in the second", found.only_right),
        ("of another type or shape", kinds),
        ("with other bytes", found.other_content),
        ("equal, but in another place", found.elsewhere),
    ):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"{len(names)} tensors {title}: {', '.join(names[:_SHOWN])}{more}"
    if found.is_equal:
        yield "the same artifact"
    else:
        yield "the same weights" if found.same_weights else "other weights"
