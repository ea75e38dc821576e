"""A key, a store, a node's directory and a builder over the stand-in AITER, without torch."""

import json
import os

import pytest

from sglang_mi300a import settings
from sglang_mi300a.kernel_cache import local_disk, needed
from sglang_mi300a.kernel_cache.build import Builder
from sglang_mi300a.kernel_cache.key import CacheKey
from sglang_mi300a.kernel_cache.store import Store, StoredModule
from tests.kernel_cache import standin_aiter

# Variants go through torch, which takes seconds to import; most tests need none.
PLAIN = tuple(row for row in needed.rows() if not row.recipe)


def make_key(**changes):
    """A key of no machine in particular."""
    fields = {
        "aiter_version": "0.1.8",
        "aiter_commit": "d9e5ef7ce",
        "aiter_source": "0" * 64,
        "rocm": "7.0.1",
        "arch": "gfx942",
        "num_cus": 228,
        "torch": "2.9.0 abc 7.0",
        "python": "cpython-310-x86_64-linux-gnu",
        "switches": {},
        "modules": tuple(sorted(needed.names())),
    }
    return CacheKey(**{**fields, **changes})


@pytest.fixture
def key():
    return make_key()


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store")
    made.check_writable()
    return made


@pytest.fixture
def local(tmp_path):
    return local_disk.prepare(tmp_path / "local")


@pytest.fixture
def install(tmp_path):
    return standin_aiter.installed(tmp_path / "opt")


@pytest.fixture
def compiled_by(tmp_path, monkeypatch):
    """Return who compiled a module so far: the stand-in's lines ``pid jobs``."""
    folder = tmp_path / "compiled-by"
    folder.mkdir()
    monkeypatch.setenv("STANDIN_LOG", str(folder))

    def lines(module):
        path = folder / module
        return path.read_text().splitlines() if path.is_file() else []

    return lines


@pytest.fixture
def builder(key, install, store, local, compiled_by):
    return Builder(key=key, install=install, store=store, local=local, num_jobs=2, wait_s=60)


def stored(store, key, name, content, path=None):
    """Put one module of given bytes into a store."""
    with store.incoming() as temporary:
        temporary.write_bytes(content)
        row = store.adopt(temporary, path or f"{name}.so")
    module = StoredModule(name, (row,))
    store.publish(key, [module])
    return module


def everything(folder):
    """Return every file below a folder with its bytes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def as_record(**fields):
    """A lock's record."""
    return json.dumps({"host": "n", "boot_id": "b", "pid": 1, "start_ticks": 1, **fields})


@pytest.fixture
def not_root():
    """Skip where modes and owners stop nobody."""
    if os.getuid() == 0:
        pytest.skip("root reads and writes everything")


@pytest.fixture(autouse=True)
def no_switches(monkeypatch):
    for name in settings.AITER_SWITCHES:
        monkeypatch.delenv(name, raising=False)
