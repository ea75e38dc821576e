"""How long SGLang may wait for an answer, where AITER still compiles what a launch lacks.

SGLang gives a health check 20 s and one forward pass 300 s, and a first pass that compiles takes
longer. Both are raised by the time that what is missing may take, and by no more: with all kernels
there a server that hangs is found as soon as in stock.
"""

from __future__ import annotations

from pathlib import Path

from sglang_mi300a.kernel_cache import needed

HEALTH = "SGLANG_HEALTH_CHECK_TIMEOUT"
STOCK_HEALTH_S = 20
"""SGLang's, in ``http_server.py``."""

SLOWEST_S = 363
"""The slowest module on record (sgl-project/sglang 34586): one of the missing may be as slow."""
USUAL_S = 100
"""Each further one: the upper end of what builds took in published runs on this part."""

FROM_TEMPLATES = "kernels from templates"
"""What no list can name: kernels that AITER makes for the sizes it meets, the paged decode's."""


def to_compile(jit_dir: Path) -> list[str]:
    """Return what AITER will compile as it is used.

    Args:
        jit_dir: Where AITER looks for modules and builds.
    """
    lacking = [row.name for row in needed.rows() if not row.is_in(jit_dir)]
    made_before = any(jit_dir.glob("build/*/lib.so"))
    return lacking if made_before else [*lacking, FROM_TEMPLATES]


def seconds(lacking: int) -> int:
    """Return how long compiling so many modules, one after the other, may take."""
    return SLOWEST_S + USUAL_S * (lacking - 1) if lacking else 0
