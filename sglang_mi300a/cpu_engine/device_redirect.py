"""Let stock code that names the accelerator run where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class CudaMeansCpu(TorchFunctionMode):
    """Within it, tensors asked for with ``device="cuda"`` are made in host memory."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func`` with the device changed."""
        asked = dict(kwargs or {})
        if asked.get("device") == "cuda":
            asked["device"] = "cpu"
        return func(*args, **asked)


@contextmanager
def nothing_to_wait_for() -> Iterator[None]:
    """Within it, ``torch.cuda.synchronize`` does nothing instead of failing."""
    original = torch.cuda.synchronize

    def synchronize(device: Any = None) -> None:
        """Return at once."""

    torch.cuda.synchronize = synchronize
    try:
        yield
    finally:
        torch.cuda.synchronize = original
