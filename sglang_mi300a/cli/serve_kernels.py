"""What a launcher does about AITER's compiled kernels: a directory of this launch's own."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sglang_mi300a import device, settings
from sglang_mi300a.kernel_cache import aiter_install, aiter_locks, launch_copy, needed
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
    """

    environment: dict[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    jit_dir: Path | None = None

    def watch(self) -> aiter_locks.Watch | None:
        """Return what watches AITER's locks while the server starts."""
        return aiter_locks.Watch(self.jit_dir) if self.jit_dir else None


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
        aiter_locks.wait_until_free(Path(given))
        return Prepared(
            said=(f"AITER_JIT_DIR is set: modules in {given} are used as they are, unkeyed",),
            jit_dir=Path(given),
        )
    local = settings.local_dir()
    aiter_locks.wait_until_free(local / "none", wait_s=_MERGE_WAIT_S)
    install = aiter_install.find()
    arch, num_cus = keys.target(device.accelerators(), None, None)
    key = keys.of_this_machine(install, arch, num_cus, needed.names())
    stores = [Store(settings.kernel_cache_dir()), launch_copy.kept_store(local)]
    copy = launch_copy.make(key, stores, local, install.prebuilt, say)
    atexit.register(copy.close, say)
    return Prepared(copy.environment(), tuple(_in_words(copy, stores[0])), copy.directory)


def _in_words(copy: LaunchCopy, store: Store) -> list[str]:
    lines = [f"damaged, and so built again: {', '.join(copy.damaged)}"] if copy.damaged else []
    have = len(needed.names()) - len(copy.missing)
    lines.append(
        f"AITER's kernels: {have} of {len(needed.names())} compiled ones of key {copy.key.digest}, "
        f"{copy.num_bytes / 1e6:.0f} MB, copied to {copy.directory}"
    )
    if copy.missing:
        lines.append(
            f"AITER will compile {', '.join(copy.missing)} as they are used unless it came with "
            f"them, 100 s each in published runs; `sglang-mi300a kernel-cache build` makes them "
            f"ahead, `list` compares {store.root} with this machine"
        )
    return lines
