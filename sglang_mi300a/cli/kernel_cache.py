"""AITER's compiled kernels: built once, kept by what they depend on, carried to other nodes.

AITER compiles its modules the first time they are used, which took 5 to 13 minutes of a first boot
in published runs, or 105 s in the middle of a user's request. Built ahead, they are copied:

    sglang-mi300a kernel-cache build                   what serving needs, here; goes on if stopped
    sglang-mi300a kernel-cache build --no-gpu --arch gfx942 --cus 228      on a machine without one
    sglang-mi300a kernel-cache pack kernels.tar.zst    one file, the same on every machine
    sglang-mi300a kernel-cache unpack kernels.tar.zst  or: fetch https://.../kernels.tar.zst
    sglang-mi300a kernel-cache record                  add what servers here compiled by themselves
    sglang-mi300a kernel-cache list | verify | gc      what is there, whether intact, tidy up

A key holds all that a module depends on: AITER's commit and sources, ROCm, arch and compute units,
torch, Python, AITER's switches and the modules themselves. Modules of another key are refused, and
what differs is named. `serve` uses the store of this machine's key by itself, through a copy of its
own; a store may be shared between nodes and mounted read-only (SGLANG_MI300A_KERNEL_CACHE=DIR).
Locks, copies and logs lie on this node's own disk (SGLANG_MI300A_LOCAL_DIR=DIR).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_mi300a import device, settings
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError
from sglang_mi300a.kernel_cache import (
    aiter_install,
    aiter_locks,
    archive,
    download,
    jobs,
    launch_copy,
    local_disk,
    needed,
    recording,
)
from sglang_mi300a.kernel_cache import key as keys
from sglang_mi300a.kernel_cache.build import LIMIT_S, Builder, Outcome
from sglang_mi300a.kernel_cache.key import CacheKey
from sglang_mi300a.kernel_cache.owner_lock import DEFAULT_WAIT_S
from sglang_mi300a.kernel_cache.store import Store
from sglang_mi300a.weights.progress_bar import ProgressBar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their flags."""
    verbs = parser.add_subparsers(metavar="VERB", dest="verb", required=True)
    build = verbs.add_parser("build", help="compile what serving needs and is not there yet")
    build.add_argument("--jobs", type=int, metavar="N", help="compilers at once (by free memory)")
    build.add_argument(
        "--wait", type=float, default=DEFAULT_WAIT_S, metavar="S",
        help=f"seconds to wait for another process's build ({DEFAULT_WAIT_S:.0f})",
    )  # fmt: skip
    build.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="S",
        help=f"seconds that one module may take ({LIMIT_S:.0f})",
    )  # fmt: skip
    record = verbs.add_parser("record", help="add what servers on this node compiled lazily")
    record.add_argument(
        "directory", nargs="?", type=Path, metavar="DIR",
        help="an AITER_JIT_DIR instead; waits for builds there, deletes no lock",
    )  # fmt: skip
    record.add_argument(
        "--wait", type=float, default=aiter_locks.DEFAULT_WAIT_S, metavar="S",
        help=f"seconds to wait for AITER's locks ({aiter_locks.DEFAULT_WAIT_S:.0f})",
    )  # fmt: skip
    pack = verbs.add_parser("pack", help="write one archive of this machine's key")
    pack.add_argument("file", type=Path, metavar="FILE")
    unpack = verbs.add_parser("unpack", help="store an archive's modules")
    unpack.add_argument("file", type=Path, metavar="FILE")
    fetch = verbs.add_parser("fetch", help="download an archive, or copy it, and unpack it")
    fetch.add_argument("source", metavar="FILE|URL")
    fetch.add_argument("--sha256", metavar="HEX", help="what the archive's checksum must be")
    for verb in (unpack, fetch):
        verb.add_argument("--any-key", action="store_true", help="also for other machines' keys")
        verb.add_argument(
            "--max-bytes", type=int, default=archive.DEFAULT_MAX_BYTES, metavar="N",
            help=f"most it may unpack to ({archive.DEFAULT_MAX_BYTES})",
        )  # fmt: skip
    verify = verbs.add_parser("verify", help="every byte of every key against its checksum")
    listing = verbs.add_parser("list", help="keys, what each holds and whether it fits here")
    gc = verbs.add_parser("gc", help="remove what ended builds and servers left, and unused bytes")
    gc.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    gc.add_argument("--foreign", action="store_true", help="also keys that are not this machine's")
    for verb in (build, record, pack, unpack, fetch, listing, gc):
        _add_key_flags(verb)
    for verb in (build, record, pack, unpack, fetch, verify, listing, gc):
        verb.add_argument("--json", action="store_true", help="for machines")
        verb.add_argument(
            "--store", type=Path, metavar="DIR", help=f"the store ({settings.kernel_cache_dir()})"
        )


