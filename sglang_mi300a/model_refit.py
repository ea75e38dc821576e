"""Constants of the cost model from measured times, by least squares, and how far each is told.

Minimised is the sum of squared ln(measured / predicted), so that a launch of 5 us weighs as much as
one of 500. Of the model's constants four can move times of this package's kernels by whole
percents; of these, only those that the measurements at hand tell apart are changed: a constant
whose standard error would exceed :data:`MOST_ERROR` keeps its shipped value. The shipped constants
stay as they are: what comes out here is kept in a folder of the user's, to be judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_mi300a.cost_model import MACHINE, Machine

LIMITS: Mapping[str, tuple[float, float]] = {
    "hbm_tb_s": (1.5, 5.3),  # up to the specification's
    "overlap": (1.05, 4.0),  # from hardly any overlap to nearly perfect
    "scattered_clk": (1.0, 8.0),
    "start_us": (0.5, 20.0),
}
"""Constants that are fitted, and between what."""

FEWEST_ROWS = 12
FEWEST_BATCH_SIZES = 4
"""Fewer cannot tell constants apart from noise."""
MOST_ERROR = 0.1
"""Standard error of a constant, as a part of it, above which it is held."""
LEAST_NOISE = 0.01
"""Of a measurement, at least, whatever the residuals: repeated timings differ by as much."""

_ROUNDS = 60
_STEP = 1e-4

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measurement:
    """One measured time and what predicts it.

    Attributes:
        claim: What it is evidence for, such as ``expert layer TP4 subnormals``.
        num_tokens: Rows of the activations.
        what: Which launch, in words.
        us: Measured.
        predict: Returns the predicted microseconds on a machine.
        band_percent: Lowest and highest deviation that the prediction is quoted with.
    """

    claim: str
    num_tokens: int
    what: str
    us: float
    predict: Callable[[Machine], float]
    band_percent: tuple[int, int]

    def ratio(self, machine: Machine = MACHINE) -> float:
        """Return measured over predicted."""
        return self.us / self.predict(machine)

    def is_inside(self) -> bool:
        """Return whether it lies in the band that its prediction is quoted with."""
        low, high = self.band_percent
        return 1 + low / 100 <= self.ratio() <= 1 + high / 100


@dataclass(frozen=True)
class Refit:
    """Constants from measured times.

    Attributes:
        machine: With the constants that could be told.
        errors: Their standard errors, each as a part of its constant.
        held: Constants that keep the shipped value, since these times do not tell them.
        at_limit: Constants that ended at the end of what is allowed.
        before: Root mean square of ln(measured / predicted) with the shipped constants, and
        after: with these.
        largest: Largest of their absolute values, after.
    """

    machine: Machine
    errors: Mapping[str, float]
    held: tuple[str, ...]
    at_limit: tuple[str, ...]
    before: float
    after: float
    largest: float


def error_of(rows: Sequence[Measurement], machine: Machine) -> float:
    """Return the root mean square of ln(measured / predicted)."""
    return math.sqrt(float(np.mean(_residuals(rows, machine) ** 2)))


def refit(rows: Sequence[Measurement], machine: Machine = MACHINE) -> Refit | None:
    """Return the constants that predict measured times best; None if there are too few."""
    if len(rows) < FEWEST_ROWS or len({row.num_tokens for row in rows}) < FEWEST_BATCH_SIZES:
        return None
    names, held = list(LIMITS), []
    while True:
        found = _fitted(rows, machine, names)
        errors = _errors(rows, found, names)
        worst = max(names, key=lambda name: errors[name], default="")
        if not names or errors[worst] <= MOST_ERROR:
            break
        names.remove(worst)
        held.append(worst)
    at_limit = [
        name
        for name in names
        if any(math.isclose(getattr(found, name), end, rel_tol=1e-3) for end in LIMITS[name])
    ]
    return Refit(
        machine=found,
        errors=errors,
        held=tuple(held),
        at_limit=tuple(at_limit),
        before=error_of(rows, machine),
        after=error_of(rows, found),
        largest=float(np.abs(_residuals(rows, found)).max()),
    )


def _residuals(rows: Sequence[Measurement], machine: Machine) -> Array:
    return np.array([math.log(row.ratio(machine)) for row in rows])


def _with(machine: Machine, names: Sequence[str], logs: Array) -> Machine:
    values: dict[str, Any] = {
        name: float(np.clip(math.exp(value), *LIMITS[name]))
        for name, value in zip(names, logs, strict=True)
    }
    return replace(machine, **values)


def _logs(machine: Machine, names: Sequence[str]) -> Array:
    return np.array([math.log(getattr(machine, name)) for name in names])


def _slopes(rows: Sequence[Measurement], machine: Machine, names: Sequence[str]) -> Array:
    """Return d residual / d ln(constant), ``[rows, names]``."""
    at = _logs(machine, names)
    columns = []
    for number, name in enumerate(names):
        step = np.zeros(len(names))
        # Away from the nearer limit, so that both points lie inside.
        step[number] = -_STEP if getattr(machine, name) * 1.01 > LIMITS[name][1] else _STEP
        moved = _residuals(rows, _with(machine, names, at + step))
        columns.append((moved - _residuals(rows, machine)) / step[number])
    return np.stack(columns, axis=1)


def _fitted(rows: Sequence[Measurement], machine: Machine, names: Sequence[str]) -> Machine:
    """Minimise by Levenberg's and Marquardt's method, from the shipped constants."""
    if not names:
        return machine
    damping, found = 1e-3, machine
    error = error_of(rows, found)
    for _ in range(_ROUNDS):
        slopes, off = _slopes(rows, found, names), _residuals(rows, found)
        square = slopes.T @ slopes
        step = np.linalg.solve(
            square + damping * (np.diag(np.diag(square)) + 1e-9 * np.eye(len(names))),
            -slopes.T @ off,
        )
        tried = _with(found, names, _logs(found, names) + np.clip(step, -0.5, 0.5))
        tried_error = error_of(rows, tried)
        if tried_error < error:
            gain, found, error = error - tried_error, tried, tried_error
            damping /= 5
            if gain < 1e-9:
                break
        else:
            damping *= 5
            if damping > 1e9:
                break
    return found


def _errors(
    rows: Sequence[Measurement], machine: Machine, names: Sequence[str]
) -> dict[str, float]:
    if not names:
        return {}
    slopes, off = _slopes(rows, machine, names), _residuals(rows, machine)
    noise = max(LEAST_NOISE, math.sqrt(float(off @ off) / max(1, len(rows) - len(names))))
    square = slopes.T @ slopes + 1e-12 * np.eye(len(names))
    variances = np.diag(np.linalg.inv(square)) * noise**2
    return {
        name: math.sqrt(float(max(0.0, variance)))
        for name, variance in zip(names, variances, strict=True)
    }
