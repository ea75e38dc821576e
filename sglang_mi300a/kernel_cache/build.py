"""Build what a key lacks, once a node, in directories that nobody else ever looks into.

A module is compiled in a fresh directory, looked at, and published whole; a build that is killed
leaves nothing but that directory. What was published before stays, so the same command goes on
where it stopped. Processes that ask for the same module wait for the one that builds it, no longer
than they were told to.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sglang_mi300a import settings
from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache import aiter_builder, compiled, jobs, needed
from sglang_mi300a.kernel_cache.aiter_install import AiterInstall
from sglang_mi300a.kernel_cache.key import CacheKey
from sglang_mi300a.kernel_cache.local_disk import refusing
from sglang_mi300a.kernel_cache.needed import Needed
from sglang_mi300a.kernel_cache.owner_lock import DEFAULT_WAIT_S, OwnerLock
from sglang_mi300a.kernel_cache.store import Store, StoredModule

LIMIT_S = 3600.0
"""Longest build of one module; the slowest published one took 15 minutes on a bad node."""
_LOG_TAIL_LINES = 15

How = Literal["kept", "prebuilt", "built"]


@dataclass(frozen=True)
class Outcome:
    """What was done for one needed module.

    Attributes:
        name: What this package calls it.
        module: AITER's name, the file's stem; "" where only another process knows it.
        how: ``kept`` (was there), ``prebuilt`` (came with AITER), ``built``.
        seconds: Time it took.
        num_bytes: Size.
        log: Where the compiler's output is, if it ran.
    """

    name: str
    module: str
    how: How
    seconds: float
    num_bytes: int
    log: str


@dataclass(frozen=True, kw_only=True)
class Builder:
    """Builds modules of one key into one store.

    Attributes:
        key: The key.
        install: The AITER that builds.
        store: Where modules are published.
        local: This user's directory on this node's disk.
        num_jobs: Compilers at once, over all modules.
        wait_s: How long to wait for another process that builds the same module.
        limit_s: How long one module may take.
    """

    key: CacheKey
    install: AiterInstall
    store: Store
    local: Path
    num_jobs: int
    wait_s: float = DEFAULT_WAIT_S
    limit_s: float = LIMIT_S

    def run(
        self, rows: Iterable[Needed], tell: Callable[[Outcome], None] | None = None
    ) -> list[Outcome]:
        """Build what is missing.

        Args:
            rows: What is needed.
            tell: Told of each outcome as it comes, from any thread.

        Raises:
            UserError: A module cannot be built; others that were, stay.
        """
        self.store.check_writable()
        todo = list(rows)
        modules = [needed.module_in(row, self.install) for row in todo]  # refuse before any work
        for folder in ("locks", "staging", "logs"):
            (self.local / folder).mkdir(exist_ok=True)
        at_once, jobs_each = jobs.split(self.num_jobs, max(1, len(todo)))
        stop = threading.Event()

        def one(row: Needed, module: str) -> Outcome:
            outcome = self._ensure(row, module, jobs_each, stop)
            if tell is not None:
                tell(outcome)
            return outcome

        with ThreadPoolExecutor(at_once) as pool:
            pending = [pool.submit(one, *pair) for pair in zip(todo, modules, strict=True)]
            try:
                return [future.result() for future in pending]
            except BaseException:
                stop.set()
                for future in pending:
                    future.cancel()
                raise

    def _ensure(self, row: Needed, module: str, num_jobs: int, stop: threading.Event) -> Outcome:
        began = time.monotonic()
        if there := self.store.whole(self.key.digest, row.name):
            return Outcome(row.name, "", "kept", 0.0, there.num_bytes, "")
        lock = self.local / "locks" / f"{self.key.digest}-{row.name}.lock"
        with OwnerLock(lock, f"the build of {row.name}", wait_s=self.wait_s):
            # Another process may have built it while this one waited.
            if there := self.store.whole(self.key.digest, row.name):
                return Outcome(row.name, "", "kept", 0.0, there.num_bytes, "")
            came_with = self.install.prebuilt / f"{module}.so"
            if not row.recipe and came_with.is_file() and not self._flaw(came_with):
                stored = self._publish(row, came_with)
                seconds = time.monotonic() - began
                return Outcome(row.name, module, "prebuilt", seconds, stored.num_bytes, "")
            return self._compile(row, module, num_jobs, stop)

    def _flaw(self, path: Path) -> str:
        """Return why a compiled module cannot be used on the key's device, or ""."""
        if flaw := compiled.flaw(path):
            return flaw
        archs = compiled.device_archs(path)
        if archs and self.key.arch not in archs:
            return f"device code for {', '.join(sorted(archs))} only"
        return ""

    def _publish(self, row: Needed, path: Path) -> StoredModule:
        module = StoredModule(row.name, (self.store.put(path, path.name),))
        self.store.publish(self.key, [module])
        return module

    def _compile(self, row: Needed, module: str, num_jobs: int, stop: threading.Event) -> Outcome:
        began = time.monotonic()
        log = self.local / "logs" / f"{self.key.digest[:12]}-{row.name}.log"
        with refusing(self.local, "make room, or name another directory"):
            staging = Path(tempfile.mkdtemp(prefix=f"{row.name}-", dir=self.local / "staging"))
        try:
            # Held for as long as this process lives: what is left unheld there is rubbish.
            with OwnerLock(staging.with_suffix(".lock"), str(staging), wait_s=0):
                code = self._start(row, module, staging, log, num_jobs, stop)
                path = _result(staging)
                flaw = self._flaw(path) if path is not None and path.is_file() else "no module made"
                if code or path is None or flaw:
                    raise self._failed(row, code, flaw, log)
                stored = self._publish(row, path)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        seconds = time.monotonic() - began
        return Outcome(row.name, path.stem, "built", seconds, stored.num_bytes, str(log))

    def _start(
        self,
        row: Needed,
        module: str,
        staging: Path,
        log: Path,
        num_jobs: int,
        stop: threading.Event,
    ) -> int:
        asked = {
            "package": str(self.install.package),
            "module": module,
            "recipe": row.recipe,
            "arguments": dict(row.arguments),
        }
        environment = settings.child_environment(
            {
                "AITER_JIT_DIR": str(staging),
                "AITER_ROOT_DIR": str(staging),
                "GPU_ARCHS": self.key.arch,
                "CU_NUM": str(self.key.num_cus),
                "MAX_JOBS": str(num_jobs),
                "PYTHONDONTWRITEBYTECODE": "1",  # AITER's folder stays as it is
            }
        )
        command = [sys.executable, "-m", aiter_builder.__name__, json.dumps(asked)]
        with log.open("wb") as out:
            child = subprocess.Popen(
                command,
                env=environment,
                cwd=staging,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return _wait(child, self.limit_s, stop)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()

    def _failed(self, row: Needed, code: int, flaw: str, log: Path) -> UserError:
        if code < 0:
            how = f"stopped after {self.limit_s:.0f} s, or killed (signal {-code})"
        else:
            how = f"exit code {code}"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n  ".join(lines[-_LOG_TAIL_LINES:])
        return UserError(
            f"build of {row.name}",
            found=f"{how}; {flaw or 'a whole module all the same'}; its log ends:\n  {tail}\n",
            allowed=f"a module for {self.key.arch}",
            do=f"read {log}, correct the cause, and give the same command again",
        )


def _wait(child: subprocess.Popen[bytes], limit_s: float, stop: threading.Event) -> int:
    """Return the exit code; a child that takes too long, or is wanted no more, ends by a signal."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return child.wait(0.2)
        except subprocess.TimeoutExpired:
            if stop.is_set() or time.monotonic() >= deadline:
                os.killpg(child.pid, signal.SIGKILL)
                return child.wait()


def _result(staging: Path) -> Path | None:
    """Return the module that the child says it made."""
    try:
        name = json.loads((staging / aiter_builder.RESULT).read_text(encoding="utf-8"))["name"]
    except (OSError, ValueError, KeyError):
        return None
    return staging / f"{name}.so"
