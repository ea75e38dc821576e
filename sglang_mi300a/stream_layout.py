"""The layout that the gfx942 expert kernels read: one stream of records an expert and projection.

A record is what one load instruction of a wave brings: 1 KiB in a row, 16 segments of 64 bytes. It
holds 16 weight rows by 128 values along K for MXFP4, with their 64 scale bytes in front, or 16 rows
by 32 values for bf16. In checkpoint order the same 1 KiB lies in 64 places.

Lane ``l`` of the wave reads bytes ``16 * l``: row ``l % 16``, and of every block of 32 values along
K the eight from ``8 * (l // 16)`` on. Two matrix instructions of 16 values consume a block, and
what a lane sums belongs to one row and one scale.

Order of the records:

* ``w13`` (gate rows, then up rows): ``[slice][item][side][record]``. A slice is 512 values along K
  and belongs to one wave; an item is 16 gate rows (side 0) and the 16 up rows of the same neurons
  (side 1), so both halves of ``silu(gate) * up`` meet in one workgroup.
* ``w2``: ``[item][slice][side][record]``. An item is 32 output rows, side 0 the even and side 1 the
  odd ones, so a lane's two sums are neighbours in the output; a slice is 512 values along K, or all
  of them if fewer.

The eight 4-bit codes that a lane has of a block fill one 32-bit word, but not in order: bits are
placed so that a rotation and one mask give bf16 pairs (``csrc/moe/weight_formats.h``). Two words,
of blocks ``2p`` and ``2p + 1``, share the bits that three such fields leave over. The scale bytes
are the checkpoint's own. All of it is a permutation of bits: :func:`join_mxfp4` gives every code
and scale back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_mi300a import mxfp4, stream_records
from sglang_mi300a.errors import UserError
from sglang_mi300a.layout import Bytes, ExpertTensor

ROWS = 16
"""Weight rows of a record."""

SLICE = 512
"""Values along K that one wave takes, at most."""

RECORD_K = 128
"""Values along K of an MXFP4 record."""

SCALE_BYTES = ROWS * RECORD_K // mxfp4.BLOCK
CODE_BYTES = ROWS * RECORD_K // 2
RECORD_BYTES = SCALE_BYTES + CODE_BYTES

BF16_RECORD_K = 32
"""Values along K of a bf16 record, which has as many bytes as the codes of an MXFP4 one."""

_LANE_GROUPS = 4
_BF16_BYTES = 2


# -- which rows and slices a projection has ------------------------------------------------------


def num_slices(projection: str, k: int, record_k: int = RECORD_K) -> int:
    """Return into how many slices along K a projection is cut.

    Args:
        projection: ``w13`` or ``w2``.
        k: Values along K.
        record_k: Values along K of a record.

    Raises:
        ValueError: K is no multiple of what a record or a slice holds.
    """
    length = SLICE if projection == "w13" else min(k, SLICE)
    if k % length or length % record_k:
        raise ValueError(
            f"{projection}: K = {k} is not a multiple of {SLICE}"
            + ("" if projection == "w13" else f", nor a multiple of {record_k} below it")
        )
    return k // length


def _check_rows(projection: str, rows: int) -> None:
    if rows % (2 * ROWS):
        raise ValueError(f"{projection}: {rows} rows are not a multiple of {2 * ROWS}")


@dataclass(frozen=True)
class RecordOrder:
    """How ``[rows, elements]`` becomes ``[records, 16, elements of a record]``, and back.

    A row is cut into ``slices`` times ``each`` records. The attributes are arguments of ``reshape``
    and of ``transpose`` (``permute`` in torch).

    Attributes:
        by_row: Shape of the six parts in the order of rows.
        to_stream: Order of these parts in the stream.
        by_record: Shape of the six parts in the order of the stream.
        to_rows: Order of these parts by rows.
    """

    by_row: tuple[int, ...]
    to_stream: tuple[int, ...]
    by_record: tuple[int, ...]
    to_rows: tuple[int, ...]


def record_order(
    projection: str, num_rows: int, slices: int, each: int, per_record: int
) -> RecordOrder:
    """Return the order of a projection's records.

    Args:
        projection: ``w13`` or ``w2``.
        num_rows: Rows of the projection.
        slices: Slices along K.
        each: Records of a slice.
        per_record: Elements of a row in one record.
    """
    items = num_rows // (2 * ROWS)
    if projection == "w13":  # [side][item][row][slice][record] -> [slice][item][side][record][row]
        by_row = (2, items, ROWS, slices, each, per_record)
        to_stream = (3, 1, 0, 4, 2, 5)
    else:  # [item][row][side][slice][record] -> [item][slice][side][record][row]
        by_row = (items, ROWS, 2, slices, each, per_record)
        to_stream = (0, 3, 2, 4, 1, 5)
    by_record = tuple(by_row[part] for part in to_stream)
    return RecordOrder(by_row, to_stream, by_record, _inverse(to_stream))


def _in_stream_order(
    projection: str, rows: NDArray[Any], per_record: int, slices: int
) -> NDArray[Any]:
    """Return a view of ``[rows, elements]`` whose C order is the stream's.

    Returns:
        Six parts, the last two 16 rows and ``per_record`` elements of a record.
    """
    num_rows, width = rows.shape
    order = record_order(projection, num_rows, slices, width // (slices * per_record), per_record)
    ordered: NDArray[Any] = rows.reshape(order.by_row).transpose(order.to_stream)
    return ordered


def _from_records(
    projection: str, records: NDArray[Any], num_rows: int, slices: int
) -> NDArray[Any]:
    """Return ``[rows, elements]``: the inverse of :func:`_in_stream_order`."""
    per_record = records.shape[2]
    each = records.shape[0] * ROWS // (num_rows * slices)
    order = record_order(projection, num_rows, slices, each, per_record)
    ordered = records.reshape(order.by_record).transpose(order.to_rows)
    return np.ascontiguousarray(ordered).reshape(num_rows, slices * each * per_record)


# -- where the bits of two words of codes go ------------------------------------------------------


def stored_bit(block: int, value: int, bit: int) -> int:
    """Return where a bit of a code lies in a lane's pair of stored words.

    Args:
        block: 0 or 1, of the pair.
        value: 0..7, along K.
        bit: 0..3 of the code: mantissa, two exponent bits, sign.

    Returns:
        0..63; 32 and up are the second word.
    """
    # Values 2f and 2f + 1 are field f: the lower and upper half of one word after decoding, where
    # a code's bits stand at 6, 7, 8 and 15.
    field, half = divmod(value, 2)
    decoded = 16 * half + (6, 7, 8, 15)[bit]
    if field < 3:
        left_by = (0, 4, -6)[field]
        return 32 * block + (decoded - left_by) % 32
    left_by = (6, -4)[block]
    merged = (decoded - left_by) % 32
    # The merged word takes bits 0, 1, 9, 10 of each half from the first word, and its other ones
    # from the second word moved left by two.
    return merged if merged % 16 in (0, 1, 9, 10) else 32 + merged - 2


@lru_cache(maxsize=1)
def _stored_bits() -> tuple[int, ...]:
    """Return, for each of the 64 bits of two blocks' codes in order of K, where it is stored."""
    return tuple(
        stored_bit(block, value, bit) for block in (0, 1) for value in range(8) for bit in range(4)
    )


