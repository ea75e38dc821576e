"""A small package on disk that stands in for SGLang, so that hooks can go wrong in known ways."""

import importlib
import sys
import textwrap
from pathlib import Path

FILES = {
    "fake_sglang/__init__.py": "",
    "fake_sglang/pool.py": """
        class Pool:
            def size(self, free):
                return free * 2

        def free_memory(device):
            return 100
    """,
    "fake_sglang/caller.py": """
        import functools

        from fake_sglang.pool import Pool, free_memory

        TABLE = {"free": free_memory}
        bound = functools.partial(free_memory, "gpu")

        def through_name():
            return free_memory("gpu")

        def through_dict():
            return TABLE["free"]("gpu")

        def through_partial():
            return bound()

        def through_default(call=free_memory):
            return call("gpu")

        class OldPool(Pool):
            size = Pool.size
    """,
    "fake_sglang/registry.py": """
        METHODS = {"quark": object, "other": object}
    """,
}


def write(root: Path) -> None:
    """Write the package below ``root``."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


def imported(monkeypatch, root: Path, name: str):
    """Import one of its modules afresh."""
    monkeypatch.syspath_prepend(str(root))
    return importlib.import_module(name)


def forget() -> None:
    """Drop its modules, so that the next test imports them unpatched."""
    for name in [name for name in sys.modules if name.split(".")[0] == "fake_sglang"]:
        del sys.modules[name]
