"""The repository's own files, as git or else the unpacked source archive lists them."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sglang_mi300a"

_MADE_HERE = {"build", "dist", "__pycache__"}


def files() -> list[str]:
    """Return the files that are, or are about to be, in the repository; paths relative to it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
    else:  # an unpacked source archive
        names = [
            str(path.relative_to(ROOT))
            for path in ROOT.rglob("*")
            if not {part for part in path.relative_to(ROOT).parts if _is_made_here(part)}
        ]
    return sorted(name for name in names if (ROOT / name).is_file())


def _is_made_here(part: str) -> bool:
    caches = part.startswith(".") and part.endswith(("_cache", ".hypothesis", ".venv"))
    return part in _MADE_HERE or part.endswith((".egg-info", ".pyc")) or caches
