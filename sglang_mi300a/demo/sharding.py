"""A tiny checkpoint, and the artifact that ``shard-weights`` makes of it."""

from __future__ import annotations

import time

from sglang_mi300a.demo.account import Account
from sglang_mi300a.demo.child import sglang_mi300a
from sglang_mi300a.demo.journey import Journey
from sglang_mi300a.errors import EXIT_OK

TP = 2


def make_model(journey: Journey, account: Account) -> None:
    """Make the checkpoint."""
    from sglang_mi300a.tiny_model import make_tiny_model

    model = make_tiny_model(journey.model, kind="qwen3_5-moe-mxfp4", echo=True)
    account.say(
        f"{model.num_tensors} tensors in {model.num_files} files, {model.weight_bytes / 1e6:.1f} "
        "MB of seeded random values in the structure of the 397B model: Quark MXFP4 experts, bf16 "
        "MTP layer, a real tokenizer and chat template. Each layer adds little to what the one "
        "before gave, so that drafts get accepted."
    )


def shard(journey: Journey, account: Account) -> None:
    """Cut it for two ranks, timed, and verify every checksum."""
    from sglang_mi300a.weights.shard import shard_weights

    began = time.monotonic()
    report = shard_weights(journey.model, journey.artifact, tp=TP)
    seconds = time.monotonic() - began
    read, written = report.num_bytes_read / 1e9, report.num_bytes_written / 1e9
    account.expect(report.is_complete, f"ranks {report.missing_ranks} are missing")
    account.expect(report.has_draft, "the MTP layer is missing")
    account.say(
        f"read {read:.3f} GB and wrote {written:.3f} GB for {TP} ranks in {seconds:.2f} s: "
        f"{read / seconds:.2f} GB/s read, {written / seconds:.2f} GB/s written, on this machine's "
        "disk and without a GPU. Of so small a model most of it is opening and syncing files: "
        "`benchmarks/weights.py` measures it in the 397B model's shapes."
    )
    sglang_mi300a(account, journey, "artifact", "verify", journey.artifact, expect=EXIT_OK)