@lru_cache(maxsize=1)
def _moves() -> tuple[tuple[int, int], ...]:
    """Return the same as (mask, distance to the left) of the bits that move alike."""
    masks: dict[int, int] = {}
    for source, target in enumerate(_stored_bits()):
        masks[target - source] = masks.get(target - source, 0) | 1 << source
    return tuple((mask, left_by) for left_by, mask in masks.items())


@lru_cache(maxsize=4)
def _bit_tables(targets: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return ``[4, 65536]``: what each 16 bits of a word become when bit i goes to targets[i]."""
    parts = np.arange(1 << 16, dtype=np.uint64)
    tables = np.zeros((4, 1 << 16), np.uint64)
    for source, target in enumerate(targets):
        bit = parts >> np.uint64(source % 16) & np.uint64(1)
        tables[source // 16] |= bit << np.uint64(target)
    return tables


def code_tables() -> NDArray[np.uint64]:
    """Return how a lane's pair of stored words becomes codes, uint64 ``[4, 65536]``.

    Entry ``[q, v]`` holds the bits that 16-bit quarter ``q`` of the 64 stored bits contributes when
    its value is ``v``; the four contributions joined by "or" are the codes of two blocks along K.
    """
    return _bit_tables(_inverse(_stored_bits()))


def _permuted(words: NDArray[np.uint64], targets: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return the words with bit i of each moved to ``targets[i]``, C-contiguous."""
    tables = _bit_tables(targets)
    quarters = np.ascontiguousarray(words).view(np.uint16).reshape(*words.shape, 4)
    result = np.empty(words.shape, np.uint64)
    part = np.empty(words.shape, np.uint64)
    # No index is out of bounds: "wrap" is the mode that writes to `out` without a buffer between.
    np.take(tables[0], quarters[..., 0], out=result, mode="wrap")
    for k in range(1, 4):
        np.take(tables[k], quarters[..., k], out=part, mode="wrap")
        result |= part
    return result


def _inverse(targets: Sequence[int]) -> tuple[int, ...]:
    result = [0] * len(targets)
    for source, target in enumerate(targets):
        result[target] = source
    return tuple(result)


# -- MXFP4 --------------------------------------------------------------------------------------


def split_mxfp4(projection: str, packed: Bytes, scales: Bytes) -> Bytes:
    """Return the stream of one expert's projection.

    Args:
        projection: ``w13`` (gate rows, then up rows) or ``w2``.
        packed: uint8 ``[rows, K // 2]``, low nibble = even K; rows a multiple of 32.
        scales: uint8 ``[rows, K // 32]``, E8M0.

    Returns:
        uint8 ``[rows * K * 17 // 32]``.

    Raises:
        ValueError: K or the number of rows does not fit: K a multiple of 512, or for ``w2`` also a
            multiple of 128 below it.
    """
    num_rows, half_k = packed.shape
    _check_rows(projection, num_rows)
    k = 2 * half_k
    slices = num_slices(projection, k)
    blocks = RECORD_K // mxfp4.BLOCK
    packed, scales = np.ascontiguousarray(packed), np.ascontiguousarray(scales)
    codes = _in_stream_order(projection, packed, RECORD_K // 2, slices)
    their_scales = _in_stream_order(projection, scales, blocks, slices)
    records = np.empty((num_rows * k // (ROWS * RECORD_K), RECORD_BYTES), np.uint8)
    if stream_records.is_built():
        stream_records.write(codes, their_scales, _moves(), records)
    else:
        _write_records(codes, their_scales, records)
    return records.reshape(-1)


def _write_records(codes: Bytes, scales: Bytes, records: Bytes) -> None:
    """Do what :func:`stream_records.write` does, in NumPy."""
    blocks = RECORD_K // mxfp4.BLOCK
    words = np.ascontiguousarray(codes).view(np.uint32).reshape(-1, ROWS, blocks, _LANE_GROUPS)
    pairs = np.ascontiguousarray(words.transpose(0, 3, 1, 2)).view(np.uint64)
    stored = _permuted(pairs, _stored_bits())
    records[:, :SCALE_BYTES] = np.ascontiguousarray(scales).reshape(-1, SCALE_BYTES)
    records[:, SCALE_BYTES:] = stored.view(np.uint8).reshape(-1, CODE_BYTES)


def join_mxfp4(projection: str, stream: Bytes, num_rows: int, k: int) -> tuple[Bytes, Bytes]:
    """Return ``(packed, scales)``: what :func:`split_mxfp4` was given.

    Args:
        projection: ``w13`` or ``w2``.
        stream: uint8 ``[rows * K * 17 // 32]``.
        num_rows: Rows of the projection.
        k: Values along K.
    """
    slices = num_slices(projection, k)
    blocks = RECORD_K // mxfp4.BLOCK
    records = stream.reshape(-1, RECORD_BYTES)
    scales = records[:, :SCALE_BYTES].reshape(-1, ROWS, blocks)
    codes = np.ascontiguousarray(records[:, SCALE_BYTES:]).view(np.uint64)
    by_lane = _permuted(codes, _inverse(_stored_bits())).view(np.uint32)
    by_row = by_lane.reshape(-1, _LANE_GROUPS, ROWS, blocks).transpose(0, 2, 3, 1)
    words = np.ascontiguousarray(by_row).reshape(-1, ROWS, blocks * _LANE_GROUPS)
    packed = _from_records(projection, words, num_rows, slices).view(np.uint8)
    return packed, _from_records(projection, scales, num_rows, slices).astype(np.uint8, copy=False)


def codes_of_lanes(records: Bytes) -> Bytes:
    """Return the 4-bit codes of stored records, uint8 ``[records, 64 lanes, 4 blocks, 8]``.

    Args:
        records: uint8 ``[records, 1088]``.
    """
    stored = np.ascontiguousarray(records[:, SCALE_BYTES:]).view(np.uint64)
    packed = _permuted(stored, _inverse(_stored_bits())).view(np.uint8)
    codes = np.stack([packed & 0xF, packed >> 4], axis=-1)
    blocks = RECORD_K // mxfp4.BLOCK
    return codes.reshape(len(records), ROWS * _LANE_GROUPS, blocks, 8)


# -- bf16 ---------------------------------------------------------------------------------------


def split_bf16(projection: str, weights: Bytes) -> Bytes:
    """Return the stream of one expert's bf16 projection.

    Args:
        projection: ``w13`` (gate rows, then up rows) or ``w2``.
        weights: uint8 ``[rows, 2 * K]``; rows a multiple of 32.

    Returns:
        uint8 ``[rows * 2 * K]``.

    Raises:
        ValueError: K or the number of rows does not fit.
    """
    num_rows, row_bytes = weights.shape
    _check_rows(projection, num_rows)
    k = row_bytes // _BF16_BYTES
    slices = num_slices(projection, k, BF16_RECORD_K)
    lanes = np.ascontiguousarray(weights).view(np.complex128)  # a lane's 16 bytes, moved as one
    by_row = _in_stream_order(projection, lanes, _LANE_GROUPS, slices)
    by_lane = np.ascontiguousarray(by_row.swapaxes(-1, -2))
    return by_lane.view(np.uint8).reshape(-1)


def join_bf16(projection: str, stream: Bytes, num_rows: int, k: int) -> Bytes:
    """Return uint8 ``[rows, 2 * K]``: what :func:`split_bf16` was given."""
    slices = num_slices(projection, k, BF16_RECORD_K)
    by_lane = stream.view(np.complex128).reshape(-1, _LANE_GROUPS, ROWS)
    by_row = np.ascontiguousarray(by_lane.transpose(0, 2, 1))
    return _from_records(projection, by_row, num_rows, slices).view(np.uint8)


# -- the named layout ---------------------------------------------------------------------------

HIDDEN = 4096
"""Hidden size that the kernels are made for: eight waves share K of ``w13``, a slice each."""


class Stream:
    """MXFP4 experts as streams ``w13_stream`` and ``w2_stream``; bf16 ones in SGLang's own order.

    Attributes:
        hidden: Hidden size of the model; it tells rows from K when a stream is joined again.
    """

    id = "stream/1"

    def __init__(self, hidden: int = HIDDEN) -> None:
        self.hidden = hidden

    def stored(self, plain: Sequence[ExpertTensor]) -> tuple[ExpertTensor, ...]:
        """Return one uint8 stream for a weight with its scales; else ``plain``.

        Raises:
            UserError: The model has another hidden size, or a slice of another multiple.
        """
        projection = _projection([one.name for one in plain])
        if projection is None:
            return tuple(plain)
        weight = f"{projection}_weight"
        (shape,) = (one.shape for one in plain if one.name == weight)
        num_rows, k = shape[0], 2 * shape[1]
        self._check(projection, num_rows, k)
        name = stream_name(projection)
        return (ExpertTensor(name, "U8", (num_rows * k // (ROWS * RECORD_K) * RECORD_BYTES,)),)

    def apply(self, plain: Mapping[str, Bytes]) -> dict[str, Bytes]:
        """Return the stored bytes of one expert, by name."""
        projection = _projection(list(plain))
        if projection is None:
            return dict(plain)
        packed = plain[f"{projection}_weight"]
        self._check(projection, packed.shape[0], 2 * packed.shape[1])
        stream = split_mxfp4(projection, packed, plain[f"{projection}_weight_scale"])
        return {stream_name(projection): stream}

    def undo(self, stored: Mapping[str, Bytes]) -> dict[str, Bytes]:
        """Return what :meth:`apply` was given."""
        for projection in PROJECTIONS:
            stream = stored.get(stream_name(projection))
            if stream is None:
                continue
            other = stream.size // RECORD_BYTES * (ROWS * RECORD_K) // self.hidden
            num_rows, k = (other, self.hidden) if projection == "w13" else (self.hidden, other)
            packed, scales = join_mxfp4(projection, stream.reshape(-1), num_rows, k)
            return {f"{projection}_weight": packed, f"{projection}_weight_scale": scales}
        return dict(stored)

    def takes(self, plain: Sequence[ExpertTensor]) -> bool:
        """Return whether these are a weight and its scales, of sizes that a stream can hold."""
        projection = _projection([one.name for one in plain])
        if projection is None:
            return False
        (shape,) = (one.shape for one in plain if one.name == f"{projection}_weight")
        return self._holds(projection, shape[0], 2 * shape[1])

    def _holds(self, projection: str, num_rows: int, k: int) -> bool:
        hidden, inner = (k, num_rows // 2) if projection == "w13" else (num_rows, k)
        inner_step = ROWS if projection == "w13" else RECORD_K
        whole = inner % inner_step == 0 and (inner <= SLICE or inner % SLICE == 0)
        return hidden == self.hidden and whole

    def _check(self, projection: str, num_rows: int, k: int) -> None:
        hidden, inner = (k, num_rows // 2) if projection == "w13" else (num_rows, k)
        if not self._holds(projection, num_rows, k):
            raise UserError(
                f"layout {self.id}, {projection}",
                found=f"hidden size {hidden}, {inner} neurons of an expert on a rank",
                allowed=f"hidden size {self.hidden}; a multiple of {RECORD_K} neurons, and of "
                f"{SLICE} above {SLICE}",
                do=f"use layout plain/1, or a TP size that leaves a multiple of {RECORD_K}",
            )


PROJECTIONS = ("w13", "w2")


def stream_name(projection: str) -> str:
    """Return the last part of the stream parameter's name."""
    return f"{projection}_stream"


def _projection(names: Sequence[str]) -> str | None:
    """Return the projection whose weight and scales these are, or None."""
    for projection in PROJECTIONS:
        if {f"{projection}_weight", f"{projection}_weight_scale"} <= set(names):
            return projection
    return None
