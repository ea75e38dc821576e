"""A start asks the server what golden.json knows, and judges what comes."""

import asyncio
import math

import pytest

from sglang_mi300a.errors import JudgedAgainst
from sglang_mi300a.golden import Golden, Row, Verdict
from sglang_mi300a.serving import golden_check

SURE = Row((5, 6), (9, 8), (math.log(0.6), math.log(0.3)), (9, 4), (3.0, 2.5))
UNSURE = Row((7,), (3,), (math.log(0.4),), (3,), (0.5,))
VALUES = Golden("0.1", "by hand", "00", (SURE, UNSURE))


class Asked:
    """A server that knows the right answers, and remembers what it was asked."""

    def __init__(self):
        self.prompts, self.counts = [], []

    async def ask(self, prompt, ids):
        self.prompts.append(prompt)
        row = next(row for row in VALUES.rows if row.token_ids == prompt)
        return dict(zip(ids, row.top_logprobs, strict=True))

    async def go_on(self, prompt, count):
        self.counts.append((prompt, count))
        return SURE.next_ids[:count]


def test_each_prompt_is_asked_once_and_continued_only_where_there_is_no_doubt():
    server = Asked()
    found = asyncio.run(golden_check.run(VALUES, server.ask, server.go_on, within_s=10))
    assert server.prompts == [SURE.token_ids, UNSURE.token_ids]
    assert server.counts == [(SURE.token_ids, 2)]
    assert found.mean_distance == pytest.approx(0, abs=1e-12)
    assert (found.num_sure, found.num_parted) == (1, 0)
    assert golden_check.warning(found) == golden_check.refusal(found) == ""


def test_a_server_that_does_not_answer_is_judged_against():
    async def never(*_):
        await asyncio.sleep(60)

    with pytest.raises(JudgedAgainst, match=r"2 prompts were not answered within 0\.01 s"):
        asyncio.run(golden_check.run(VALUES, never, never, within_s=0.01))


def test_a_distance_beyond_rounding_is_refused_with_what_to_do():
    refused = golden_check.refusal(Verdict(0.9, 1.0, 4, 4))
    assert "distance to the golden logits 0.9000" in refused
    assert "artifact verify" in refused
    assert golden_check.refusal(Verdict(math.nan, 1.0, 4, 4))


def test_a_distance_that_bfloat16_does_not_make_is_warned_of():
    far = Verdict(0.2, 0.4, 4, 0)
    assert golden_check.refusal(far) == ""
    assert "more than is expected of bfloat16" in golden_check.warning(far)
    assert golden_check.warning(Verdict(0.01, 0.1, 4, 1))
