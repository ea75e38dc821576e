"""The warm-up as SGLang's registry of warm-ups takes it: before the server listens."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.io_struct import GenerateReqInput

from sglang_mi300a import boot_timeline, golden, settings
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, JudgedAgainst, UserError
from sglang_mi300a.serving import fused_paths, golden_check, ready, warm_up

if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

FLUSH_WITHIN_S = 60.0
REPORTS_WITHIN_S = 60.0
LISTENS_WITHIN_S = 120.0
POLL_S = 0.1
LONGEST_ON_CPU = 256
"""Tokens of the longest prompt on SGLang's CPU engine, which compiles nothing for a length."""


async def run(disaggregation_mode: str, tokenizer_manager: TokenizerManager) -> None:
    """Warm the server up; it ends, with the reason, where that fails.

    Args:
        disaggregation_mode: SGLang's; presets serve without disaggregation.
        tokenizer_manager: SGLang's, which reaches the ranks.
    """
    record = settings.resolved()
    assert record is not None  # the launcher registers it only with a record
    boot_timeline.mark("front end")
    run_dir = Path(record.run_dir)
    stop_server = tokenizer_manager.server_args.custom_sigquit_handler
    try:
        sizes = sizes_of(tokenizer_manager.server_args, record, _context(tokenizer_manager))
        with _failed_ranks_end_in(stop_server, tokenizer_manager):
            done = await warm_up.run(
                warm_up.waves(sizes),
                _text_ids(tokenizer_manager),
                partial(_send, tokenizer_manager),
                within_s=settings.warm_up_seconds(),
                done=_mark_wave,
            )
            distance = await _distance(tokenizer_manager, Path(record.model_path))
            # Users begin with an empty cache; emptying it, each rank checks itself and reports.
            flushed = await tokenizer_manager.flush_cache(timeout_s=FLUSH_WITHIN_S)
            reports = await ready.once_checked(
                partial(ready.reports_of, record),
                record.num_local_ranks,
                polls=round(REPORTS_WITHIN_S / POLL_S) if flushed.success else 1,
                poll_s=POLL_S,
            )
        if not flushed.success:
            raise JudgedAgainst(f"warm-up: caches could not be emptied: {flushed.message}")
        boot_timeline.mark("warm-up end")
        start = ready.judge(
            reports,
            record,
            sizes,
            done,
            boot_timeline.marks(),
            switches=[
                name
                for name in fused_paths.SWITCHES
                if getattr(tokenizer_manager.server_args, name)
            ],
            refuse_drafts=settings.refuses_bad_drafts(),
            distance=distance,
            refuse_distance=settings.golden() == "refuse",
        )
    except (UserError, JudgedAgainst, ValueError, RuntimeError, OSError) as error:
        code = getattr(error, "exit_code", EXIT_JUDGED_AGAINST)
        ready.write(run_dir, {"refusal": str(error), "exit_code": code})
        print(f"sglang-mi300a: {error}", file=sys.stderr, flush=True)
        stop_server(signal.SIGQUIT, None)  # prints the launcher's table and ends all ranks
        raise SystemExit(code) from error
    ready.write(run_dir, start.as_data())
    print(start.in_words(), file=sys.stderr, flush=True)
    app = sys.modules["sglang.srt.entrypoints.http_server"].app
    app.warmup_thread_kwargs["execute_warmup_func"] = wait_until_listening


@contextmanager
def _failed_ranks_end_in(
    stop_server: Callable[[int, FrameType | None], None], tokenizer_manager: TokenizerManager
) -> Iterator[None]:
    """Keep what a start does when a rank fails, which SGLang replaces with its first request."""
    loop = asyncio.get_running_loop()
    tokenizer_manager.auto_create_handle_loop()
    loop.remove_signal_handler(signal.SIGQUIT)
    signal.signal(signal.SIGQUIT, stop_server)
    try:
        yield
    finally:
        serving = tokenizer_manager.signal_handler_class(tokenizer_manager)
        loop.add_signal_handler(signal.SIGQUIT, serving.running_phase_sigquit_handler)


def wait_until_listening(server_args: Any) -> bool:
    """Turn SGLang's health green once its front end answers; in place of its own warm-up request.

    Args:
        server_args: SGLang's.

    Returns:
        Whether it answered.
    """
    import requests
    from sglang.srt.entrypoints import http_server
    from sglang.srt.managers.tokenizer_manager import ServerStatus

    key = server_args.api_key
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for _ in range(round(LISTENS_WITHIN_S / POLL_S)):
        try:
            answer = requests.get(
                f"{server_args.url()}/model_info",
                timeout=5,
                headers=headers,
                verify=server_args.ssl_verify(),
            )
        except requests.RequestException:
            time.sleep(POLL_S)  # not listening yet
            continue
        if answer.status_code == 200:
            http_server._global_state.tokenizer_manager.server_status = ServerStatus.Up
            return True
        time.sleep(POLL_S)
    print(
        f"sglang-mi300a: the front end has not answered within {LISTENS_WITHIN_S:g} s",
        file=sys.stderr,
        flush=True,
    )
    os.kill(os.getpid(), signal.SIGQUIT)
    return False


