"""Patches to SGLang's own files, for what no option or hook of it reaches. No preset needs one.

    sglang-mi300a patch list                   each with its reason and when it can go
    sglang-mi300a patch check                  which are in the installed SGLang, and which fit it
    sglang-mi300a patch apply NAME...          put some into it (--all: every one)
    sglang-mi300a patch revert [NAME...]       take them out, byte for byte; also mends an
                                               application that was cut short
    sglang-mi300a patch check --sglang DIR     the same of another SGLang

`apply` puts in all that is asked or nothing, and refuses a file with any other digest than the one
the patch was made for. Servers that run keep what they have loaded. `check` exits with 1 if one
does not fit or is half applied.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sglang_mi300a import hook_fit, plugin
from sglang_mi300a.cli import hooks
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError
from sglang_mi300a.patches import change, fit
from sglang_mi300a.patches import series as shipped_series
from sglang_mi300a.patches.series import Series


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("what", choices=("list", "check", "apply", "revert"))
    parser.add_argument("name", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--all", action="store_true", help="apply: all of them")
    parser.add_argument(
        "--sglang", type=Path, metavar="DIR",
        help="a directory that holds the sglang package (default: the installed one)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="for machines")


def run(args: argparse.Namespace) -> int:
    """List, check, apply or revert."""
    series = shipped_series.read()
    patches = series.named(args.name)
    if args.what == "list":
        print(_listing(Series(series.sglang, patches), as_json=args.json))
        return EXIT_OK
    root = _root(args.sglang)
    if args.what == "check":
        return _check(Series(series.sglang, patches), root, as_json=args.json)
    if args.what == "apply" and not args.name and not args.all:
        raise UserError(
            "patch apply",
            found="no name",
            allowed="names, or --all",
            do="sglang-mi300a patch list",
        )
    act = change.apply if args.what == "apply" else change.revert
    changed = act(series, patches, root)
    return _say(args.what, changed, root, as_json=args.json)


def _root(given: Path | None) -> Path:
    """Return the directory that holds the SGLang in question.

    Raises:
        UserError: There is none, or it is a wheel.
    """
    tree = hooks.open_tree(given) if given else plugin.installed_sglang()
    if isinstance(tree, hook_fit.DirectoryTree):
        return tree.root.resolve()
    raise UserError(
        f"--sglang {given}",
        found="a wheel",
        allowed="a directory with sglang/srt in it",
        do="unpack it first: python -m zipfile -e WHEEL DIR",
    )


def _listing(series: Series, *, as_json: bool) -> str:
    if as_json:
        rows = [
            {
                "name": one.name,
                "file": one.file,
                "why": one.why,
                "upstream": one.upstream,
                "remove_when": one.remove_when,
                "touches": {path: vars(digests) for path, digests in one.touches.items()},
            }
            for one in series.patches
        ]
        return json.dumps({"sglang": series.sglang, "patches": rows}, indent=1)
    return "\n".join(
        f"{one.name}  ({one.file}, for SGLang {series.sglang})\n"
        f"    in   {', '.join(one.touches)}\n"
        f"    why  {one.why}\n"
        f"    upstream  {one.upstream or 'none known'}\n"
        f"    goes when {one.remove_when}"
        for one in series.patches
    )


def _check(series: Series, root: Path, *, as_json: bool) -> int:
    fits = fit.judge(series, series.patches, root)
    left = change.interrupted(root)
    against = left is not None or any(
        one.status in ("half applied", "does not fit") for one in fits
    )
    if as_json:
        body = {
            "sglang": hook_fit.version_in(hook_fit.DirectoryTree(root)),
            "interrupted": vars(left) if left else None,
            "patches": [
                {"name": one.patch.name, "status": one.status, "detail": one.detail} for one in fits
            ],
        }
        print(json.dumps(body, indent=1))
    else:
        for one in fits:
            print(f"{one.status:<13} {one.patch.name:<36} {one.detail}".rstrip())
        if left is not None:
            print(
                f"half applied: {left.action or 'a change'} of "
                f"{', '.join(left.patches) or 'patches'} did not end; "
                "mend it: sglang-mi300a patch revert"
            )
    return EXIT_JUDGED_AGAINST if against else EXIT_OK


def _say(action: str, changed: list[str], root: Path, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"action": action, "changed": changed}, indent=1))
        return EXIT_OK
    done = {"apply": "applied", "revert": "reverted"}[action]
    nothing = {"apply": "nothing to apply", "revert": "nothing to revert"}[action]
    print(f"{done} {', '.join(changed)} in {root}" if changed else f"{nothing} in {root}")
    return EXIT_OK
