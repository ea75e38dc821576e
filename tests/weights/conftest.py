"""Small checkpoints and artifacts, made once."""

import contextlib
import os

import numpy as np
import pytest

from sglang_mi300a.artifact_manifest import DTYPE_BYTES
from sglang_mi300a.weights.shard import shard_weights
from tests.weights import checkpoints

SGLANG = "==0.5.18"
SMALL_PART_BYTES = 200_000


def make_checkpoint(directory, *, seed=0, text=checkpoints.SMALL_TEXT, **kinds):
    config = checkpoints.config(text)
    return checkpoints.write(directory, config, checkpoints.shapes(text, **kinds), seed=seed)


def shard(model, out, **options):
    return shard_weights(model, out, **{"sglang": SGLANG, "jobs": 2, **options})


def content_of(directory):
    """Return every file of a directory by relative name, hidden ones too."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


class ArraySink:
    """A sink that keeps one rank's tensors as bytes; what is never written stays zero."""

    def __init__(self, tensors, is_straight=False):
        self.is_straight = is_straight
        self.bytes = {
            t.name: np.zeros(int(np.prod(t.shape)) * DTYPE_BYTES[t.dtype], dtype=np.uint8)
            for t in tensors
        }

    def start_thread(self):
        pass

    def pinned(self, buffers):
        return contextlib.nullcontext()

    def destination(self, name):
        return self.bytes[name] if self.is_straight else None

    def write(self, name, offset, data):
        assert not self.is_straight
        self.bytes[name][offset : offset + len(data)] = data


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks():
    """Skip fsync in this process; what depends on it runs in processes of its own."""
    real, os.fsync = os.fsync, lambda descriptor: None
    yield
    os.fsync = real


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A checkpoint with MXFP4 experts and an MTP layer, 4 layers, ~1.3 MB."""
    return make_checkpoint(tmp_path_factory.mktemp("small") / "checkpoint")


@pytest.fixture(scope="session")
def small_tp2(small, tmp_path_factory):
    """Its artifact for two ranks, in several parts; not to be changed."""
    out = tmp_path_factory.mktemp("small-tp2") / "artifact"
    shard(small, out, tp=2, part_bytes=SMALL_PART_BYTES)
    return out
