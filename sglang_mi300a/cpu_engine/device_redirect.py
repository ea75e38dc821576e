"""Let stock code that names the accelerator run where there is none."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class CudaMeansCpu(TorchFunctionMode):
    """Within it, tensors with ``device="cuda"``, or pinned for it, are made as plain host ones."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func`` with the device changed."""
        if func is torch.Tensor.pin_memory:
            return args[0]
        asked = dict(kwargs or {})
        if asked.get("device") == "cuda":
            asked["device"] = "cpu"
        asked.pop("pin_memory", None)
        return func(*args, **asked)


@contextmanager
def states_between_chunks(check: Callable[..., Any]) -> Iterator[None]:
    """Within it, a check of SGLang's finds a device whose kernels give states between chunks out.

    Args:
        check: The function; of the devices it asks for in its module, one says yes.
    """
    module = inspect.unwrap(check).__globals__
    original = module["is_musa"]
    module["is_musa"] = lambda: True
    try:
        yield
    finally:
        module["is_musa"] = original


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
