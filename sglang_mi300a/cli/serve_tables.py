"""What a launcher does about dense products: which table serves them, or what one would bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sglang_mi300a import fitted_constants, settings
from sglang_mi300a.cli import gemm_grid, tables
from sglang_mi300a.cli.one_file_tables import CONSTANTS
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import coverage, live_stack, padding, stack_fit, staging
from sglang_mi300a.gemm.kernels.catalogue import MAX_TOKENS
from sglang_mi300a.gemm.shape_grid import ShapeGrid
from sglang_mi300a.gemm.staging import Applied
from sglang_mi300a.gemm.tuning_plan import minutes_for
from sglang_mi300a.served_model import ServedModel

_BROUGHT = (
    "in published runs of this model tuning took the dense products of a pass from 23 ms to 2.6 ms "
    "at 16 rows and from 24 to 6.1 ms at 256"
)
_OURS = ("PYTORCH_TUNABLEOP_FILENAME", "PYTORCH_TUNABLEOP_ENABLED", "AITER_CONFIG_GEMM_BF16")


@dataclass(frozen=True)
class Prepared:
    """What a launch does about dense products.

    Attributes:
        record: For the ranks.
        environment: Variables to set where the user has not.
        said: Lines for the user.
    """

    record: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()


def prepare(
    model: ServedModel, fields: Mapping[str, Any], tp: int, ep: int, *, on_cpu: bool
) -> Prepared:
    """Return which table serves a server, once it is found whole and for this device.

    Its software is compared later, on each rank, with what TunableOp says of itself there.

    Args:
        model: What is served.
        fields: ``ServerArgs`` fields, the preset's and the user's.
        tp: Tensor-parallel ranks.
        ep: Expert-parallel ranks among them.
        on_cpu: Whether it is served on SGLang's CPU engine, which has no tables.

    Raises:
        UserError: The applied table does not fit, and this was not allowed.
    """
    rides = not on_cpu and gemm_grid.shared_expert_rides(model, tp, ep)
    grid = gemm_grid.of_fields(model, fields, tp, shared_expert_rides=rides)
    rows = {(product.n, product.k): product.m for product in grid.products}
    if on_cpu:
        return Prepared(padding.as_record(rows, None))
    kernels = settings.dense_kernels()
    constants, chosen_by = _constants() if kernels == "own" else ({}, ())
    record = partial(padding.as_record, rows, kernels=kernels, constants=constants)
    try:
        applied = staging.current(tables.root())
        if applied is not None:
            _check(applied, tp)
    except UserError as error:
        if not settings.allow_untuned():
            raise
        return Prepared(record(None), said=(f"serving untuned: {error}", *chosen_by))
    if applied is None:
        return Prepared(record(None), said=(*_untuned(grid, kernels), *chosen_by))
    return Prepared(
        record(applied.directory, allow_untuned=settings.allow_untuned()),
        applied.environment(),
        (*_covered(applied, grid), *chosen_by),
    )


def _constants() -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the applied constants of the cost model if they fit, and what is to be said."""
    try:
        applied = CONSTANTS.applied()
        differing = CONSTANTS.misfits(applied[0])[0] if applied is not None else []
    except UserError as error:
        return {}, (f"{CONSTANTS.without}: {error}",)
    if applied is None:
        return {}, ()
    table, path = applied
    if differing:
        why = f"{path} does not fit: {'; '.join(differing)}"
        return {}, (f"{CONSTANTS.without}: {why}; `{CONSTANTS.made_by}` makes one that does",)
    said = f"the model chooses dense products by the constants of {path}"
    return fitted_constants.values(table), (said,)


def _check(applied: Applied, tp: int) -> None:
    here = tables.this_device()
    differing = stack_fit.differing_device(applied.table.device, here or {})
    if applied.num_ordinals < tp:
        differing.append(f"devices: files for {applied.num_ordinals}, {tp} ranks")
    wanted = applied.environment()
    differing += [
        f"{name}: set to {value!r}, the table needs {wanted[name]!r}"
        for name, value in settings.given(_OURS).items()
        if value != wanted[name]
    ]
    if differing:
        raise UserError(
            f"gemm table {applied.directory}",
            found="; ".join(differing),
            allowed="the device it was tuned on, and its own files",
            do=live_stack.DO,
        )


def _untuned(grid: ShapeGrid, kernels: str) -> tuple[str, ...]:
    minutes = minutes_for(grid.num_cells, grid.tp)
    ours = sum(cell.m <= MAX_TOKENS for cell in grid.cells()) if kernels == "own" else 0
    return (
        f"no gemm table: our kernels serve {ours} of {grid.num_cells} dense products, those of at "
        f"most {MAX_TOKENS} tokens, stock's own choices the rest; {_BROUGHT}",
        f"`sglang-mi300a tune gemm` makes one in about {minutes} minutes on {grid.tp} devices",
    )


def _covered(applied: Applied, grid: ShapeGrid) -> tuple[str, ...]:
    covers, *lacks = coverage.lines(applied.table, grid)
    if lacks:
        lacks.append("`sglang-mi300a serve --tune-first` tunes what it lacks")
    return (f"gemm table {applied.directory}: {covers}", *lacks)
