"""Prompts that wait for each other are answered as if they had not."""

from __future__ import annotations

import pytest

from sglang_mi300a.cli.server_process import Server
from tests.serving.conftest import SERVE

NUM_TOKENS = 24
ACCUMULATE = "SGLANG_MI300A_ACCUMULATE"


@pytest.mark.slow
@pytest.mark.parametrize("limits", ["512/8", "0"])
def test_prompts_held_back_at_two_ranks_change_no_token(artifacts, oracles, limits):
    oracle = oracles(echo=True)
    # Nothing waits until eight requests decode: let the tiny server run more.
    sizes = ["--max-running-requests", "16", "--max-mamba-cache-size", "64"]
    command = [*SERVE, "--model", str(artifacts(2, echo=True)), "--preset", "tuned", *sizes]
    with Server(command, {ACCUMULATE: limits}) as server:
        prompts = [oracle.prompt(f"{n}: " + "and again " * (n + 1)) for n in range(28)]
        answers = server.complete_all(prompts, NUM_TOKENS)
        wanted = [oracle.tokens(prompt, NUM_TOKENS) for prompt in prompts]
        assert [answer.tokens for answer in answers] == wanted
        assert server.hooks["pools.accumulate_prefills"]["calls_min_over_ranks"] == 1
        said = server.log.count("holding prompts back for 512 new tokens or 8 passes")
        assert said == (2 if limits != "0" else 0)  # once a rank
