"""What doctor may put right by itself: nothing is deleted, and nothing of another user touched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from sglang_mi300a.doctor.judging import Finding
from sglang_mi300a.weights import page_cache

CAN_FIX = ("page-cache-holds-memory", "page-cache-not-written-back")


def fix(found: Iterable[Finding], paths: Mapping[str, Path]) -> list[str]:
    """Put right what is safe to; return what was done, a line each.

    Args:
        found: What was found.
        paths: Real places, by what they are for.
    """
    ids = {one.id for one in found} & set(CAN_FIX)
    done = []
    if ids:
        os.sync()
        done.append("wrote back what was waiting for the disk (sync)")
    if "page-cache-holds-memory" in ids and "model" in paths:
        files = sorted(path for path in paths["model"].rglob("*") if path.is_file())
        page_cache.drop(files)
        done.append(f"dropped the page cache of {len(files)} files below {paths['model']}")
    return done
