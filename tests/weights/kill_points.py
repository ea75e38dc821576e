"""Kills conversions at given system calls, takes them up again, and compares with a whole one.

Run as a program: ``kill_points.py MODEL REFERENCE SCRATCH``, a JSON list of cases on stdin, each
the numbers of the calls at which one attempt after another is killed. Prints a JSON list of
``[calls made, what is wrong or ""]``. An empty case counts the calls of a run that nothing kills.

Each attempt is a fork of this process, so that hundreds of them do not import everything anew.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from sglang_mi300a.weights.shard import shard_weights

CHANGES = (
    "open", "mkdir", "ftruncate", "pwrite", "fsync", "posix_fadvise", "replace", "link", "unlink",
    "rmdir",
)  # fmt: skip
"""Everything that changes the output directory, and some that do not."""


def attempt(model: Path, out: Path, killed_at: int | None) -> int:
    """Run a conversion in a fork; return the calls it made, or -1 if it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        run(model, out, killed_at, writer)
    os.close(writer)
    with os.fdopen(reader) as told:
        calls = told.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return -1
    return int(calls)


def run(model: Path, out: Path, killed_at: int | None, writer: int) -> None:
    """Convert with counted calls; never returns."""
    calls = 0

    def counting(real):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    os.fsync = lambda descriptor: None  # a kill loses no writes; waiting for the disk is in vain
    for name in CHANGES:
        setattr(os, name, counting(getattr(os, name)))
    # One job, so that the n-th call is the same one in every run.
    shard_weights(model, out, tp=2, sglang="==0.5.18", jobs=1, part_bytes=200_000)
    os.write(writer, str(calls).encode())
    os._exit(0)


def content(directory: Path) -> dict[str, bytes]:
    """Return every file of a directory, hidden ones too."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def main() -> None:
    """Run the cases."""
    model, reference, scratch = (Path(argument) for argument in sys.argv[1:])
    wanted = content(reference)
    rows = []
    for number, case in enumerate(json.load(sys.stdin)):
        out = scratch / str(number)
        for killed_at in case:
            attempt(model, out, killed_at)
            claims_to_be_whole = (out / "manifest.json").exists()
            found = content(out) if claims_to_be_whole else {}
            lacks = sorted(set(wanted) - set(found)) if claims_to_be_whole else []
            if lacks:
                rows.append([0, f"killed at {killed_at}: manifest there, {lacks[0]} not"])
        calls = attempt(model, out, None)
        found = content(out)
        wrong = sorted(n for n in {*wanted, *found} if wanted.get(n) != found.get(n))
        rows.append([calls, f"{case}: {wrong[:3]} differ" if wrong else ""])
        shutil.rmtree(out)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
