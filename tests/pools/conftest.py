"""SGLang's own scheduler and cache classes in this process, imported as on the CPU engine."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from sglang_mi300a.cpu_engine import recipe


@pytest.fixture(scope="session")
def replay_server() -> ModuleType:
    """``benchmarks.replay_server``, which imports SGLang; takes some 10 s, once a session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(recipe.standins_path()))
        # SGLang asks whether it runs on a CPU once, while it is imported.
        patch.setenv("SGLANG_USE_CPU_ENGINE", "1")
        patch.setenv("TORCH_COMPILE_DISABLE", "1")
        importlib.import_module("sglang_mi300a.torchvision_schemas").define_missing()
        return importlib.import_module("benchmarks.replay_server")
