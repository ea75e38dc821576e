"""A preset served by the demo's own steps, from the checkpoint they make."""

import pytest

from sglang_mi300a.demo import conversation, walk
from sglang_mi300a.demo.account import PASSED
from sglang_mi300a.demo.journey import Journey


@pytest.mark.slow
def test_the_demo_makes_shards_and_serves_a_model_and_every_token_is_right(tmp_path, monkeypatch):
    monkeypatch.setattr(conversation, "NUM_SESSIONS", 2)
    monkeypatch.setattr(conversation, "NUM_AT_ONCE", 3)
    names = ("tiny-model", "shard-weights", "reference", "baseline")
    journey = Journey(tmp_path)
    accounts = list(walk.take(journey, [step for step in walk.STEPS if step.name in names]))
    assert [one.name for one in accounts] == list(names)
    assert [one.status for one in accounts] == [PASSED] * 4, [one.faults for one in accounts]
    counts = journey.counts["baseline"]
    assert counts.tokens_equal == counts.tokens_compared == journey.script.num_tokens
    assert counts.decode_passes == counts.sessions_tokens - 6  # the first token is the prompt's
