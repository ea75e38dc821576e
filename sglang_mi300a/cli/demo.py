"""The whole path on this machine, on a tiny model, every greedy token checked.

Makes a tiny Quark MXFP4 Qwen3.5-MoE, shards it for two ranks, serves it with stock SGLang's CPU
engine through the plugin with MTP, chats, and compares every token with transformers' own
implementation of the model. What it shows is computed on a CPU (evidence level E0): that the path
is right, and nothing of its speed on an MI300A.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sglang_mi300a.accuracy.agreement import Agreement, compare
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK, UserError

NUM_TOKENS = 24
TP = 2
QUESTIONS = (
    # Long enough for the prefix cache: it keeps states at multiples of 64 tokens.
    "An accelerated processing unit has processor cores and an accelerator in one package, and one "
    "memory that belongs to both of them. Nothing has to be copied from the one to the other, and "
    "whatever the one takes, the other lacks. Which memory do the processor and the accelerator "
    "share?",
    "And how many of them are in one node?",
    "Say it again, shorter.",
)


@dataclass
class Summary:
    """What ``--json`` prints; every count is over greedy tokens at float32."""

    tokens_compared: int = 0
    tokens_equal: int = 0
    drafts_accepted: int = 0
    prefix_cached_tokens: int = 0
    hooks: dict[str, dict[str, Any]] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=lambda: ["E0"])

    def add(self, agreement: Agreement) -> None:
        """Count one comparison."""
        self.tokens_compared += agreement.tokens_expected
        self.tokens_equal += agreement.tokens_equal

    def faults(self) -> list[str]:
        """Return what went against, empty if all is well."""
        faults = []
        if self.tokens_equal != self.tokens_compared or not self.tokens_compared:
            faults.append(f"{self.tokens_equal} of {self.tokens_compared} tokens equal")
        if not self.drafts_accepted:
            faults.append("no draft accepted")
        if not self.prefix_cached_tokens:
            faults.append("no token from the prefix cache")
        faults += [
            f"hook {name} not live or never called"
            for name, row in self.hooks.items()
            if row["required"] and not (row["live"] and row["calls_min_over_ranks"])
        ]
        return faults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--json", action="store_true", help="only a summary for machines on stdout")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep model and artifact there (must not exist)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; exit 0 only if every token is equal and every required hook was reached."""
    say = _silent if args.json else _Steps()
    if args.keep is not None:
        if args.keep.exists():
            raise UserError(
                f"--keep {args.keep}",
                found="it exists",
                allowed="a new directory",
                do="name another",
            )
        args.keep.mkdir(parents=True)
        summary = walk(args.keep, say)
    else:
        with tempfile.TemporaryDirectory(prefix="sglang-mi300a-demo-") as scratch:
            summary = walk(Path(scratch), say)
    faults = summary.faults()
    if args.json:
        print(json.dumps(asdict(summary)))
    else:
        print(_table(summary, faults))
    for fault in faults:
        print(f"sglang-mi300a demo: {fault}", file=sys.stderr)
    return EXIT_JUDGED_AGAINST if faults else EXIT_OK


class _Steps:
    """Prints labelled steps with the seconds each took."""

    def __init__(self) -> None:
        self.number = 0
        self.began = time.monotonic()

    def __call__(self, text: str) -> None:
        self.number += 1
        print(f"[{time.monotonic() - self.began:5.0f} s] {self.number}. [E0] {text}", flush=True)


def _silent(text: str) -> None:
    del text


