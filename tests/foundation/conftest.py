import importlib.util
import sys

import pytest

from sglang_mi300a import hook_fit, hooking, plugin
from tests.foundation import fake_sglang


@pytest.fixture
def fake_root(tmp_path, monkeypatch):
    """A directory on sys.path that holds the fake_sglang package."""
    fake_sglang.write(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    fake_sglang.forget()
    hooking.forget()


@pytest.fixture
def stock():
    """Stock SGLang's own hook registry, loaded from its file alone and so always fresh."""
    file = plugin.installed_sglang().root / "sglang/srt/plugins/hook_registry.py"
    spec = importlib.util.spec_from_file_location("stock_hook_registry", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def pins_of(fake_root):
    """Return a function that pins targets as they stand in the fake package."""

    def pin(*targets):
        path = fake_root / "pins.json"
        path.write_text(hook_fit.pin(list(targets), hook_fit.DirectoryTree(fake_root), "0.5.18"))
        return hook_fit.Pins.load(path)

    return pin
