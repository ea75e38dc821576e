"""Say what would go wrong on this machine, and what to do about each thing. Changes nothing.

    sglang-mi300a doctor                          this machine
    sglang-mi300a doctor --model S --tp 4         and whether S is whole and fits it
    sglang-mi300a doctor --probe                  and import torch and SGLang (up to minutes)
    sglang-mi300a doctor --record FILE            also write what was seen, for others to judge
    sglang-mi300a doctor --fixture FILE           judge what another machine recorded

With --model, the memory plan of the preset is judged too. Takes a few seconds, needs no rights,
deletes nothing. A record holds no paths, no names of users, hosts or programs. Exit code 0: nothing
was found that would break or slow the server; 1: something was. All findings, and what each public
report of trouble became: docs/findings.md.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from sglang_mi300a.doctor import findings, fixing, gather, record, software
from sglang_mi300a.doctor.facts import Facts
from sglang_mi300a.doctor.judging import SEVERITIES, Finding
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError
from sglang_mi300a.serving import preset as presets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add = parser.add_argument
    add("--model", "--model-path", type=Path, metavar="DIR", help="what is to be served")
    add(
        "--preset", "--mi300a", default="tuned", metavar="NAME",
        help=f"with which: {', '.join(presets.names())} (tuned)",
    )  # fmt: skip
    add("--tp-size", "--tp", type=int, metavar="N", help="ranks (default: the artifact's, else 4)")
    add(
        "--port", type=int, action="append", metavar="N",
        help=f"that the server is to listen on (default: {gather.DEFAULT_PORT})",
    )  # fmt: skip
    add("--probe", action="store_true", help="also import torch and SGLang, read some of DIR")
    add("--fix", action="store_true", help="also put right what is safe to, and say what was done")
    add("--record", type=Path, metavar="FILE", help="also write what was seen; nothing private")
    add("--fixture", type=Path, metavar="FILE", help="judge a record instead of this machine")
    add("--json", action="store_true", help="for machines")


def run(args: argparse.Namespace) -> int:
    """Gather or read, judge, print."""
    paths: dict[str, Path] = {}
    words: list[str] = []
    if args.fixture is not None:
        _refuse_together(args)
        seen = record.load(args.fixture)
    else:
        question = gather.Question(
            args.model, args.tp_size, args.port or (gather.DEFAULT_PORT,), args.probe, args.preset
        )
        seen, paths = gather.facts(question)
        words = gather.private_words(paths)
    found = findings.judge(seen)
    done = fixing.fix(found, paths) if args.fix else []
    if done:
        seen, paths = gather.facts(question)
        found = findings.judge(seen)
    if args.record is not None:
        _write(args.record, record.render(seen, words))
    if args.json:
        body = {
            "findings": [asdict(one) for one in found],
            "fixed": done,
            "facts": record.as_data(seen, words),
        }
        print(json.dumps(body, indent=1))
    else:
        said = done or ["nothing: what was found is not safe to put right by itself"]
        print(in_words(seen, found, said if args.fix else [], paths))
    return EXIT_JUDGED_AGAINST if findings.is_against(found) else EXIT_OK


def _refuse_together(args: argparse.Namespace) -> None:
    for name in ("model", "tp_size", "port", "probe", "fix", "record"):
        if getattr(args, name):
            raise UserError(
                f"--{name.replace('_', '-')}",
                found="--fixture too",
                allowed="one of them: a record is judged as it is",
                do="leave one out",
            )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            str(path),
            found=f"not writable ({error.strerror})",
            allowed="a file that can be written",
            do="name another",
        ) from error


def in_words(
    seen: Facts, found: Sequence[Finding], done: Sequence[str], paths: Mapping[str, Path]
) -> str:
    """Return the report for people.

    Args:
        seen: The machine.
        found: What was found.
        done: What was put right.
        paths: Real places; those that findings speak of stand in their stead.
    """
    lines = [headline(seen)]
    if (aiter := seen.software.aiter) is not None:
        digest = aiter.lock_source_sha256
        known = software.KNOWN_LOCK_SOURCES.get(digest, "a source not known by its digest")
        lines.append(f"AITER's locks: {aiter.lock_dialect} ({known}, {digest or 'no file'})")
    lines += [f"fixed: {one}" for one in done]
    for one in found:
        lines += [
            "",
            f"{one.severity.upper():<6}  {one.id}",
            f"    seen  {_with_paths(one.seen, paths)}",
            f"    why   {one.why}",
            f"    do    {_with_paths(one.cure, paths)}",
            f"    more  {one.docs}",
        ]
    counts = [
        f"{number} {severity}"
        for severity in SEVERITIES
        if (number := sum(one.severity == severity for one in found))
    ]
    untried = [name for name in ("hip", "torch", "sglang") if _is_untried(seen, name)]
    lines += ["", f"found: {', '.join(counts) or 'nothing'}"]
    if untried:
        lines.append(f"not tried: {', '.join(untried)} (--probe tries what it can)")
    if seen.model is None:
        lines.append("not looked at: the model (--model DIR)")
    return "\n".join(lines)


def headline(seen: Facts) -> str:
    """Return the machine in one line."""
    names = [f"{one.name} ({one.arch})" for one in seen.devices.found]
    devices = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    parts = [devices or "no accelerator", f"Python {seen.software.python}"]
    for name in ("sglang", "torch"):
        parts.append(f"{name} {seen.software.versions.get(name, 'missing')}")
    if seen.software.rocm:
        parts.append(f"ROCm {seen.software.rocm}")
    return "; ".join(parts)


def _is_untried(seen: Facts, name: str) -> bool:
    return bool(getattr(seen.trials, name).status == "not tried")


def _with_paths(text: str, paths: Mapping[str, Path]) -> str:
    """Return a text with real places for ``<names>`` that stand for one."""
    return re.sub(r"<([\w-]+)>", lambda match: str(paths.get(match[1], match[0])), text)
