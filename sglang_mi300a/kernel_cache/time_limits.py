"""How long SGLang may wait for an answer, where AITER still compiles what a launch lacks.

SGLang gives a health check 20 s and one forward pass 300 s, and a first pass that compiles takes
longer. Both are raised by the time that what is missing may take, and by no more: with all kernels
there a server that hangs is found as soon as in stock.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sglang_mi300a.kernel_cache import needed
from sglang_mi300a.kernel_cache.needed import Needed

HEALTH = "SGLANG_HEALTH_CHECK_TIMEOUT"
STOCK_HEALTH_S = 20
"""SGLang's, in ``http_server.py``."""

SLOWEST_S = 363
"""The slowest module on record (sgl-project/sglang 34586): one of the missing may be as slow."""
USUAL_S = 100
"""Each further one: the upper end of what builds took in published runs on this part."""

FROM_TEMPLATES = "kernels from templates"
"""What no list can name: kernels that AITER makes for the sizes it meets, the paged decode's."""


def to_compile(jit_dir: Path, missing: Iterable[str], *, made_before: bool) -> list[str]:
    """Return what AITER will compile as it is used.

    Args:
        jit_dir: Where AITER looks for modules and builds.
        missing: Names of needed modules that nothing put there.
        made_before: Whether kernels made from templates were kept from an earlier start.
    """
    names = set(missing)
    lacking = [
        row.name for row in needed.rows() if row.name in names and not _came_with(row, jit_dir)
    ]
    return lacking if made_before else [*lacking, FROM_TEMPLATES]


def _came_with(row: Needed, jit_dir: Path) -> bool:
    """Return whether AITER brought a module itself; it brings no variant of one."""
    return not row.recipe and any((jit_dir / f"{name}.so").exists() for name in row.modules)


def missing_in(jit_dir: Path) -> list[str]:
    """Return the needed modules that a directory without a key lacks, as far as names tell.

    A variant's file is named after its module without ``module_``, and then what it is for.
    """
    return [row.name for row in needed.rows() if not _is_there(row, jit_dir)]


def _is_there(row: Needed, jit_dir: Path) -> bool:
    if not row.recipe:
        return _came_with(row, jit_dir)
    beginnings = [name.removeprefix("module_") for name in row.modules]
    return any(path for begin in beginnings for path in jit_dir.glob(f"{begin}_*.so"))


def has_made_from_templates(jit_dir: Path) -> bool:
    """Return whether kernels that AITER made from templates are there."""
    return next(jit_dir.glob("build/*/lib.so"), None) is not None


def seconds(lacking: int) -> int:
    """Return how long compiling so many modules, one after the other, may take."""
    return SLOWEST_S + USUAL_S * (lacking - 1) if lacking else 0
