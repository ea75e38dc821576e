"""A preset served by stock SGLang's CPU engine, asked everything in the script."""

from __future__ import annotations

import sys
import time

from sglang_mi300a.accuracy.agreement import Agreement, compare
from sglang_mi300a.cli.server_process import Completion, Server, at_once
from sglang_mi300a.demo.account import Account
from sglang_mi300a.demo.conversation import NUM_TOKENS, Request, Script
from sglang_mi300a.demo.counts import Counts, faults_of
from sglang_mi300a.demo.journey import Journey
from sglang_mi300a.serving import preset as presets

PREFILL_LINE = "] Prefill batch,"
"""In SGLang's log, once a pass over prompts; with more ranks than one the first writes it."""


def baseline(journey: Journey, account: Account) -> None:
    """Serve the preset ``baseline``."""
    _serve(journey, account, "baseline")


def tuned(journey: Journey, account: Account) -> None:
    """Serve the preset ``tuned``."""
    _serve(journey, account, "tuned")


def _serve(journey: Journey, account: Account, preset: str) -> None:
    script = journey.script
    assert script is not None
    command = [
        sys.executable, "-m", "sglang_mi300a.cli.main", "serve",
        "--model", str(journey.artifact), "--preset", preset,
    ]  # fmt: skip
    account.say(f"starting: sglang-mi300a serve --model DEMO/artifact --preset {preset}")
    with Server(command) as server:
        account.say(
            f"ready after {server.boot_s:.0f} s: every required hook live and called on both ranks"
        )
        counts = ask(server, script, preset, account)
    journey.counts[preset] = counts
    drafts = "speculative_algorithm" in presets.load(preset).on("cpu")
    for fault in faults_of(counts, drafts=drafts):
        account.fault(fault)
    account.table(
        ("hook", "required", "live", "calls (least of ranks)"),
        [
            (name, _yes(row["required"]), _yes(row["live"]), row["calls_min_over_ranks"])
            for name, row in counts.hooks.items()
        ],
    )


def ask(server: Server, script: Script, preset: str, account: Account) -> Counts:
    """Ask a server everything, and count."""
    before, began = server.log.count(PREFILL_LINE), time.monotonic()
    answers = at_once(lambda session: _converse(server, session), script.sessions)
    sessions_s = time.monotonic() - began
    prefill_passes = server.log.count(PREFILL_LINE) - before
    turns = [turn for session in script.sessions for turn in session]
    found = [answer for session in answers for answer in session]
    sessions = _compared(turns, found)
    drafts = sum(one.accepted_drafts for one in found)
    cached = sum(one.cached_tokens for one in found)
    account.say(
        f"{len(script.sessions)} sessions of {len(script.sessions[0])} turns: {sessions}; {cached} "
        f"prompt tokens from the prefix cache, {drafts} drafts accepted"
    )
    chat = _chat(server, script)
    account.say(f"the same questions as a streamed chat: {chat}")
    others = server.complete_all([one.prompt for one in script.at_once], NUM_TOKENS)
    alone = _compared(script.at_once, others)
    account.say(f"{len(others)} requests at once: {alone}")
    parts = (sessions, chat, alone)
    return Counts(
        preset=preset,
        tokens_compared=sum(part.tokens_expected for part in parts),
        tokens_equal=sum(part.tokens_equal for part in parts),
        sessions_tokens=sum(len(one.tokens) for one in found),
        decode_passes=sum(one.decode_passes for one in found),
        drafts_accepted=drafts,
        prompt_tokens=sum(len(turn.prompt) for turn in turns),
        cached_tokens=cached,
        prefill_passes=prefill_passes,
        sessions_s=sessions_s,
        other_drafts_accepted=sum(one.accepted_drafts for one in others),
        hooks=server.hooks,
    )


def _converse(server: Server, session: tuple[Request, ...]) -> list[Completion]:
    return [server.complete(turn.prompt, NUM_TOKENS) for turn in session]


def _compared(asked: tuple[Request, ...] | list[Request], found: list[Completion]) -> Agreement:
    return compare([one.expected for one in asked], [one.tokens for one in found])


def _chat(server: Server, script: Script) -> Agreement:
    """Hold the chat over the streaming endpoint; compare what it says."""
    found: list[list[int]] = []
    for turn in script.chat:
        heard = "".join(server.chat(turn.messages, NUM_TOKENS))
        # Text can hide a difference in tokens, never make one up: where it is equal, so are
        # the tokens that make it, as far as anyone who reads it can tell.
        found.append(
            list(turn.expected) if heard == turn.said else list(script.tokenizer.encode(heard))
        )
    return compare([turn.expected for turn in script.chat], found)


def _yes(value: object) -> str:
    return "yes" if value else "no"