def walk(scratch: Path, say: Callable[[str], None]) -> Summary:
    """Do every step below ``scratch`` and return the counts."""
    from sglang_mi300a.cli import server_process
    from sglang_mi300a.tiny_model import make_tiny_model
    from sglang_mi300a.weights.shard import shard_weights

    model = make_tiny_model(scratch / "model", kind="qwen3_5-moe-mxfp4", echo=True)
    say(
        f"made a tiny Quark MXFP4 Qwen3.5-MoE: {model.num_tensors} tensors, "
        f"{model.weight_bytes / 1e6:.1f} MB, real tokenizer and chat template"
    )
    shard_weights(model.path, scratch / "artifact", tp=TP)
    say(f"sharded it for TP {TP}, without GPU or engine: {_num_files(scratch / 'artifact')} files")
    talk = Conversation(model.path)
    say("loaded transformers' own implementation as the reference (float32)")

    command = [
        sys.executable, "-m", "sglang_mi300a.cli.main", "serve",
        "--model", str(scratch / "artifact"), "--preset", "tuned",
    ]  # fmt: skip
    say("starting stock SGLang with preset tuned (TP 2, MTP, fixed pools); about a minute")
    summary = Summary()
    with server_process.Server(command) as server:
        say(f"ready after {server.boot_s:.0f} s; every required hook live and called on every rank")
        for number, question in enumerate(QUESTIONS, 1):
            agreement, completion = talk.turn(server, question)
            summary.add(agreement)
            summary.drafts_accepted += completion.accepted_drafts
            summary.prefix_cached_tokens += completion.cached_tokens
            say(
                f"turn {number}: {agreement}; {completion.cached_tokens} prompt tokens from the "
                f"prefix cache, {completion.accepted_drafts} drafts accepted"
            )
        agreement = talk.streamed(server, QUESTIONS)
        summary.add(agreement)
        say(f"the same questions as a streamed chat: {agreement}")
        prompts = talk.other_prompts(12)
        answers = server.complete_all(prompts, NUM_TOKENS)
        agreement = compare(
            [talk.reference(prompt) for prompt in prompts], [a.tokens for a in answers]
        )
        summary.add(agreement)
        summary.drafts_accepted += sum(answer.accepted_drafts for answer in answers)
        say(f"12 requests at once: {agreement}")
        summary.hooks = server.hooks
    return summary


def _num_files(directory: Path) -> int:
    return sum(1 for path in directory.rglob("*") if path.is_file())


class Conversation:
    """A growing chat, with transformers saying what each answer must be.

    Args:
        model_dir: Checkpoint of a tiny model.
    """

    def __init__(self, model_dir: Path) -> None:
        from transformers import AutoTokenizer

        from sglang_mi300a.accuracy.transformers_reference import TransformersReference

        self.tokenizer = AutoTokenizer.from_pretrained(str(model_dir))
        self._model = TransformersReference(model_dir)
        self._history: list[int] = []

    def reference(self, prompt: Sequence[int]) -> list[int]:
        """Return the greedy tokens that transformers continues a prompt with."""
        return list(self._model.continue_greedily(prompt, NUM_TOKENS).tokens)

    def prompt_of(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the token ids that the chat template makes of messages."""
        text = self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def turn(self, server: Any, question: str) -> tuple[Agreement, Any]:
        """Ask after all tokens so far, so that the server can take them from its prefix cache."""
        prompt = [*self._history, *self.prompt_of([{"role": "user", "content": question}])]
        completion = server.complete(prompt, NUM_TOKENS)
        self._history = [*prompt, *completion.tokens]
        return compare([self.reference(prompt)], [completion.tokens]), completion

    def streamed(self, server: Any, questions: Sequence[str]) -> Agreement:
        """Hold the whole chat over the streaming chat endpoint; compare what it says."""
        messages: list[dict[str, str]] = []
        expected, found = [], []
        for question in questions:
            messages.append({"role": "user", "content": question})
            tokens = self.reference(self.prompt_of(messages))
            said = self.tokenizer.decode(tokens)
            heard = "".join(server.chat(messages, NUM_TOKENS))
            expected.append(tokens)
            # Text can hide a difference in tokens, never make one up: where it is equal, so are
            # the tokens that make it, as far as anyone who reads it can tell.
            found.append(tokens if heard == said else self.tokenizer.encode(heard))
            messages.append({"role": "assistant", "content": said})
        return compare(expected, found)

    def other_prompts(self, count: int) -> list[list[int]]:
        """Return prompts of different lengths, each a chat of its own."""
        return [
            self.prompt_of([{"role": "user", "content": f"Number {n}: " + "again, " * n}])
            for n in range(1, count + 1)
        ]


def _table(summary: Summary, faults: list[str]) -> str:
    width = max(map(len, summary.hooks), default=4)
    rows = [
        "",
        f"tokens compared with transformers, float32  {summary.tokens_compared}  [E0]",
        f"of these equal                              {summary.tokens_equal}  [E0]",
        f"drafts accepted                             {summary.drafts_accepted}  [E0]",
        f"prompt tokens from the prefix cache         {summary.prefix_cached_tokens}  [E0]",
        "",
        f"{'hook':<{width}}  required  live  calls (least of ranks)",
    ]
    for name, row in summary.hooks.items():
        rows.append(
            f"{name:<{width}}  {'yes' if row['required'] else 'no':<8}  "
            f"{'yes' if row['live'] else 'NO':<4}  {row['calls_min_over_ranks']}"
        )
    rows += ["", "every check passed" if not faults else f"FAILED: {'; '.join(faults)}"]
    return "\n".join(rows)