def _add_key_flags(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--no-gpu", action="store_true", help="for the device of --arch and --cus")
    verb.add_argument("--arch", default="gfx942", help="with --no-gpu (gfx942)")
    verb.add_argument("--cus", type=int, default=228, metavar="N", help="with --no-gpu (228)")
    verb.add_argument("--aiter", type=Path, metavar="DIR", help="AITER's package (the importable)")


def run(args: argparse.Namespace) -> int:
    """Do what the verb says."""
    store = Store(args.store or settings.kernel_cache_dir())
    verbs: dict[str, Callable[[argparse.Namespace, Store], int]] = {
        "build": _build,
        "record": _record,
        "pack": _pack,
        "unpack": _unpack,
        "fetch": _fetch,
        "verify": _verify,
        "list": _list,
        "gc": _gc,
    }
    return verbs[args.verb](args, store)


def _install(args: argparse.Namespace) -> aiter_install.AiterInstall:
    return aiter_install.at(args.aiter) if args.aiter else aiter_install.find()


def _key(args: argparse.Namespace) -> CacheKey:
    given = (args.arch, args.cus) if args.no_gpu else (None, None)
    arch, num_cus = keys.target(device.accelerators(), *given)
    return keys.of_this_machine(_install(args), arch, num_cus, needed.names())


def _say(line: str) -> None:
    print(f"sglang-mi300a kernel-cache: {line}", file=sys.stderr, flush=True)


def _tell(args: argparse.Namespace, data: dict[str, Any], words: Iterable[str]) -> int:
    print(json.dumps(data, indent=1) if args.json else "\n".join(words))
    return EXIT_OK


# -- making ----------------------------------------------------------------------------------------


def _build(args: argparse.Namespace, store: Store) -> int:
    if args.jobs is not None and args.jobs < 1:
        raise UserError("--jobs", found=str(args.jobs), allowed="1 or more", do="leave it out")
    key = _key(args)
    num_cores = len(os.sched_getaffinity(0))
    builder = Builder(
        key=key,
        install=_install(args),
        store=store,
        local=local_disk.prepare(settings.local_dir()),
        num_jobs=args.jobs or jobs.that_fit(num_cores, jobs.free_bytes()),
        wait_s=args.wait,
        limit_s=args.limit,
    )
    rows = needed.rows()
    if not args.json:
        _say(
            f"{len(rows)} modules for {key.arch} with {key.num_cus} CUs, key {key.digest}, "
            f"{builder.num_jobs} compilers at once; logs in {builder.local / 'logs'}"
        )
    with _ModuleBar(len(rows), wanted=False if args.json else None) as bar:
        outcomes = builder.run(rows, bar.done)
    data = {
        "store": str(store.root),
        "key": key.digest,
        "num_jobs": builder.num_jobs,
        "modules": [asdict(outcome) for outcome in outcomes],
    }
    return _tell(args, data, _built_in_words(store, key, outcomes))


def _built_in_words(store: Store, key: CacheKey, outcomes: list[Outcome]) -> Iterable[str]:
    for one in outcomes:
        took = f", {one.seconds:.0f} s, log {one.log}" if one.how == "built" else ""
        yield f"{one.name:<20} {one.how:<9} {one.num_bytes / 1e6:8.1f} MB{took}"
    total = sum(one.num_bytes for one in outcomes)
    yield f"{store.root}: key {key.digest}: {len(outcomes)} modules, {total / 1e6:.1f} MB"


class _ModuleBar:
    """A bar of modules on a terminal."""

    def __init__(self, num_modules: int, *, wanted: bool | None) -> None:
        self._bar: Any = None
        self._lock = threading.Lock()
        if sys.stderr.isatty() if wanted is None else wanted:
            from tqdm import tqdm  # only runs that show it need it

            self._bar = tqdm(total=num_modules, unit="module", desc="build", file=sys.stderr)

    def __enter__(self) -> _ModuleBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def done(self, outcome: Outcome) -> None:
        """Count a module; any thread may."""
        if self._bar is not None:
            with self._lock:
                self._bar.set_postfix_str(outcome.name)
                self._bar.update(1)


def _record(args: argparse.Namespace, store: Store) -> int:
    key = _key(args)
    local = local_disk.prepare(settings.local_dir())
    store.check_writable()
    if args.directory is None:
        launch_copy.keep_from_the_dead(local, _say)
        kept = launch_copy.kept_store(local)
        modules = [
            module
            for name, module in kept.modules(key.digest).items()
            if name not in store.modules(key.digest)
        ]
        for module in modules:
            for file in module.files:
                store.put(kept.object_path(file.sha256), file.path)
        store.publish(key, modules)
    else:
        if not args.directory.is_dir():
            raise UserError(
                str(args.directory),
                found="no directory",
                allowed="a directory that served as AITER_JIT_DIR",
                do="leave it out to take what servers on this node compiled",
            )
        aiter_locks.wait_until_free(args.directory, wait_s=args.wait)
        modules = recording.record(recording.find(args.directory, key.arch), key, store, _say)
    names = [module.name for module in modules]
    words = f"{store.root}: key {key.digest}: recorded {', '.join(names) or 'nothing new'}"
    return _tell(args, {"key": key.digest, "recorded": names}, [words])


# -- carrying --------------------------------------------------------------------------------------


def _pack(args: argparse.Namespace, store: Store) -> int:
    key = _key(args)
    _check_known(store, key)
    total = sum(module.num_bytes for module in store.modules(key.digest).values())
    with ProgressBar("pack", total, wanted=False if args.json else None) as bar:
        contents = archive.pack(store, key.digest, args.file, bar.advance)
    return _archive_told(args, args.file, contents, "packed")


def _check_known(store: Store, key: CacheKey) -> None:
    """Refuse a key that the store does not have, by what the nearest one differs in."""
    if store.modules(key.digest):
        return
    others = [store.key(digest) for digest in store.digests()]
    nearest = min((key.differences(other) for other in others), key=len, default=[])
    raise UserError(
        str(store.root),
        found=f"no modules of key {key.digest}"
        + (f"; the nearest key differs in {'; '.join(nearest)}" if nearest else ""),
        allowed="modules built for this software and device",
        do="build them: sglang-mi300a kernel-cache build",
    )


def _unpack(args: argparse.Namespace, store: Store) -> int:
    return _unpacked(args, store, args.file)


def _fetch(args: argparse.Namespace, store: Store) -> int:
    store.check_writable()
    with store.incoming() as temporary:
        with ProgressBar("fetch", 0, wanted=False if args.json else None) as bar:
            download.fetch(args.source, temporary, args.max_bytes, args.sha256, bar.advance)
        return _unpacked(args, store, temporary)


def _unpacked(args: argparse.Namespace, store: Store, path: Path) -> int:
    expected = None if args.any_key else _key(args)
    total = archive.inspect(path).num_bytes
    with ProgressBar("unpack", total, wanted=False if args.json else None) as bar:
        contents = archive.unpack(
            path, store, expected=expected, max_bytes=args.max_bytes, advance=bar.advance
        )
    return _archive_told(args, store.root, contents, "unpacked")


def _archive_told(
    args: argparse.Namespace, place: Path, contents: archive.Contents, did: str
) -> int:
    data = {
        did: str(place),
        "key": contents.key.digest,
        "modules": [module.name for module in contents.modules],
        "num_bytes": contents.num_bytes,
    }
    words = (
        f"{place}: {did} {len(contents.modules)} modules of key {contents.key.digest}, "
        f"{contents.num_bytes / 1e6:.1f} MB"
    )
    return _tell(args, data, [words])


# -- looking ---------------------------------------------------------------------------------------


def _verify(args: argparse.Namespace, store: Store) -> int:
    problems: dict[str, list[str]] = {}
    for digest in store.digests():
        problems[digest] = store.problems(digest)
    data = {"store": str(store.root), "problems": problems}
    words = [f"{digest}: {line}" for digest, found in problems.items() for line in found]
    num_problems = len(words)
    words.append(f"{store.root}: {len(problems)} keys, {num_problems or 'no'} problems")
    _tell(args, data, words)
    return EXIT_JUDGED_AGAINST if num_problems else EXIT_OK


def _list(args: argparse.Namespace, store: Store) -> int:
    try:
        here: CacheKey | None = _key(args)
    except UserError as unknown:  # no ROCm or AITER here: the store can still be looked at
        here = None
        _say(f"this machine has no key of its own: {unknown}")
    rows = [_row(store, digest, here) for digest in store.digests()]
    words = [f"{store.root}: {len(rows) or 'no'} keys"]
    for row in rows:
        words.append(f"{row['key']}  {row['num_modules']} modules, {row['num_bytes'] / 1e6:.1f} MB")
        if row["differs"]:
            words.append(f"    not for this machine: {'; '.join(row['differs'])}")
        elif here is not None:
            lacks = row["lacks"]
            words.append("    for this machine" + (f"; lacks {', '.join(lacks)}" if lacks else ""))
    data = {"store": str(store.root), "here": here.digest if here else None, "keys": rows}
    return _tell(args, data, words)


def _row(store: Store, digest: str, here: CacheKey | None) -> dict[str, Any]:
    key, modules = store.key(digest), store.modules(digest)
    return {
        "key": digest,
        "means": key.to_data(),
        "num_modules": len(modules),
        "num_bytes": sum(module.num_bytes for module in modules.values()),
        "lacks": [name for name in key.modules if name not in modules],
        "differs": here.differences(key) if here is not None else [],
    }


# -- tidying ---------------------------------------------------------------------------------------


def _gc(args: argparse.Namespace, store: Store) -> int:
    local = local_disk.prepare(settings.local_dir())
    foreign: list[str] = []
    if args.foreign:
        here = _key(args).digest
        foreign = [digest for digest in store.digests() if digest != here]
    dead = launch_copy.left_by_the_dead(local)
    staging = launch_copy.leftover_staging(local)
    unused = store.unreferenced()
    if not args.dry_run:
        launch_copy.keep_from_the_dead(local, _say)
        for directory in staging:
            shutil.rmtree(directory, ignore_errors=True)
            directory.with_suffix(".lock").unlink(missing_ok=True)
        for digest in foreign:
            store.remove(digest)
        with local_disk.refusing(store.root, "ask the store's owner to tidy it"):
            for path in unused:
                path.unlink(missing_ok=True)
    data = {
        "dry_run": args.dry_run,
        "launches": [str(path) for path in dead],
        "builds": [str(path) for path in staging],
        "keys": foreign,
        "unused": [str(path) for path in unused],
    }
    would = "would remove" if args.dry_run else "removed"
    words = (
        f"{would} {len(dead)} directories of ended servers, {len(staging)} of ended builds, "
        f"{len(foreign)} keys of other machines, {len(unused)} unused files of {store.root}"
    )
    return _tell(args, data, [words])
