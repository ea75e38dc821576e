"""Measured times of our dense products, each with the prediction that it is evidence for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sglang_mi300a.cost_model import Machine
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import tuned_table
from sglang_mi300a.gemm.kernels import catalogue, prediction
from sglang_mi300a.gemm.kernels.prediction import WorkgroupCounts
from sglang_mi300a.model_refit import Measurement
from sglang_mi300a.tables import Table


def of_table(table: Table, counts: Mapping[str, WorkgroupCounts], where: str) -> list[Measurement]:
    """Return the rows of a table of dense products that our kernels were measured for.

    Args:
        table: With operation ``gemm_bf16``.
        counts: Of the kernels, by name.
        where: Named in errors.

    Raises:
        UserError: A row is of a variant that this version does not have.
    """
    found = []
    for cell, choice in tuned_table.choices(table).items():
        if choice.basis != "measured" or not choice.kernel:
            continue
        if choice.kernel not in {kernel.name for kernel in catalogue.KERNELS}:
            raise UserError(
                where,
                found=f"variant {choice.kernel}",
                allowed="kernels that this version ships",
                do="ingest it with the version that made it",
            )
        found.append(
            Measurement(
                claim=f"dense product {choice.kernel}",
                num_tokens=cell.m,
                what=f"{cell.n} x {cell.k}",
                us=choice.us,
                predict=_predict(choice.kernel, counts, cell.m, cell.n, cell.k),
                band_percent=prediction.BAND_PERCENT,
            )
        )
    return found


def _predict(
    name: str, counts: Mapping[str, WorkgroupCounts], num_tokens: int, n: int, k: int
) -> Callable[[Machine], float]:
    kernel = catalogue.named(name)
    return lambda machine: prediction.predict(kernel, counts[name], num_tokens, n, k, machine).us
