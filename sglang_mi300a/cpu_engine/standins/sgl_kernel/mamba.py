"""The linear-attention part of the stand-in."""

from __future__ import annotations

from typing import Any

from sglang_mi300a.cpu_engine import coverage

globals().update(coverage.functions("sgl_kernel.mamba"))


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise coverage.UncoveredImport(coverage.not_covered("sgl_kernel.mamba", name), name=__name__)
