"""Products of few tokens on the gfx942 kernels, one torch operator.

    torch.ops.sglang_mi300a.gemm_skinny(x, weight, out, second_weight, second_out, kernel)

Nothing is allocated here: results are the caller's, so a graph may record the call.
"""

# No annotations from the future: torch reads the operator's schema off them.
from functools import cache, lru_cache

import torch

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm.kernels import catalogue
from sglang_mi300a.gemm.kernels.catalogue import SkinnyKernel
from sglang_mi300a.launcher import kernels, operators
from sglang_mi300a.launcher.signature import Buffer, Scalar, Signature

_BF16_BYTES = 2


@cache
def signature(name: str) -> Signature:
    """Return the signature of a kernel of the room's code object.

    Raises:
        KeyError: The room has no such kernel.
    """
    return Signature(
        name,
        (
            Buffer("weights", "bfloat16", ("rows", "k")),
            Buffer("out", "bfloat16", ("num_tokens", "rows"), written=True),
            Scalar("out_row_bytes", "u32"),
            Buffer("weights_2", "bfloat16", ("rows_2", "k"), optional=True),
            Buffer("out_2", "bfloat16", ("num_tokens", "rows_2"), written=True, optional=True),
            Scalar("out_row_bytes_2", "u32"),
            Buffer("x", "bfloat16", ("num_tokens", "k")),
            Scalar("x_row_bytes", "u32"),
            Scalar("num_tokens", "u32"),
            Scalar("row_bytes", "u32"),
            Scalar("num_items", "u32"),
        ),
        catalogue.named(name).threads,
    )


@lru_cache(maxsize=1)
def _code() -> code_objects.CodeObject:
    return code_objects.load(catalogue.ROOM)


def _run(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    second_weight: torch.Tensor | None,
    second_out: torch.Tensor | None,
    kernel: str,
) -> None:
    try:
        variant = catalogue.named(kernel)
    except KeyError as error:
        names = ", ".join(row.name for row in catalogue.KERNELS)
        raise _refused("kernel", kernel, names) from error
    if (second_weight is None) != (second_out is None):
        raise _refused("second matrix", "weights or result alone", "both, or neither")
    if x.shape[0] == 0:
        return
    second = 0 if second_weight is None else _items(variant, second_weight, "second weights")
    items = _items(variant, weight, "weights")
    arguments = [
        weight,
        out,
        weight.shape[0] * _BF16_BYTES,
        second_weight,
        second_out,
        0 if second_weight is None else second_weight.shape[0] * _BF16_BYTES,
        x,
        x.shape[1] * _BF16_BYTES,
        x.shape[0],
        x.shape[1] * _BF16_BYTES,
        items,
    ]
    units = -(-x.shape[0] // variant.tokens)
    launched = kernels.load(_code(), x.device).kernel(signature(kernel))
    launched.launch((units, items + second), arguments)


def _items(variant: SkinnyKernel, weight: torch.Tensor, what: str) -> int:
    n, k = weight.shape
    if not variant.takes(n, k):
        raise _refused(
            what,
            f"[{n}, {k}] for {variant.name}",
            f"rows in multiples of {variant.rows}, columns in multiples of {variant.k_multiple}",
        )
    return n // variant.rows


def _refused(what: str, found: str, allowed: str) -> UserError:
    return UserError(
        f"skinny product, {what}",
        found=found,
        allowed=allowed,
        do="give what the kernels were written for; nothing was launched",
    )


def _fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    second_weight: torch.Tensor | None,
    second_out: torch.Tensor | None,
    kernel: str,
) -> None:
    """Write nothing: the operator's only results are what it was given to write."""


product = operators.define("gemm_skinny", _run, fake=_fake, mutates=("out", "second_out"))
"""``out = x @ weight.T``, and the same for a second matrix of the same K in the same launch.

    x              bf16 [M, K], contiguous
    weight         bf16 [N, K], as SGLang stores it
    out            bf16 [M, N]; written
    second_weight  bf16 [N2, K]; or None
    second_out     bf16 [M, N2]; written; or None
    kernel         name of a variant that takes both sizes
"""
