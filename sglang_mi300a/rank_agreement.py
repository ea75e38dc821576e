"""A step that succeeds on every rank or on none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang_mi300a.errors import UserError

AllGather = Callable[[Any], list[Any]]
"""Returns every rank's object, in rank order; all ranks call it at the same points."""


def alone(mine: Any) -> list[Any]:
    """Return the object of a process that is the only rank."""
    return [mine]


@contextmanager
def on_every_rank(all_gather: AllGather) -> Iterator[None]:
    """Run a step that all ranks run; leave it only when all of them are done.

    Raises:
        UserError: The step failed here or on any other rank, which the error then names.
    """
    error: UserError | None = None
    try:
        yield
    except UserError as caught:
        error = caught
    mine = None if error is None else (error.where, error.found, error.allowed, error.do)
    failed = [(rank, row) for rank, row in enumerate(all_gather(mine)) if row is not None]
    if error is not None:
        raise error
    if failed:
        where, found, allowed, do = failed[0][1]
        ranks = ", ".join(str(rank) for rank, _ in failed)
        raise UserError(f"rank {ranks}: {where}", found=found, allowed=allowed, do=do)
