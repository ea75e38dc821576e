"""Streams (``stream_layout``) by torch, on any device.

MXFP4 streams are read, for the rungs that are not made for them; bf16 ones are made, of weights
that SGLang has loaded in its own order. In place, since a second copy has no room.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from sglang_mi300a import mxfp4, stream_layout
from sglang_mi300a.stream_layout import (
    BF16_RECORD_K,
    CODE_BYTES,
    RECORD_BYTES,
    RECORD_K,
    ROWS,
    SCALE_BYTES,
)

_BLOCKS = RECORD_K // mxfp4.BLOCK
_LANE_GROUPS = 4
_LANE_BYTES = 16
_BF16_BYTES = 2


@lru_cache(maxsize=8)
def _tables(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(stream_layout.code_tables().view(np.int64)).to(device)


def joined(
    projection: str, stream: torch.Tensor, num_rows: int, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(packed, scales)`` of one expert: ``stream_layout.join_mxfp4``, by torch.

    Args:
        projection: ``w13`` or ``w2``.
        stream: uint8 ``[num_rows * k * 17 // 32]``, contiguous, at an address that is a multiple
            of 8 bytes.
        num_rows: Rows of the projection.
        k: Values along K.

    Returns:
        uint8 ``[num_rows, k // 2]`` and ``[num_rows, k // 32]``, tensors of their own.
    """
    slices = stream_layout.num_slices(projection, k)
    records = stream.view(-1, RECORD_BYTES)
    each = k // (slices * RECORD_K)

    def by_rows(elements: torch.Tensor, per_record: int) -> torch.Tensor:
        order = stream_layout.record_order(projection, num_rows, slices, each, per_record)
        return elements.reshape(order.by_record).permute(order.to_rows).reshape(num_rows, -1)

    scales = by_rows(records[:, :SCALE_BYTES], _BLOCKS)
    stored = records[:, SCALE_BYTES:].contiguous().view(torch.int16).view(-1, CODE_BYTES // 8, 4)
    quarters = stored.long() & 0xFFFF
    tables = _tables(stream.device)
    codes = tables[0][quarters[..., 0]]
    for quarter in range(1, 4):
        codes |= tables[quarter][quarters[..., quarter]]
    lanes = codes.view(torch.int32).view(-1, _LANE_GROUPS, ROWS, _BLOCKS)
    words = lanes.permute(0, 2, 3, 1).reshape(-1, ROWS, _BLOCKS * _LANE_GROUPS)
    packed = by_rows(words, _BLOCKS * _LANE_GROUPS).contiguous().view(torch.uint8)
    return packed, scales.contiguous()


def make_plain(
    projection: str, streams: torch.Tensor, num_rows: int, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewrite all experts' streams in place, one by one; return views in SGLang's order.

    Afterwards each expert's bytes are its packed weights, then its scales. Needs room for a few
    copies of one expert.

    Args:
        projection: ``w13`` or ``w2``.
        streams: uint8 ``[experts, num_rows * k * 17 // 32]``, contiguous.
        num_rows: Rows of the projection.
        k: Values along K.

    Returns:
        uint8 ``[experts, num_rows, k // 2]`` and ``[experts, num_rows, k // 32]``; contiguous but
        for the first dimension.
    """
    split = num_rows * k // 2
    for stream in streams:
        packed, scales = joined(projection, stream, num_rows, k)
        stream[:split] = packed.view(-1)
        stream[split:] = scales.view(-1)
    num_experts = len(streams)
    return (
        streams[:, :split].view(num_experts, num_rows, k // 2),
        streams[:, split:].view(num_experts, num_rows, k // mxfp4.BLOCK),
    )


def make_bf16_streams(projection: str, weights: torch.Tensor) -> torch.Tensor:
    """Rewrite bf16 experts in place as streams, one by one; return a view.

    ``stream_layout.split_bf16``, by torch. Needs room for a copy of one expert.

    Args:
        projection: ``w13`` (gate rows, then up rows) or ``w2``.
        weights: bf16 ``[experts, rows, K]``, contiguous.

    Returns:
        uint8 ``[experts, rows * K * 2]``, the same memory.

    Raises:
        ValueError: K does not fit.
    """
    num_experts, num_rows, k = weights.shape
    slices = stream_layout.num_slices(projection, k, BF16_RECORD_K)
    each = k // (slices * BF16_RECORD_K)
    order = stream_layout.record_order(projection, num_rows, slices, each, _LANE_GROUPS)
    streams = weights.view(torch.uint8).view(num_experts, num_rows * k * _BF16_BYTES)
    for stream in streams:
        lanes = stream.view(*order.by_row, _LANE_BYTES)
        records = lanes.permute(*order.to_stream, 6).reshape(-1, ROWS, _LANE_GROUPS, _LANE_BYTES)
        stream.copy_(records.transpose(1, 2).reshape(-1))
    return streams
