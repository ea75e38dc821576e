"""Running Python with the stand-ins first on its path, as a server does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sglang_mi300a.cpu_engine import recipe

REPOSITORY = Path(__file__).parents[2]


def run(
    code: str, *more_path: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter and return what it printed and how it ended.

    Args:
        code: The program.
        more_path: Folders behind the stand-ins and this repository on PYTHONPATH.
        environment: Variables beside the inherited ones.
    """
    path = os.pathsep.join(map(str, (recipe.standins_path(), REPOSITORY, *more_path)))
    inherited = {k: v for k, v in os.environ.items() if k not in recipe_variables()}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, "PYTHONPATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )


def recipe_variables() -> set[str]:
    """Return the names of the variables that the recipe sets."""
    return {each.name for each in recipe.VARIABLES}


def output(code: str, *more_path: Path, environment: dict[str, str] | None = None) -> str:
    """Run ``code`` as :func:`run` does and return its output; it must not fail."""
    done = run(code, *more_path, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
