"""Which dense products of few tokens run on this package's kernels, and running them.

A table that was measured on the stack at hand wins: where it has a row for a product, or says that
stock is as fast, that is what runs. Elsewhere, and so on the first day everywhere, the kernel that
the cost model takes for the fastest runs, up to 256 tokens; with the constants of a refit, where
they are applied, else with the shipped ones. Every kernel is tested on the device
before it serves; one that is wrong is dropped and said.

Two products that SGLang makes of the same input, one right after the other, are made in one launch:
the first computes the second's too, which then is found here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sglang_mi300a import fitted_constants, settings
from sglang_mi300a.cost_model import MACHINE, Machine
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import padding, staging, tuned_table
from sglang_mi300a.gemm.kernels import catalogue, prediction
from sglang_mi300a.gemm.kernels.catalogue import MAX_TOKENS, SkinnyKernel
from sglang_mi300a.gemm.row_counts import bucket_for
from sglang_mi300a.gemm.shape_grid import Cell
from sglang_mi300a.gemm.tuned_table import KERNELS_BUILD, Choice
from sglang_mi300a.launcher.failure import LauncherError

RELATIVE_L2 = 2.2e-3
"""Of a right product: many values rounded to bf16 once, up to 2^-8 each, are 1.7e-3 off."""

_ALIGN_BYTES = 16
_TESTED_TOKENS = 17

Run = Callable[..., None]


@dataclass(frozen=True)
class SelfTest:
    """What the test of every kernel on the device found.

    Attributes:
        usable: Names of those that gave the right product.
        dropped: Why each other did not, by name.
    """

    usable: frozenset[str]
    dropped: Mapping[str, str]


def self_test(run: Run, device: torch.device) -> SelfTest:
    """Return which kernels give torch's product of small random matrices on a device.

    Args:
        run: ``skinny.product``.
        device: Where.
    """
    usable, dropped = set(), {}
    for kernel in catalogue.KERNELS:
        try:
            distance = _distance(run, kernel, device)
        except (UserError, LauncherError) as error:
            dropped[kernel.name] = str(error)
            continue
        if distance <= RELATIVE_L2:
            usable.add(kernel.name)
        else:
            dropped[kernel.name] = f"relative L2 {distance:.1e}, at most {RELATIVE_L2:.1e}"
    return SelfTest(frozenset(usable), dropped)


def _distance(run: Run, kernel: SkinnyKernel, device: torch.device) -> float:
    generator = torch.Generator().manual_seed(kernel.tokens)

    def random(rows: int) -> torch.Tensor:
        return torch.randn(rows, kernel.k_multiple, generator=generator).bfloat16()

    x, weights = random(_TESTED_TOKENS), (random(2 * kernel.rows), random(kernel.rows))
    outs = [torch.empty(len(x), len(w), dtype=x.dtype, device=device) for w in weights]
    first, second = (w.to(device) for w in weights)
    run(x.to(device), first, outs[0], second, outs[1], kernel.name)
    got = torch.cat([out.cpu().double() for out in outs], dim=1)
    want = torch.cat([x.double() @ w.double().T for w in weights], dim=1)
    distance = float((got - want).norm() / want.norm())
    return distance if distance == distance else float("inf")


class OwnProducts:
    """The kernels' part in this process's dense products; none until :meth:`begin`.

    Attributes:
        report: Kept current: which kernel serves each product, pairs that make one launch, what
            was dropped, and by which constants (``model``, their digest) the model chooses.
    """

    def __init__(self) -> None:
        self._run: Run | None = None
        self._usable: frozenset[str] = frozenset()
        self._table: Mapping[Cell, Choice] = {}
        self._settled: frozenset[Cell] = frozenset()
        self._machine = MACHINE
        self._tuned_rows: dict[tuple[int, int], list[int]] = {}
        self._kernels: dict[tuple[Cell, tuple[int, ...]], str | None] = {}
        self._pairs: dict[int, tuple[Any, Any]] = {}
        self._waiting: tuple[Any, Any, torch.Tensor] | None = None
        self.report: dict[str, Any] = {"products": {}, "pairs": "none yet", "dropped": {}}

    def begin(
        self,
        run: Run,
        test: SelfTest,
        table: Mapping[Cell, Choice] | None = None,
        settled: frozenset[Cell] = frozenset(),
        machine: Machine = MACHINE,
    ) -> None:
        """Make products from now on.

        Args:
            run: ``skinny.product``.
            test: Of the kernels on this process's device.
            table: Rows of the applied table.
            settled: Products for which the table says that stock is as fast.
            machine: Constants by which the model chooses elsewhere.
        """
        self._run, self._usable, self._machine = run, test.usable, machine
        self._table, self._settled = table or {}, settled
        self._tuned_rows.clear()
        for cell in sorted({*self._table, *settled}):
            self._tuned_rows.setdefault((cell.n, cell.k), []).append(cell.m)
        self._kernels.clear()
        self.report["dropped"] = dict(test.dropped)
        self.report["model"] = machine.digest

    def pair(self, first: Any, second: Any) -> None:
        """Let a product with ``first`` compute the one with ``second`` too, which follows it.

        Args:
            first: Weight ``[N, K]`` of the product that SGLang makes first.
            second: Weight ``[N2, K]`` of the one that it makes next, of the same input.
        """
        self._pairs[id(first)] = (first, second)  # both kept: an id is reused after its object

    def product(self, x: Any, weight: Any, bias: Any) -> torch.Tensor | None:
        """Return ``x @ weight.T``, or None where it is not ours to make.

        Args:
            x: Input, ``[M, K]``.
            weight: ``[N, K]``.
            bias: Of the product, or None.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            if waiting[0] is x and waiting[1] is weight and bias is None:
                return waiting[2]
            # Computed for nothing: SGLang makes other products in between.
            self._pairs.clear()
            self.report["pairs"] = "given up: another product came between"
        if self._run is None or bias is not None or not _fits(x, weight):
            return None
        (m, k), n = x.shape, weight.shape[0]
        _, second = self._pairs.get(id(weight), (None, None))
        if second is not None and _fits(x, second):
            n_2 = second.shape[0]
            kernel = self._kernel_for(Cell(n + n_2, k, m), (n, n_2))
            if kernel is not None:
                out: torch.Tensor = x.new_empty((m, n))
                out_2 = x.new_empty((m, n_2))
                self._run(x, weight, out, second, out_2, kernel)
                self._waiting = (x, second, out_2)
                self.report["pairs"] = "one launch each"
                return out
        kernel = self._kernel_for(Cell(n, k, m), (n,))
        if kernel is None:
            return None
        alone: torch.Tensor = x.new_empty((m, n))
        self._run(x, weight, alone, None, None, kernel)
        return alone

    def _kernel_for(self, cell: Cell, parts: tuple[int, ...]) -> str | None:
        if (cell, parts) not in self._kernels:
            name = self._kernels[cell, parts] = self._chosen(cell, parts)
            if name is not None:
                self.report["products"][f"{'+'.join(map(str, parts))}x{cell.k}x{cell.m}"] = name
        return self._kernels[cell, parts]

    def _chosen(self, cell: Cell, parts: tuple[int, ...]) -> str | None:
        if not 1 <= cell.m <= MAX_TOKENS:
            return None
        if len(parts) > 1 and (together := self._pair_by_table(cell, parts)) is not None:
            return together
        ruled = [self._by_table(Cell(n, cell.k, cell.m)) for n in parts]
        if any(said is not None for said in ruled):
            return ruled[0] or None if len(parts) == 1 else None
        counts = prediction.shipped_counts()
        times = {
            kernel.name: prediction.predict(
                kernel, counts[kernel.name], cell.m, cell.n, cell.k, self._machine
            ).us
            for kernel in catalogue.KERNELS
            if kernel.name in self._usable and all(kernel.takes(n, cell.k) for n in parts)
        }
        return min(times, key=lambda name: times[name], default=None)

    def _by_table(self, cell: Cell) -> str | None:
        """Return the kernel that the table names for a product, "" for the library, or None."""
        rows = bucket_for(cell.m, self._tuned_rows.get((cell.n, cell.k), ()))
        tuned = Cell(cell.n, cell.k, rows)
        row = self._table.get(tuned)
        if row is None:
            return "" if tuned in self._settled else None
        return row.kernel if row.kernel in self._usable and not row.parts else ""

    def _pair_by_table(self, cell: Cell, parts: tuple[int, ...]) -> str | None:
        """Return the kernel that the table names for two products in one launch, or None."""
        rows = bucket_for(cell.m, self._tuned_rows.get((parts[0], cell.k), ()))
        row = self._table.get(Cell(cell.n, cell.k, rows))
        return row.kernel if row and row.parts == parts and row.kernel in self._usable else None


