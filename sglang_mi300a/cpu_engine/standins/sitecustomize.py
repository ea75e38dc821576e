"""Runs at the start of every Python process that has this folder on PYTHONPATH.

Three things must be in place before any plugin's code can run: the variables that SGLang, torch
and OpenMP read while they are imported; two operator schemas without which torchvision cannot be
imported beside a CPU build of torch; and whatever ``sitecustomize`` this one hides. Processes that
never import torchvision pay for a few assignments only.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType

DEFAULTS = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"}


class _SchemasBeforeTorchvision:
    """Defines the schemas when torchvision is about to need them.

    torchvision loads its compiled operators first, then refers to them in ``_meta_registrations``.
    A compiled part built for another torch does not load, and only then are the schemas missing.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torchvision._meta_registrations":
            sys.meta_path.remove(self)  # type: ignore[arg-type]
            importlib.import_module("sglang_mi300a.torchvision_schemas").define_missing()


def run_hidden_sitecustomize() -> None:
    """Run the next ``sitecustomize`` on the path, as if this folder were not there."""
    here = os.path.dirname(os.path.realpath(__file__))
    others = [entry for entry in sys.path if os.path.realpath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        hidden = ModuleType(spec.name)
        hidden.__spec__, hidden.__file__ = spec, spec.origin
        spec.loader.exec_module(hidden)


for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)
sys.meta_path.insert(0, _SchemasBeforeTorchvision())  # type: ignore[arg-type]
run_hidden_sitecustomize()
