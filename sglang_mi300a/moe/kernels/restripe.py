"""The stream as the ``bf8`` decode reads it: what ``moe_restripe_for_bf8`` makes of ``stream/1``.

Not a stored layout: a negative zero is lost. A process whose matrix unit drops bf16 subnormals
rewrites its weights in place after loading.
"""

from __future__ import annotations

import numpy as np

from sglang_mi300a import stream_layout
from sglang_mi300a.layout import Bytes

SCALE_OFFSET = 15
"""Added to each scale byte: the decode's values are 2**-15 of the codes' values."""


def restriped(stream: Bytes) -> Bytes:
    """Return a stream rewritten for the ``bf8`` decode.

    Args:
        stream: uint8 ``[records * 1088]``, scale bytes up to 239.
    """
    records = stream.reshape(-1, stream_layout.RECORD_BYTES)
    result = np.empty_like(records)
    scales = slice(0, stream_layout.SCALE_BYTES)
    result[:, scales] = records[:, scales] + np.uint8(SCALE_OFFSET)
    codes = stream_layout.codes_of_lanes(records)  # [records, lanes, blocks, 8]
    magnitude, sign = codes & 7, codes >> 3
    sign = np.where(magnitude == 0, 0, sign)
    first = magnitude[..., :4] << 1 | sign[..., :4] << 7
    last = magnitude[..., 4:] << 4 | sign[..., 4:]
    words = (first | last).astype(np.uint8)
    result[:, stream_layout.SCALE_BYTES :] = words.reshape(len(records), -1)
    return result.reshape(-1)
