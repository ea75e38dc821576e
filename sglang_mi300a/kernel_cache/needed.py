"""AITER's modules and variants that serving this model reaches, as data: ``needed.json``.

Read in SGLang 0.5.18 with ``SGLANG_USE_AITER=1`` and AITER attention, and in AITER at the commit of
its ROCm image and at 0.1.7. Every shipped preset reaches the same ones: the MTP draft differs from
the target in experts only, which do not run on AITER. What is reached beyond them (the paged decode
kernel, compiled from a template for its sizes) is compiled in the warm-up and kept from then on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache.aiter_install import AiterInstall

DATA = Path(__file__).with_name("needed.json")


@dataclass(frozen=True)
class Needed:
    """One module, or one variant of a module.

    Attributes:
        name: What this package calls it.
        modules: AITER's names of it, the newest first; one of them must be known.
        why: What reaches it.
        recipe: AITER's function that names the variant and says how its sources are generated.
        arguments: That function's arguments, where they differ from "nothing special".
        file: What a variant's file is called, a shell pattern; "" where AITER's name of the module
            tells.
    """

    name: str
    modules: tuple[str, ...]
    why: str
    recipe: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""

    def is_in(self, jit_dir: Path) -> bool:
        """Return whether AITER finds it in a directory, whoever put it there."""
        patterns = [self.file] if self.file else [f"{name}.so" for name in self.modules]
        return any(path for pattern in patterns for path in jit_dir.glob(pattern))


def rows() -> tuple[Needed, ...]:
    """Return all rows of the data file."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return tuple(
        Needed(
            name=row["name"],
            modules=tuple(row["module"]),
            why=row["why"],
            recipe=row.get("recipe", ""),
            arguments=row.get("arguments", {}),
            file=row.get("file", ""),
        )
        for row in data["modules"]
    )


def names() -> tuple[str, ...]:
    """Return the names that belong to a key."""
    return tuple(row.name for row in rows())


def module_in(row: Needed, install: AiterInstall) -> str:
    """Return AITER's own name of a needed module.

    Raises:
        UserError: This AITER has none of the known ones.
    """
    known = install.recipes()
    for name in row.modules:
        if name in known:
            return name
    raise UserError(
        str(install.package / "jit/optCompilerConfig.json"),
        found=f"no {' or '.join(row.modules)} among its {len(known)} modules",
        allowed=f"an AITER that has it ({row.why})",
        do="use the AITER of SGLang's ROCm image",
    )
