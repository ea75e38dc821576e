"""What is checked of an expert layer once its weights are loaded, before anything reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sglang_mi300a import mxfp4
from sglang_mi300a.errors import UserError
from sglang_mi300a.stream_layout import RECORD_BYTES, SCALE_BYTES


def check_scales(where: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Check that no scale is NaN.

    Args:
        where: Prefix of the layer's parameters.
        tensors: Its MXFP4 weights by name, in either layout.

    Raises:
        UserError: A scale byte is 0xFF; the tensor, the place and the count are named.
    """
    for name, tensor in tensors.items():
        if name.endswith("_weight"):
            continue
        for expert, stored in enumerate(tensor):
            is_stream = name.endswith("_stream")
            scales = stored.view(-1, RECORD_BYTES)[:, :SCALE_BYTES] if is_stream else stored
            bad = scales == mxfp4.SCALE_NAN
            if not bad.any():
                continue
            row, column = bad.nonzero()[0].tolist()
            place = f"record {row}, byte {column}" if is_stream else f"row {row}, block {column}"
            raise UserError(
                f"{where}.{name}",
                found=f"scale 0xFF (NaN) at expert {expert}, {place}; {int(bad.sum())} in this "
                "expert",
                allowed="E8M0 scales 0x00 to 0xFE",
                do="fetch the checkpoint again, or `sglang-mi300a artifact verify`",
            )


def global_ids(dispatcher: Any) -> str:
    """Return why expert ids would not arrive local, or "".

    Args:
        dispatcher: SGLang's ``StandardDispatcher`` of the layer.
    """
    is_global = dispatcher.use_aiter_moe_runner or dispatcher.skip_local_expert_mapping
    if dispatcher.moe_ep_size > 1 and is_global:
        return "global expert ids with expert parallelism"
    return ""
