"""Tuning over several devices: one child process a device, restarted where a candidate ends it."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm.tuning_plan import Batch
from sglang_mi300a.gemm.tuning_record import Machine, Measured, Outcome, TuningRecord

STUCK_S = 600.0
"""A product takes about 20 s; a candidate that never ends would hold its device for ever."""


@dataclass(frozen=True)
class ChildCommand:
    """How a child is started.

    Attributes:
        command: Program and arguments.
        environment_on: Returns the whole environment for a device ordinal.
    """

    command: Sequence[str]
    environment_on: Callable[[int], Mapping[str, str]]


class Child:
    """A running child process on one device.

    Args:
        how: How it is started.
        ordinal: Its device.
        asked: What it is told.
    """

    def __init__(self, how: ChildCommand, ordinal: int, asked: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            list(how.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(how.environment_on(ordinal)),
            start_new_session=True,  # Ctrl-C is for the parent: a child it ended looks crashed
        )
        assert self._process.stdin is not None
        self._errors: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        for work in (self._read_lines, self._read_errors):
            threading.Thread(target=work, daemon=True).start()
        try:
            self._process.stdin.write(json.dumps(dict(asked)) + "\n")
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended; its exit code says how

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # a library may print, too
                self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-19:], line.rstrip()]

    def next_line(self, within_s: float) -> dict[str, Any] | None:
        """Return its next line; None if it has ended.

        Raises:
            TimeoutError: It says nothing for so long.
        """
        try:
            line = self._lines.get(timeout=within_s)
        except queue.Empty as error:
            raise TimeoutError from error
        return None if line is None else dict(json.loads(line))

    def end(self) -> tuple[int, str]:
        """End it; return its exit code and the last line of its errors."""
        if self._process.poll() is None:
            self._process.kill()
        code = self._process.wait()
        return code, self._errors[-1] if self._errors else ""


def ask_machine(how: ChildCommand, ordinal: int = 0, within_s: float = STUCK_S) -> Machine:
    """Return what a child on a device sees.

    Raises:
        UserError: No child could look.
    """
    child = Child(how, ordinal, {})
    try:
        line = child.next_line(within_s)
    except TimeoutError:
        line = None
    code, error = child.end()
    if line is None:
        raise UserError(
            f"device {ordinal}",
            found=f"no process can use it (exit code {code}: {error})",
            allowed="an accelerator that ROCm's torch can use",
            do="run on a node with MI300A, or look at the plan with --dry-run",
        )
    return Machine(**line["machine"])


class TuningRun:
    """One run over several devices.

    Args:
        how: How children are started.
        record: Where results go.
        samples: Timings of each candidate and of stock.
        done: Called after each product.
        kernels: Build of our kernels that are timed too; "" for none.
        stuck_s: After so long without a word a child is ended.

    Attributes:
        dropped: Why kernels of ours were not timed, by name; filled while it runs.
    """

    def __init__(
        self,
        how: ChildCommand,
        record: TuningRecord,
        *,
        samples: int,
        done: Callable[[Measured], None],
        kernels: str = "",
        stuck_s: float = STUCK_S,
    ) -> None:
        self._how = how
        self._record = record
        self._samples = samples
        self._done = done
        self._kernels = kernels
        self._stuck_s = stuck_s
        self.dropped: dict[str, str] = {}
        self._work: queue.Queue[Batch] = queue.Queue()
        self._lock = threading.Lock()
        self._children: set[Child] = set()
        self._stopped = False
        self._failure: UserError | None = None

    def over(self, batches: Sequence[Batch], ordinals: Sequence[int]) -> None:
        """Tune everything; returns when it is done.

        Raises:
            UserError: Children end before they tune anything.
            KeyboardInterrupt: Interrupted; children are ended, results so far are kept.
        """
        for batch in batches:
            self._work.put(batch)
        threads = [
            threading.Thread(target=self._serve_device, args=(ordinal,), daemon=True)
            for ordinal in ordinals
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        finally:
            self._stopped = True
            with self._lock:
                children = list(self._children)
            for child in children:
                child.end()
        if self._failure is not None:
            raise self._failure

    def _serve_device(self, ordinal: int) -> None:
        while not self._stopped and self._failure is None:
            try:
                batch = self._work.get_nowait()
            except queue.Empty:
                return
            while batch.m and not self._stopped and self._failure is None:
                batch = batch.without(self._one_child(batch, ordinal))

    def _one_child(self, batch: Batch, ordinal: int) -> list[int]:
        """Run one child as far as it gets; return the row counts that are done with."""
        asked = {
            "n": batch.n, "k": batch.k, "m": batch.m, "samples": self._samples,
            "kernels": self._kernels, "parts": batch.parts,
            "apart": {m: batch.apart[m] for m in batch.m if m in batch.apart},
            "known": {m: batch.known[m] for m in batch.m if m in batch.known},
        }  # fmt: skip
        child = Child(self._how, ordinal, asked)
        with self._lock:
            self._children.add(child)
        done: list[int] = []
        under_way: int | None = None
        stuck = False
        try:
            while (line := child.next_line(self._stuck_s)) is not None:
                if "begin" in line:
                    under_way = int(line["begin"])
                elif "dropped" in line:
                    self.dropped |= line["dropped"]
                elif "machine" not in line:
                    self._keep(Measured(**line))
                    done.append(int(line["m"]))
                    under_way = None
        except TimeoutError:
            stuck = True
        code, error = child.end()
        with self._lock:
            self._children.discard(child)
        if self._stopped or (under_way is None and len(done) == len(batch.m)):
            return done
        if under_way is None:
            self._failure = UserError(
                f"device {ordinal}",
                found=f"a tuning process that ended before it began (exit code {code}: {error})",
                allowed="an accelerator that ROCm's torch can use",
                do="correct what the error says; SGLANG_MI300A_DENSE_KERNELS=library leaves this "
                "package's kernels out",
            )
            return done
        outcome: Outcome = "stuck" if stuck else "crashed"
        lost = Measured(batch.n, batch.k, under_way, outcome)
        self._keep(replace(lost, kernels=self._kernels, parts=batch.parts))
        return [*done, under_way]

    def _keep(self, measured: Measured) -> None:
        with self._lock:
            self._record.add(measured)
            self._done(measured)
