"""Experts that a checkpoint holds in floats, kept as MXFP4.

Every share of a rank is quantised after it is cut. That gives the bytes that cutting a quantised
tensor would give, because no cut divides a block of 32 values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_mi300a import mxfp4
from sglang_mi300a.errors import UserError
from sglang_mi300a.layout import ExpertTensor
from sglang_mi300a.weights.plan import FLOATS, RankPlan
from sglang_mi300a.weights.steps import ExpertStorage

Bytes = NDArray[np.uint8]

_CHUNK_VALUES = 1 << 19
"""Values quantised at once: the arithmetic takes some 60 bytes for each."""


@dataclass(frozen=True)
class AsMxfp4:
    """Stores float experts as MXFP4, and what is MXFP4 already as it is.

    Attributes:
        inner: How the MXFP4 tensors are stored then.
        dtypes: Element type of each plain tensor, by the last part of its name.
    """

    inner: ExpertStorage
    dtypes: Mapping[str, str]

    def stored(self, plain: Sequence[ExpertTensor]) -> tuple[ExpertTensor, ...]:
        """Return the tensors that hold what ``plain`` held."""
        return self.inner.stored([part for tensor in plain for part in _as_mxfp4(tensor)])

    def apply(self, plain: Mapping[str, Bytes]) -> dict[str, Bytes]:
        """Return the stored bytes of one expert, by name.

        Raises:
            UserError: A value is not finite.
        """
        made: dict[str, Bytes] = {}
        for name, data in plain.items():
            if self.dtypes[name] in FLOATS:
                made[name], made[f"{name}_scale"] = _quantised(name, self.dtypes[name], data)
            else:
                made[name] = data
        return self.inner.apply(made)


def of_plan(plan: RankPlan, inner: ExpertStorage) -> AsMxfp4:
    """Return the storage that re-quantises a plan's experts.

    Raises:
        UserError: A rank's share of an expert is not whole blocks.
    """
    experts = [p for p in plan.parameters if p.num_local_experts]
    for parameter in experts:
        if parameter.dtype in FLOATS and parameter.num_columns % mxfp4.BLOCK:
            raise UserError(
                parameter.name,
                found=f"{parameter.num_columns} columns a rank",
                allowed=f"a multiple of {mxfp4.BLOCK}: an MXFP4 scale block is not cut",
                do="choose fewer ranks, or more expert-parallel ones",
            )
    return AsMxfp4(inner, {p.expert_tensor.name: p.dtype for p in experts})


def _as_mxfp4(tensor: ExpertTensor) -> tuple[ExpertTensor, ...]:
    if tensor.dtype not in FLOATS:
        return (tensor,)
    rows, columns = tensor.shape
    return (
        ExpertTensor(tensor.name, "U8", (rows, columns // 2)),
        ExpertTensor(f"{tensor.name}_scale", "U8", (rows, columns // mxfp4.BLOCK)),
    )


def _quantised(name: str, dtype: str, data: Bytes) -> tuple[Bytes, Bytes]:
    values = _values(dtype, data)
    rows, columns = values.shape
    packed = np.empty((rows, columns // 2), dtype=np.uint8)
    scales = np.empty((rows, columns // mxfp4.BLOCK), dtype=np.uint8)
    step = max(1, _CHUNK_VALUES // columns)
    for at in range(0, rows, step):
        chunk = slice(at, at + step)
        try:
            packed[chunk], scales[chunk] = mxfp4.quantise(_as_float32(dtype, values[chunk]))
        except ValueError as error:
            raise UserError(
                f"draft experts, {name}",
                found=str(error),
                allowed="finite weights",
                do="fetch the checkpoint again, or leave --draft-experts out",
            ) from error
    return packed, scales


_NUMPY_DTYPES = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}


def _values(dtype: str, data: Bytes) -> NDArray[np.generic]:
    return np.ascontiguousarray(data).view(_NUMPY_DTYPES[dtype])


def _as_float32(dtype: str, values: NDArray[np.generic]) -> NDArray[np.float32]:
    if dtype == "BF16":  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