def sizes_of(server_args: Any, record: settings.Resolved, context_tokens: int) -> warm_up.Sizes:
    """Return what a server is laid out for.

    Args:
        server_args: SGLang's, complete.
        record: The launcher's decision.
        context_tokens: Longest context.
    """
    chunk = int(server_args.chunked_prefill_size or context_tokens)
    chunk = chunk if chunk > 0 else context_tokens
    drafts = int(server_args.speculative_num_draft_tokens or 1) if record.with_draft else 1
    on_cpu = record.device == "cpu"
    longest = context_tokens - 8 * drafts - 2
    decode, prefill = warm_up.captured(server_args.cuda_graph_config, record.max_running_requests)
    return warm_up.Sizes(
        decode_batches=() if on_cpu else decode,
        prefill_tokens=() if on_cpu else prefill,
        max_requests=record.max_running_requests,
        max_prompt=min(longest, LONGEST_ON_CPU) if on_cpu else longest,
        chunk_tokens=chunk,
        tokens_a_step=drafts,
        kv_tokens=record.kv_tokens,
    )


def _context(tokenizer_manager: TokenizerManager) -> int:
    return int(tokenizer_manager.model_config.context_len)


def _mark_wave(name: str) -> None:
    boot_timeline.mark(f"warm-up: {name}")


def _text_ids(tokenizer_manager: TokenizerManager) -> list[int]:
    """Return the text's token ids; without a tokenizer (``--skip-tokenizer-init``) low ids."""
    if tokenizer_manager.tokenizer is None:
        return list(range(100, 200))
    return list(tokenizer_manager.tokenizer.encode(warm_up.TEXT, add_special_tokens=False))


async def _distance(tokenizer_manager: TokenizerManager, model_dir: Path) -> golden.Verdict | None:
    """Return how far the server is from the golden logits beside its weights, if there are any."""
    values = golden.read(model_dir) if settings.golden() != "off" else None
    if values is None:
        return None
    verdict = await golden_check.run(
        values,
        partial(_next_logprobs, tokenizer_manager),
        partial(_continuation, tokenizer_manager),
        within_s=settings.warm_up_seconds(),
    )
    boot_timeline.mark("golden logits")
    return verdict


async def _next_logprobs(
    tokenizer_manager: TokenizerManager, prompt: Sequence[int], ids: Sequence[int]
) -> dict[int, float]:
    """Return log-probabilities of the next token; they come of prefill, so drafts play no part."""
    answer = await _last_answer(
        tokenizer_manager, prompt, 1, return_logprob=True, token_ids_logprob=list(ids)
    )
    meta = answer.get("meta_info", {})
    found = meta.get("output_token_ids_logprobs")
    if not found:
        raise JudgedAgainst(
            f"golden logits: a prompt of {len(prompt)} tokens was answered without "
            f"log-probabilities ({meta.get('finish_reason')}); do: set {settings.GOLDEN}=off"
        )
    return {int(token): float(logprob) for logprob, token, *_ in found[0]}


async def _continuation(
    tokenizer_manager: TokenizerManager, prompt: Sequence[int], count: int
) -> list[int]:
    answer = await _last_answer(tokenizer_manager, prompt, count)
    return [int(token) for token in answer["output_ids"]]


async def _last_answer(
    tokenizer_manager: TokenizerManager, prompt: Sequence[int], new_tokens: int, **more: Any
) -> dict[str, Any]:
    request = GenerateReqInput(
        input_ids=list(prompt),
        sampling_params={"temperature": 0.0, "max_new_tokens": new_tokens, "ignore_eos": True},
        log_metrics=False,
        **more,
    )
    answer: dict[str, Any] = {}
    async for one in tokenizer_manager.generate_request(request, None):
        answer = one
    return answer


async def _send(
    tokenizer_manager: TokenizerManager, prompt: Sequence[int], new_tokens: int
) -> warm_up.Answer:
    meta = (await _last_answer(tokenizer_manager, prompt, new_tokens)).get("meta_info", {})
    reason = meta.get("finish_reason") or {}
    return warm_up.Answer(
        num_tokens=int(meta.get("completion_tokens", 0)),
        verify_steps=int(meta.get("spec_verify_ct") or 0),
        problem=f"{reason.get('message', 'an abort')}" if reason.get("type") == "abort" else "",
    )
