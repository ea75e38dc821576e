"""What this package puts into SGLang, and whether it fits.

    sglang-mi300a hooks list                    each seam with its reason and when it can go
    sglang-mi300a hooks check                   judge the installed SGLang
    sglang-mi300a hooks check --sglang WHEEL    judge another one, without running it
    sglang-mi300a hooks pin                     record the installed SGLang as the supported one

`check` exits with 1 if a required seam does not fit.
"""

from __future__ import annotations

import argparse
import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a import hook_fit, hooking, plugin
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError
from sglang_mi300a.serving import preset as presets

SERVER_ARGS = "sglang.srt.server_args.ServerArgs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("what", choices=("list", "check", "pin"))
    parser.add_argument(
        "--sglang", type=Path, metavar="PATH",
        help="a wheel, or a directory that holds the sglang package (default: the installed one)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--markdown", action="store_true", help="list: the page of the docs")


def run(args: argparse.Namespace) -> int:
    """List, check or pin."""
    if args.what == "list":
        print(_listing(args))
        return EXIT_OK
    tree = open_tree(args.sglang) if args.sglang else plugin.installed_sglang()
    if args.what == "pin":
        targets = [seam.target for seam in plugin.all_seams()]
        hook_fit.PINS_FILE.write_text(
            hook_fit.pin(targets, tree, hook_fit.version_in(tree)), "utf-8"
        )
        print(f"{len(set(targets))} targets of SGLang {hook_fit.version_in(tree)} pinned")
        return EXIT_OK
    return _check(tree, args)


def open_tree(path: Path) -> hook_fit.SourceTree:
    """Return the source tree in a wheel or a directory.

    Raises:
        UserError: It is neither.
    """
    if path.suffix == ".whl" and path.is_file():
        return hook_fit.WheelTree(path)
    for root in (path, path.parent):
        if (root / "sglang/srt").is_dir():
            return hook_fit.DirectoryTree(root)
    raise UserError(
        f"--sglang {path}",
        found="neither a wheel nor a directory with sglang/srt in it",
        allowed="an SGLang wheel, a site-packages directory, or python/ of its source tree",
        do="for instance `pip download --no-deps sglang==0.5.18` and give the .whl",
    )


@dataclass(frozen=True)
class Judgement:
    """One line of ``hooks check``."""

    name: str
    target: str
    required: bool
    status: str
    detail: str
    difference: str


def judge_all(tree: hook_fit.SourceTree) -> list[Judgement]:
    """Return the judgement of every seam and of every preset's flags against ``tree``."""
    pins = hook_fit.Pins.load()
    rows = []
    for seam in plugin.all_seams():
        fit = hooking.judge(seam, tree, pins)
        rows.append(
            Judgement(
                seam.name,
                seam.target,
                seam.required,
                fit.status,
                fit.detail,
                _diff(seam, fit, pins),
            )
        )
    fields = server_fields(tree)
    wanted = preset_fields()
    if not fields & set(wanted):
        row = "declares none of the presets' fields in its own body: flags cannot be judged"
        return [*rows, Judgement("presets", SERVER_ARGS, True, "moved", row, "")]
    rows += [
        Judgement(f"presets {users}", f"{SERVER_ARGS}.{field}", True, "gone", "no such field", "")
        for field, users in wanted.items()
        if field not in fields
    ]
    return rows


def preset_fields() -> dict[str, str]:
    """Return every ``ServerArgs`` field that presets set, with the presets that do."""
    users: dict[str, list[str]] = {}
    for name in presets.names():
        for line in presets.load(name).lines:
            if not line.is_environment and name not in users.setdefault(line.name, []):
                users[line.name].append(name)
    return {field: ", ".join(names) for field, names in users.items()}


def server_fields(tree: hook_fit.SourceTree) -> set[str]:
    """Return the names of ``ServerArgs`` fields in a source tree."""
    return hook_fit.annotated_names(SERVER_ARGS, tree)


def _diff(seam: hooking.AnySeam, fit: hook_fit.Fit, pins: hook_fit.Pins) -> str:
    """Return a unified diff from the installed, fitting source to the one judged."""
    if fit.fits or fit.found is None:
        return ""
    installed = hook_fit.find(seam.target, plugin.installed_sglang())
    pin = pins.targets.get(seam.target)
    if installed is None or pin is None or installed.fingerprint not in pin.fingerprints:
        return ""
    return "\n".join(
        difflib.unified_diff(
            hook_fit.normalise(installed.text).splitlines(),
            hook_fit.normalise(fit.found.text).splitlines(),
            f"supported/{installed.file}",
            f"judged/{fit.found.file}",
            lineterm="",
            n=1,
        )
    )


def _check(tree: hook_fit.SourceTree, args: argparse.Namespace) -> int:
    rows = judge_all(tree)
    bad = [row for row in rows if row.status != "fits" and row.required]
    if args.json:
        body = {"sglang": hook_fit.version_in(tree), "seams": [row.__dict__ for row in rows]}
        print(json.dumps(body, indent=1))
    else:
        for row in rows:
            print(f"{row.status:<8} {row.name:<34} {row.target} {row.detail}".rstrip())
            if row.difference:
                print("\n".join(f"    {line}" for line in row.difference.splitlines()))
        print(f"SGLang {hook_fit.version_in(tree)}: {len(rows) - len(bad)} of {len(rows)} fit")
    return EXIT_JUDGED_AGAINST if bad else EXIT_OK


def _listing(args: argparse.Namespace) -> str:
    seams = plugin.all_seams()
    if args.json:
        rows = [
            {
                "name": seam.name,
                "kind": _kind(seam),
                "target": seam.target,
                "required": seam.required,
                "roles": seam.roles,
                "device": seam.device,
                "why": seam.why,
                "remove_when": seam.remove_when,
            }
            for seam in seams
        ]
        return json.dumps(rows, indent=1)
    if args.markdown:
        return markdown(seams)
    return "\n".join(
        f"{seam.name}  ({_kind(seam)}, {'required' if seam.required else 'optional'}, "
        f"{seam.device})\n    on   {seam.target}\n    why  {seam.why}\n"
        f"    goes when {seam.remove_when}"
        for seam in seams
    )


def markdown(seams: tuple[hooking.AnySeam, ...]) -> str:
    """Return the documentation page of the seams."""
    lines = [
        "# What this package puts into SGLang",
        "",
        "Generated by `sglang-mi300a hooks list --markdown`. *Relies on* rows change nothing; they",
        "name code of SGLang's that ours calls or subclasses, and are judged like hooks.",
        "",
        "| seam | kind | required | device | target | why | goes when |",
        "|---|---|---|---|---|---|---|",
    ]
    for seam in seams:
        required = "yes" if seam.required else "no"
        lines.append(
            f"| {seam.name} | {_kind(seam)} | {required} | {seam.device} | `{seam.target}` "
            f"| {seam.why} | {seam.remove_when} |"
        )
    return "\n".join(lines)


def _kind(seam: hooking.AnySeam) -> str:
    if isinstance(seam, hooking.Hook):
        return seam.kind
    if isinstance(seam, hooking.Registration):
        return f"registry entry {seam.key!r}"
    return "relies on"
