"""What the warm-up sends, and what it makes of the answers."""

import asyncio
import dataclasses
import importlib.util
import sys
from types import SimpleNamespace

import pytest

from sglang_mi300a import graph_phases, plugin, settings
from sglang_mi300a.cli import launch
from sglang_mi300a.errors import JudgedAgainst, UserError
from sglang_mi300a.serving import warm_up
from sglang_mi300a.serving.warm_up import Answer, Done, Sizes, Wave

TUNED = Sizes(
    decode_batches=tuple(
        graph_phases.captured_batch_sizes(graph_phases.batch_sizes_up_to(512, drafts=True), 48)
    ),
    prefill_tokens=(),
    max_requests=48,
    max_prompt=262_000,
    chunk_tokens=8192,
    tokens_a_step=4,
    kv_tokens=787_936,
)
TEXT_IDS = list(range(1000, 1090))


def warmed(plan, send, within_s=60.0, **more):
    return asyncio.run(warm_up.run(plan, TEXT_IDS, send, within_s=within_s, **more))


async def right(prompt, new_tokens):
    return Answer(new_tokens, verify_steps=max(1, (new_tokens - 1) // 2))


def graphs(decode, prefill):
    """SGLang's own resolved configuration, of (backend, sizes) for each phase."""
    name = "cuda_graph_config"  # SGLang keeps it free of imports, and its package is not
    path = plugin.installed_sglang().root / f"sglang/srt/model_executor/{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module.CudaGraphConfig(
        decode=module.PhaseConfig(backend=decode[0], bs=decode[1]),
        prefill=module.PhaseConfig(backend=prefill[0], bs=prefill[1]),
    )


def test_captured_sizes_are_those_that_sglang_has_resolved():
    config = graphs(("full", [1, 2, 4, 8, 16]), ("breakable", [64, 4]))
    assert warm_up.captured(config, 6) == ((1, 2, 4, 6), (4, 64))
    assert warm_up.captured(config, 16) == ((1, 2, 4, 8, 16), (4, 64))


def test_a_phase_that_is_off_or_has_no_sizes_captures_none():
    assert warm_up.captured(graphs(("disabled", [1, 2]), ("disabled", [4])), 8) == ((), ())
    assert warm_up.captured(graphs(("full", None), ("tc_piecewise", None)), 8) == ((), ())


def test_every_captured_batch_size_gets_a_wave_of_just_so_many_requests():
    at_once = {len(wave.prompts) for wave in warm_up.waves(TUNED) if wave.name != "decode"}
    assert set(TUNED.decode_batches) <= at_once
    assert {1, 7, 48} <= set(TUNED.decode_batches)


def test_the_last_wave_fills_the_server_and_ends_one_request_a_step():
    last = warm_up.waves(TUNED)[-1]
    assert len(last.prompts) == 48
    first = last.new_tokens[0]
    # No step brings a request more than 4 tokens.
    assert list(last.new_tokens) == list(range(first, first + 48 * 4, 4))


def test_captured_prefill_sizes_are_sent_each_alone():
    sizes = dataclasses.replace(TUNED, prefill_tokens=(4, 64, 512))
    alone = [wave.prompts for wave in warm_up.waves(sizes) if wave.name.startswith("prefill ")]
    assert alone == [(4,), (64,), (512,)]


def test_without_captured_prefill_a_prompt_longer_than_a_chunk_is_among_those_sent():
    lengths = [wave.prompts[0] for wave in warm_up.waves(TUNED) if wave.name.startswith("prefill")]
    assert any(length > TUNED.chunk_tokens for length in lengths)
    assert any(length % 64 for length in lengths)


def test_one_prompt_begins_as_the_one_before_it_and_no_other_does():
    plan = warm_up.waves(TUNED)
    prompts = [prompt for wave in plan for prompt in warm_up.prompts_of(wave, TEXT_IDS)]
    first, second = (
        warm_up.prompts_of(wave, TEXT_IDS)[0] for wave in plan if wave.name == "prefix"
    )
    assert second[: len(first)] == first
    assert len(second) > len(first)
    assert all(set(prompt) <= set(TEXT_IDS) for prompt in prompts)


@pytest.mark.parametrize(("kv_tokens", "max_prompt"), [(512, 256), (8192, 256), (64, 20)])
def test_small_pools_get_only_what_fits_them(kv_tokens, max_prompt):
    sizes = dataclasses.replace(TUNED, kv_tokens=kv_tokens, max_prompt=max_prompt, max_requests=8)
    for wave in warm_up.waves(sizes):
        assert max(wave.prompts) <= max_prompt
        assert sum(wave.prompts) <= kv_tokens


def test_tokens_a_step_are_the_mean_over_all_requests():
    async def send(prompt, new_tokens):
        return Answer(new_tokens, verify_steps=(new_tokens - 1) // 3)

    done = warmed([Wave("decode", (4, 4), (7, 13), 0)], send)
    assert done.tokens_a_step == 3.0
    assert (done.requests, done.tokens, set(done.waves)) == (2, 20, {"decode"})


def test_requests_of_a_wave_run_at_the_same_time():
    running, most = 0, 0

    async def send(prompt, new_tokens):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Answer(new_tokens, 1)

    warmed([Wave("decode 5", (4,) * 5, (8,) * 5, 0), Wave("one", (4,), (8,), 0)], send)
    assert most == 5


def test_an_answer_cut_short_is_refused_with_its_wave():
    async def send(prompt, new_tokens):
        return Answer(new_tokens - 1, 1)

    with pytest.raises(JudgedAgainst, match="wave 'decode 3' got 7 tokens instead of 8"):
        warmed([Wave("decode 3", (4,), (8,), 0)], send)


def test_an_aborted_request_is_refused_with_its_reason():
    async def send(prompt, new_tokens):
        return Answer(0, 0, "out of memory")

    with pytest.raises(JudgedAgainst, match="wave 'prefill 64' got out of memory"):
        warmed([Wave("prefill 64", (64,), (2,), 0)], send)


def test_a_server_that_never_answers_is_given_up_with_the_wave_it_hangs_in():
    async def send(prompt, new_tokens):
        if len(prompt) == 5:
            await asyncio.Event().wait()
        return Answer(new_tokens, 1)

    done = []
    plan = [Wave("short", (4,), (2,), 0), Wave("hangs", (5,), (2,), 0)]
    with pytest.raises(JudgedAgainst, match="wave 'hangs' .* not answered"):
        warmed(plan, send, within_s=0.2, done=done.append)
    assert done == ["short"]


def finished(tokens_a_step):
    return Done(1.0, 1, 8, tokens_a_step, {})


def test_drafts_that_are_never_accepted_are_a_problem_and_good_ones_are_none():
    assert "1.000 tokens a step" in warm_up.acceptance_problem(finished(1.0), with_draft=True)
    assert "1.050 tokens a step" in warm_up.acceptance_problem(finished(1.05), with_draft=True)
    assert "no step" in warm_up.acceptance_problem(finished(None), with_draft=True)
    assert warm_up.acceptance_problem(finished(2.9), with_draft=True) == ""
    assert warm_up.acceptance_problem(finished(None), with_draft=False) == ""


def test_a_batch_counts_for_the_next_captured_size():
    assert warm_up.untouched([1, 2, 4, 8], {1: 3, 3: 1, 8: 1, 2: 0}) == [2]
    assert warm_up.untouched([1, 2, 4, 8], {9: 5}) == [1, 2, 4, 8]


def server_args(**change):
    stock = {
        "tokenizer_worker_num": 1, "grpc_mode": False, "smg_grpc_mode": False,
        "disaggregation_mode": "null", "warmups": None,
    }  # fmt: skip
    return SimpleNamespace(**{**stock, **change})


def test_the_switch_leaves_sglangs_own_warm_up(monkeypatch):
    monkeypatch.setenv(settings.WARM_UP, "0")
    args = server_args()
    launch._warm_up_before_listening(args)
    assert args.warmups is None


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"tokenizer_worker_num": 2}, "--tokenizer-worker-num"),
        ({"grpc_mode": True}, "--grpc-mode"),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode"),
    ],
)
def test_where_the_front_end_has_no_place_for_it_that_is_said(change, flag, capsys):
    args = server_args(**change)
    launch._warm_up_before_listening(args)
    assert args.warmups is None
    assert f"with {flag} SGLang's own warm-up runs" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_time_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv(settings.WARM_UP_SECONDS, text)
    with pytest.raises(UserError, match="SGLANG_MI300A_WARM_UP_SECONDS"):
        settings.warm_up_seconds()
