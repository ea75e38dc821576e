"""Every server that tests share: each is booted once a session, all in this one file.

A boot takes 20 to 80 s on two cores, so the quick tier boots few, and tests ask them many things.
"""

import functools
import sys
from pathlib import Path

import pytest

from sglang_mi300a import golden, settings
from sglang_mi300a.accuracy.transformers_reference import TransformersReference
from sglang_mi300a.cli import golden as golden_command
from sglang_mi300a.cli.server_process import Server
from sglang_mi300a.cpu_engine import recipe
from sglang_mi300a.tiny_model import make_tiny_model
from sglang_mi300a.weights.shard import shard_weights

NUM_TOKENS = 20


def stock_environment(**more):
    """The environment of the stock spellings on a CPU."""
    return {"PYTHONPATH": settings.python_path_with(recipe.standins_path()), **more}


SERVE = [sys.executable, "-m", "sglang_mi300a.cli.main", "serve"]
STOCK_SERVE = [str(Path(sys.executable).with_name("sglang")), "serve"]
STOCK_LAUNCH = [sys.executable, "-m", "sglang.launch_server"]


class Oracle:
    """A tiny model's tokenizer and transformers' own greedy tokens, remembered."""

    def __init__(self, model_dir):
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(str(model_dir))
        self._reference = TransformersReference(model_dir)

    def prompt(self, *messages):
        """Token ids of a chat: user and assistant messages in turn."""
        roles = ("user", "assistant")
        chat = [{"role": roles[n % 2], "content": text} for n, text in enumerate(messages)]
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    @functools.cache  # noqa: B019 - lives as long as the session
    def tokens(self, prompt, num_tokens=NUM_TOKENS):
        """The greedy continuation of a prompt."""
        return list(self._reference.continue_greedily(list(prompt), num_tokens).tokens)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Return a function that makes (once) and returns a tiny checkpoint."""
    root = tmp_path_factory.mktemp("tiny-models")  # stock's own loader fails on brackets

    @functools.cache
    def make(kind="qwen3_5-moe-mxfp4", echo=False, mtp=True):
        path = root / f"{kind}-{echo}-{mtp}"
        make_tiny_model(path, kind=kind, echo=echo, mtp=mtp)
        return path

    return make


@pytest.fixture(scope="session")
def artifacts(models, tmp_path_factory):
    """Return a function that shards (once) a tiny checkpoint."""
    root = tmp_path_factory.mktemp("artifacts [1]")

    @functools.cache
    def make(tp, ep=1, **model):
        path = root / f"tp{tp}-ep{ep}-{sorted(model.items())}"
        # SGLang pads KV heads where ranks outnumber them on a CPU, and replicates them elsewhere.
        heads = "padded" if tp > 2 else "replicated"
        shard_weights(models(**model), path, tp=tp, ep=ep, heads=heads)
        return path

    return make


@pytest.fixture(scope="session")
def artifact_with_golden(models, artifacts):
    """Return the artifact for TP 2 of the model whose drafts are accepted, with golden logits."""
    path = artifacts(2, echo=True)
    golden.write(path, golden_command.make(models(echo=True), path))
    return path


@pytest.fixture(scope="session")
def oracles(models):
    """Return a function that gives (once) the reference of a tiny model."""
    return functools.cache(lambda **model: Oracle(models(**model)))


WITH_GOLDEN = object()
"""Stands for the artifact with golden logits, which is made only where it is served."""
DRAFTS_2_1_3 = ["--speculative-num-steps", "2", "--speculative-num-draft-tokens", "3"]


@pytest.fixture(scope="session")
def served(request, artifacts, oracles):
    """A running server by name, and its reference; one server at a time, each booted once.

    Between them the three ways to start one are used, and models whose drafts are accepted (echo)
    and never are (plain), so that both commit and rollback happen.
    """
    echo, plain = {"echo": True}, {"echo": False}
    model, command, environment = {
        "baseline TP 1": (
            plain,
            [*SERVE, "--model", artifacts(1, **plain), "--preset", "baseline"],
            {},
        ),
        "tuned TP 2": (
            echo,
            [*STOCK_SERVE, "--model-path", WITH_GOLDEN, "--tp-size", "2"],
            stock_environment(),
        ),
        "tuned TP 1, drafts 2/1/3": (
            plain,
            [*STOCK_LAUNCH, "--model-path", artifacts(1, **plain), *DRAFTS_2_1_3],
            stock_environment(),
        ),
    }[request.param]
    if WITH_GOLDEN in command:
        path = request.getfixturevalue("artifact_with_golden")
        command[command.index(WITH_GOLDEN)] = path
    command = [*map(str, command), *([] if environment == {} else ["--mi300a", "tuned"])]
    with Server(command, environment) as running:
        yield running, oracles(**model)


EVERY_SERVER = ("baseline TP 1", "tuned TP 2", "tuned TP 1, drafts 2/1/3")
