"""Stand-in for SGLang's kernel package on a CPU without AMX: torch references of what is asked for.

Refuses to be imported beside the real package and where there is an accelerator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_mi300a.cpu_engine import coverage, presence

presence.refuse_here(Path(__file__).resolve().parents[1])
coverage.register_operators()
globals().update(coverage.functions("sgl_kernel"))


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise coverage.UncoveredImport(coverage.not_covered("sgl_kernel", name), name=__name__)
