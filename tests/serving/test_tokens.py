"""Stock SGLang's CPU engine serves the tiny MXFP4 model token for token as transformers does.

float32 and greedy throughout: at bfloat16 two right implementations of this architecture part at
near ties, so bfloat16 is no oracle.
"""

import pytest

from sglang_mi300a import boot_report
from tests.serving.conftest import EVERY_SERVER, NUM_TOKENS

QUESTIONS = ("Where does the memory live?", "Count to three.", "What is a tile?")


def on(*names):
    """Run a test on each server of these names."""
    return pytest.mark.parametrize("served", names, indirect=True)


@on(*EVERY_SERVER)
def test_every_greedy_token_is_that_of_transformers(served):
    server, oracle = served
    for question in QUESTIONS:
        prompt = oracle.prompt(question)
        assert server.complete(prompt, NUM_TOKENS).tokens == oracle.tokens(prompt)


@on(*EVERY_SERVER)
def test_a_second_turn_hits_the_prefix_cache_and_its_tokens_are_still_right(served):
    server, oracle = served
    first = oracle.prompt(QUESTIONS[0] * 10)  # states are kept at multiples of 64 tokens
    server.complete(first, NUM_TOKENS)
    second = (*first, *oracle.tokens(first), *oracle.prompt("Go on."))
    completion = server.complete(second, NUM_TOKENS)
    assert completion.cached_tokens > 0
    assert completion.tokens == oracle.tokens(second)


@on(*EVERY_SERVER)
def test_twelve_requests_at_once_get_the_tokens_they_get_alone(served):
    server, oracle = served
    prompts = [oracle.prompt(f"{n}: " + "and again " * n) for n in range(12)]
    answers = server.complete_all(prompts, NUM_TOKENS)
    assert [answer.tokens for answer in answers] == [oracle.tokens(prompt) for prompt in prompts]


@on(*EVERY_SERVER)
def test_every_required_hook_is_live_and_called_on_every_rank(served):
    rows = served[0].hooks
    assert {"moe.quark", "pools.planned_bytes", "pools.assert_sizes"} <= set(rows)
    for name, row in rows.items():
        if row["required"]:
            assert row["live"], name
            assert row["calls_min_over_ranks"] > 0, name


@on(*EVERY_SERVER)
def test_every_dense_product_is_in_the_grid_that_tables_are_tuned_for(served):
    reports = boot_report.read_all(served[0].run_dir)
    assert reports
    for report in reports.values():
        products = report.facts["gemm"]
        assert products["never_seen"] == []
        assert products["outside_the_grid"] == []
        assert products["padded"] > 0


@on("tuned TP 2")
def test_at_least_twenty_drafts_are_accepted(served):
    server, oracle = served
    accepted = 0
    for number in range(6):
        prompt = oracle.prompt(f"Draft {number} for me.")
        completion = server.complete(prompt, NUM_TOKENS)
        assert completion.tokens == oracle.tokens(prompt)
        accepted += completion.accepted_drafts
    assert accepted >= 20


@on("tuned TP 2")
def test_a_streamed_chat_says_what_transformers_says(served):
    server, oracle = served
    pieces = list(server.chat([{"role": "user", "content": QUESTIONS[1]}], NUM_TOKENS))
    said = oracle.tokenizer.decode(oracle.tokens(oracle.prompt(QUESTIONS[1])))
    assert len(pieces) > 1
    assert "".join(pieces) == said


@on("tuned TP 2")
def test_the_launcher_prints_one_table_of_hooks(served):
    log = served[0].log
    assert log.count("ranks loaded the package") == 1
    assert "sglang-mi300a: 2 of 2 ranks loaded the package" in log


@on("tuned TP 2")
def test_pools_have_exactly_the_sizes_asked_for(served):
    import requests

    info = requests.get(f"{served[0].url}/server_info", timeout=30).json()
    assert info["max_total_num_tokens"] == 8192
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 8
