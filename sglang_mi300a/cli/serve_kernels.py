"""What a launcher does about AITER's compiled kernels: a directory of this launch's own."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sglang_mi300a import device, settings
from sglang_mi300a.kernel_cache import (
    aiter_install,
    aiter_locks,
    launch_copy,
    needed,
    time_limits,
)
from sglang_mi300a.kernel_cache import key as keys
from sglang_mi300a.kernel_cache.launch_copy import LaunchCopy
from sglang_mi300a.kernel_cache.store import Store

_MERGE_WAIT_S = 60.0
"""AITER merges its tables in less than a second."""


@dataclass(frozen=True)
class Prepared:
    """What a launch does about compiled kernels.

    Attributes:
        environment: Variables to set where the user has not.
        said: Lines for the user.
        jit_dir: Where AITER will build, if it will.
        to_compile: What it will build there as it is used.
    """

    environment: dict[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    jit_dir: Path | None = None
    to_compile: tuple[str, ...] = ()

    def watch(self) -> aiter_locks.Watch | None:
        """Return what watches AITER's locks while the server starts."""
        return aiter_locks.Watch(self.jit_dir) if self.jit_dir else None

    def watchdog_s(self, stock_s: float) -> float:
        """Return how long one forward pass may take, given what SGLang allows it."""
        return stock_s + time_limits.seconds(len(self.to_compile))


def prepare(say: Callable[[str], None], *, on_cpu: bool) -> Prepared:
    """Make this launch's directory; as this process ends, it goes, and what was built in it stays.

    Args:
        say: Where lines go that come later than this call.
        on_cpu: Whether the server runs on SGLang's CPU engine, which has no AITER.

    Raises:
        UserError: A lock of AITER's is in the way, or the directory cannot be made.
    """
    if on_cpu:
        return Prepared()
    if given := settings.get("AITER_JIT_DIR"):
        jit_dir = Path(given)
        aiter_locks.wait_until_free(jit_dir)
        said = [f"AITER_JIT_DIR is set: modules in {given} are used as they are, unkeyed"]
        return _prepared({}, said, jit_dir)
    local = settings.local_dir()
    aiter_locks.wait_until_free(local / "none", wait_s=_MERGE_WAIT_S)
    install = aiter_install.find()
    arch, num_cus = keys.target(device.accelerators(), None, None)
    key = keys.of_this_machine(install, arch, num_cus, needed.names())
    stores = [Store(settings.kernel_cache_dir()), launch_copy.kept_store(local)]
    copy = launch_copy.make(key, stores, local, install.prebuilt, say)
    atexit.register(copy.close, say)
    said = _in_words(copy)
    return _prepared(copy.environment(), said, copy.directory, stores[0])


def _prepared(
    environment: dict[str, str], said: Sequence[str], jit_dir: Path, store: Store | None = None
) -> Prepared:
    """Return what a launch does, given what AITER finds where it looks."""
    lacking = time_limits.to_compile(jit_dir)
    if not lacking:
        return Prepared(environment, tuple(said), jit_dir)
    extra_s = time_limits.seconds(len(lacking))
    health_s = time_limits.STOCK_HEALTH_S + extra_s
    lines = [
        *said,
        f"AITER will compile as they are used: {', '.join(lacking)}; for that SGLang's watchdog "
        f"and health check wait {extra_s} s longer",
    ]
    if store is not None and lacking != [time_limits.FROM_TEMPLATES]:
        lines.append(
            "`sglang-mi300a kernel-cache build` makes them ahead, "
            f"`list` compares {store.root} with this machine"
        )
    raised = {**environment, time_limits.HEALTH: str(health_s)}
    return Prepared(raised, tuple(lines), jit_dir, tuple(lacking))


def _in_words(copy: LaunchCopy) -> list[str]:
    lines = [f"damaged, and so built again: {', '.join(copy.damaged)}"] if copy.damaged else []
    have = len(needed.names()) - len(copy.missing)
    lines.append(
        f"AITER's kernels: {have} of {len(needed.names())} compiled ones of key {copy.key.digest}, "
        f"{copy.num_bytes / 1e6:.0f} MB, copied to {copy.directory}"
    )
    return lines
