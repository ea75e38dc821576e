"""Make a torch operator of a function that launches kernels.

torch.compile and graph capture then see one call with known outputs, and never look inside: a
launch is opaque to them, and a tensor without memory (a fake one) must not reach it.

    def moe_layer(x: torch.Tensor, stream: torch.Tensor, top_k: int) -> torch.Tensor: ...
    def moe_layer_fake(x, stream, top_k): return torch.empty_like(x)

    moe_layer = operators.define("moe_layer", moe_layer_body, fake=moe_layer_fake)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

NAMESPACE = "sglang_mi300a"
"""The operators are ``torch.ops.sglang_mi300a.<name>``."""

_library: torch.library.Library | None = None
_schemas: dict[str, str] = {}


def define(
    name: str,
    body: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    mutates: Sequence[str] = (),
) -> torch._ops.OpOverload:
    """Return an operator that calls ``body`` on real tensors and ``fake`` on ones without memory.

    Args:
        name: Of the operator.
        body: Its parameters and result are annotated with torch's operator types; it may return no
            tensor that it was given, or a view of one.
        fake: Takes the same arguments, returns empty tensors of the shape, dtype and device that
            ``body`` would return, and touches no data.
        mutates: Names of the parameters whose tensors ``body`` writes, outputs and workspaces.

    Raises:
        ValueError: The name is taken, or ``mutates`` names no parameter.
    """
    global _library
    if name in _schemas:
        raise ValueError(f"operator {name} is defined already: {_schemas[name]}")
    schema = name + torch.library.infer_schema(body, mutates_args=tuple(mutates))
    if _library is None:
        _library = torch.library.Library(NAMESPACE, "FRAGMENT")
    _library.define(schema)
    # For every device: the launcher itself refuses tensors that are not on its kernel's.
    _library.impl(name, body, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    _schemas[name] = schema
    operator: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    return operator


def schemas() -> dict[str, str]:
    """Return the schema of each operator that was defined, by name."""
    return dict(_schemas)
