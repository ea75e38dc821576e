"""The stream that a kernel is launched on: torch's current one of the device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_host = threading.local()


def current(device: torch.device) -> int:
    """Return the handle of the device's current stream; for the CPU, the stand-in's."""
    if device.type == "cpu":
        stream: int = getattr(_host, "stream", 0)
        return stream
    return int(torch.cuda.current_stream(device).cuda_stream)


@contextmanager
def on_host_stream(stream: int) -> Iterator[None]:
    """Make a stand-in runtime's stream the current one of CPU tensors, for this thread."""
    before = getattr(_host, "stream", 0)
    _host.stream = stream
    try:
        yield
    finally:
        _host.stream = before
