"""Run skinny products on the interpreter, and what they are compared with."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from sglang_mi300a.gemm.kernels.catalogue import SkinnyKernel
from tests.gfx942 import room
from tests.gfx942.counters import Counters
from tests.gfx942.machine import Machine
from tests.gfx942.room import COMPILERS, from_bf16, to_bf16

RELATIVE_L2 = 2.2e-3
"""Of values rounded to bf16 once: up to 2^-8 each, 1.7e-3 over all."""

BEFORE_ROUNDING = 1e-3
"""Relative L2 to a result that was rounded alike: what the order of float32 sums may change."""


def machine(compiler: str = COMPILERS[0]) -> Machine:
    """Return the room's code object, loaded."""
    return room.machine("gemm", compiler)


@cache
def random_bits(rows: int, columns: int, seed: int, size: float = 1.0) -> np.ndarray:
    """Return a random bf16 matrix, read-only: the interpreter then refuses stores to it too."""
    rng = np.random.default_rng([seed, rows, columns])
    bits = to_bf16(rng.standard_normal((rows, columns), np.float32) * size)
    bits.flags.writeable = False
    return bits


@dataclass(frozen=True)
class Ran:
    """What a launch left.

    Attributes:
        outs: bf16 bits of each matrix's result.
        wanted: Its float32 values, nothing rounded.
        counters: Of the launch.
    """

    outs: tuple[np.ndarray, ...]
    wanted: tuple[np.ndarray, ...]
    counters: Counters


def run(
    kernel: SkinnyKernel,
    num_tokens: int,
    ns: tuple[int, ...],
    k: int,
    *,
    order: str = "forward",
    seed: int = 0,
    on: Machine | None = None,
) -> Ran:
    """Launch a product with one or two random matrices of ``ns`` rows."""
    x = random_bits(num_tokens, k, 1)
    weights = [random_bits(n, k, 2 + i, 0.02) for i, n in enumerate(ns)]
    # One row more than there is, to be left alone; no number, so that what is not written shows.
    outs = [np.full((num_tokens + 1, n), 0xFFFF, np.uint16) for n in ns]
    second = (weights[1], outs[1], np.uint32(2 * ns[1])) if len(ns) > 1 else (None, None, 0)
    items = [n // kernel.rows for n in ns]
    counters = (on or machine()).launch(
        kernel.name,
        (-(-num_tokens // kernel.tokens), sum(items)),
        (kernel.threads,),
        [
            weights[0], outs[0], np.uint32(2 * ns[0]), *second[:2], np.uint32(second[2]),
            x, np.uint32(2 * k), np.uint32(num_tokens), np.uint32(2 * k), np.uint32(items[0]),
        ],
        wave_order=order,
        seed=seed,
    )  # fmt: skip
    assert counters.uninitialised_reads == (), counters.uninitialised_reads[:3]
    assert all((out[num_tokens] == 0xFFFF).all() for out in outs)
    wanted = tuple(from_bf16(x) @ from_bf16(w).T for w in weights)
    return Ran(tuple(out[:num_tokens] for out in outs), wanted, counters)
