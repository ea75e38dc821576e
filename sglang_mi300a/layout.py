"""Named layouts of expert weights, and their inverses.

A layout says in which order the bytes of one expert's projection lie in memory. The plain one is
what SGLang's stock classes allocate; a layout made for a kernel stores the same information
otherwise. ``shard-weights`` applies a layout once and records its name in the manifest; a load
straight from a Hugging Face checkpoint applies it on the way. Weights of one name are never read
as another: a mismatch refuses to load.

Every layout keeps all of an MXFP4 tensor: the E8M0 bytes and all 16 codes come back from ``undo``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sglang_mi300a import mxfp4
from sglang_mi300a.errors import UserError

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class ExpertTensor:
    """One tensor of one expert.

    Attributes:
        name: Last part of the parameter's name (``w13_weight``).
        dtype: Element type, as safetensors spells it.
        shape: Shape for one expert; the parameter has the expert count in front.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


class Layout(Protocol):
    """A way to store the tensors of one expert's projection.

    ``plain`` is the group of stock tensors that belong together: weight and scale of ``w13`` (gate
    rows, then up rows) or of ``w2``, or a single bf16 weight.
    """

    @property
    def id(self) -> str:
        """Name and version, ``plain/1``."""

    def takes(self, plain: Sequence[ExpertTensor]) -> bool:
        """Return whether the layout is for such tensors and holds their sizes."""

    def stored(self, plain: Sequence[ExpertTensor]) -> tuple[ExpertTensor, ...]:
        """Return the tensors that hold what ``plain`` held; ``plain`` if it is not for such.

        Raises:
            UserError: It is for such, but not of these sizes.
        """

    def apply(self, plain: Mapping[str, Bytes]) -> dict[str, Bytes]:
        """Return the stored bytes of one expert, by name.

        Args:
            plain: uint8 ``[rows, bytes per row]`` by name, C-contiguous.

        Returns:
            uint8 arrays, C-contiguous, of the sizes that :meth:`stored` names.
        """

    def undo(self, stored: Mapping[str, Bytes]) -> dict[str, Bytes]:
        """Return what :meth:`apply` was given."""


class Plain:
    """SGLang's own layout: nothing is moved."""

    id = "plain/1"

    def takes(self, plain: Sequence[ExpertTensor]) -> bool:
        """Return True."""
        return True

    def stored(self, plain: Sequence[ExpertTensor]) -> tuple[ExpertTensor, ...]:
        """Return ``plain``."""
        return tuple(plain)

    def apply(self, plain: Mapping[str, Bytes]) -> dict[str, Bytes]:
        """Return ``plain``."""
        return dict(plain)

    def undo(self, stored: Mapping[str, Bytes]) -> dict[str, Bytes]:
        """Return ``stored``."""
        return dict(stored)


PLAIN = Plain()
STREAM_ID = "stream/1"
"""The layout of the gfx942 kernels, ``stream_layout.Stream``."""


def _stream() -> Layout:
    from sglang_mi300a.stream_layout import Stream  # it builds on this module

    return Stream()


_LAYOUTS: dict[str, Callable[[], Layout]] = {PLAIN.id: lambda: PLAIN, STREAM_ID: _stream}


def names() -> tuple[str, ...]:
    """Return the layouts that this version knows."""
    return tuple(_LAYOUTS)


def named(layout_id: str, *, where: str) -> Layout:
    """Return a layout.

    Args:
        layout_id: Its name, from a manifest or an option.
        where: What names it, for the error.

    Raises:
        UserError: This version does not know it.
    """
    make = _LAYOUTS.get(layout_id)
    if make is None:
        raise UserError(
            where,
            found=f"layout {layout_id!r}",
            allowed=", ".join(_LAYOUTS),
            do="run shard-weights of this version again",
        )
    return make()


def default_for(hidden: int, inner: int) -> Layout:
    """Return the layout that MXFP4 experts are stored in where the user names none.

    Args:
        hidden: Hidden size of the model.
        inner: Neurons of an expert on a rank, a multiple of 32.

    Returns:
        The kernels' layout if it takes both projections, else the plain one.
    """
    stream = _stream()
    of_expert = (mxfp4_tensors("w13", 2 * inner, hidden), mxfp4_tensors("w2", hidden, inner))
    return stream if all(map(stream.takes, of_expert)) else PLAIN


def mxfp4_tensors(projection: str, rows: int, k: int) -> tuple[ExpertTensor, ExpertTensor]:
    """Return the plain tensors, weight and scales, of one MXFP4 expert's projection.

    Args:
        projection: ``w13`` or ``w2``.
        rows: Its rows.
        k: Values along K, a multiple of 32.
    """
    return (
        ExpertTensor(f"{projection}_weight", "U8", (rows, k // 2)),
        ExpertTensor(f"{projection}_weight_scale", "U8", (rows, k // mxfp4.BLOCK)),
    )
