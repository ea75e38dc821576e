"""PyPI's AITER, 40 MB, which ``make setup`` downloads beside the packages it installs.

It is not installed: its import asks for ROCm, and SGLang would try. Tests take out what they need.
"""

import sys
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix) / "wheels"


def wheel() -> Path:
    """Return the wheel; skip, aloud, where it was not downloaded."""
    found = sorted(FOLDER.glob("amd_aiter-*.whl"))
    if not found:
        pytest.skip(f"no amd_aiter wheel in {FOLDER}: run `make setup`")
    return found[-1]


def extract(target: Path, *prefixes: str) -> Path:
    """Unpack the members under any of these prefixes; return the path of the first prefix."""
    with zipfile.ZipFile(wheel()) as archive:
        names = [
            name
            for name in archive.namelist()
            if name.startswith(prefixes) and not name.endswith(".pyc")
        ]
        archive.extractall(target, names)
    return target / prefixes[0]


def package(target: Path) -> Path:
    """Unpack builder, recipes, C++ sources and the attention kernels' generator; return it."""
    prefixes = ("aiter/jit", "aiter/ops/mha.py", "aiter/_version", "aiter/install_mode")
    generator = "aiter_meta/3rdparty/composable_kernel/example/ck_tile/01_fmha"
    extract(target, *prefixes, "aiter/__init__.py", "aiter_meta/csrc", generator)
    return target / "aiter"