def _fits(x: Any, weight: Any) -> bool:
    return (
        isinstance(weight, torch.Tensor)
        and x.dim() == weight.dim() == 2
        and x.shape[1] == weight.shape[1]
        and x.dtype is weight.dtype is torch.bfloat16
        and x.is_contiguous()
        and weight.is_contiguous()
        and not (x.data_ptr() | weight.data_ptr()) % _ALIGN_BYTES
    )


def start(record: settings.Resolved, run: Run, device: torch.device) -> list[str]:
    """Test the kernels on a device and let them serve this process; return lines to say.

    Args:
        record: The launcher's decision.
        run: ``skinny.product``.
        device: This rank's.
    """
    if record.gemm.get("kernels") != "own":
        return []
    test = self_test(run, device)
    said = [f"dense kernel {name} is not used: {why}" for name, why in test.dropped.items()]
    table: dict[Cell, Choice] = {}
    settled: frozenset[Cell] = frozenset()
    if record.gemm.get("table"):
        applied = staging.read(Path(record.gemm["table"])).table
        table, settled = tuned_table.choices(applied), frozenset(tuned_table.settled(applied))
        said += _without_rows_of_another_build(table, str(applied.made.get(KERNELS_BUILD)))
    machine = fitted_constants.machine(record.gemm.get("constants", {}))
    of_this_process().begin(run, test, table, settled, machine)
    return said


def _without_rows_of_another_build(table: dict[Cell, Choice], measured: str) -> list[str]:
    """Take a table's kernel rows out if another build of the kernels was measured; say so."""
    here = catalogue.build()
    stale = [cell for cell, row in table.items() if row.choice == "kernel"]
    if measured == here or not stale:
        return []
    for cell in stale:
        del table[cell]
    return [
        f"gemm table: {len(stale)} rows name kernels of build {measured}, here is {here}: the "
        "model chooses there, and `sglang-mi300a tune gemm` measures this build"
    ]


_of_this_process = OwnProducts()


def of_this_process() -> OwnProducts:
    """Return this process's; it makes no product until :func:`start`."""
    return _of_this_process


def made(x: Any, weight: Any, bias: Any) -> Any:
    """Return a product that our kernels made, and remember it; None where they make none.

    Args:
        x: Input, [M, K].
        weight: Weight, [N, K].
        bias: Of the product, or None.
    """
    out = of_this_process().product(x, weight, bias)
    if out is not None:
        padding.of_this_process().remember(tuple(weight.shape), int(x.shape[0]))
    return out
