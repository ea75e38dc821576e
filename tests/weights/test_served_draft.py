"""A draft with MXFP4 experts only proposes: what is served stays token for token the target's."""

import json

import pytest

from sglang_mi300a import artifact_manifest, boot_report
from sglang_mi300a.cli.server_process import Server
from sglang_mi300a.tiny_model import make_tiny_model
from sglang_mi300a.weights.shard import shard_weights
from tests.serving.conftest import NUM_TOKENS, SERVE, Oracle

QUESTIONS = ("Where does the memory live?", "Count to three.", "What is a tile?", "And again?")


@pytest.mark.slow
def test_tokens_do_not_depend_on_the_drafts_precision(tmp_path):
    model, out = tmp_path / "model", tmp_path / "artifact"
    make_tiny_model(model, kind="qwen3_5-moe-mxfp4", echo=True)
    shard_weights(model, out, tp=2, draft_experts="mxfp4")
    draft = artifact_manifest.read(out).of_rank(0, "draft")
    assert {t.dtype for t in draft if ".mlp.experts." in t.name} == {"U8"}
    oracle = Oracle(model)
    with Server([*SERVE, "--model", str(out), "--preset", "tuned"]) as server:
        accepted = 0
        for question in QUESTIONS:
            prompt = oracle.prompt(question)
            answer = server.complete(prompt, NUM_TOKENS)
            assert answer.tokens == oracle.tokens(prompt)
            accepted += answer.accepted_drafts
        assert accepted > 0
        reports = boot_report.read_all(server.run_dir)
        log = server.log
    assert set(reports) == {0, 1}
    for rank, report in reports.items():
        loaded = report.facts["weights.draft"]
        wanted = sum(t.size for t in artifact_manifest.read(out).of_rank(rank, "draft"))
        assert loaded["num_bytes"] == loaded["num_verified_bytes"] == wanted, json.dumps(loaded)
    for rank in range(2):
        for part in ("target", "draft"):
            lines = [x for x in log.splitlines() if f"Loaded {part} of rank {rank} from" in x]
            assert len(lines) == 1, log[-3000:]
            assert "GB/s" in lines[0]
            assert "MiB of buffers at most" in lines[0]
    assert "shard-weights" not in log  # nothing to make faster
