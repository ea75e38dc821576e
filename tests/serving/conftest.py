"""Every server that tests share: each is booted once a session, all in this one file.

A boot takes 20 to 80 s on two cores, so the quick tier boots few, and tests ask them many things.
"""

import functools
import sys
from pathlib import Path

import pytest

from sglang_mi300a import settings
from sglang_mi300a.accuracy.transformers_reference import TransformersReference
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
    def make(kind="qwen3_5-moe-mxfp4", echo=True, seed=0, mtp=True):
        path = root / f"{kind}-{echo}-{seed}-{mtp}"
        make_tiny_model(path, kind=kind, echo=echo and mtp, seed=seed, mtp=mtp)
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
def oracle(models):
    """The reference of the echo MXFP4 model."""
    return Oracle(models())


@pytest.fixture(scope="session")
def baseline_server(artifacts):
    """TP 1, no drafts, started as `sglang-mi300a serve`."""
    with Server([*SERVE, "--model", str(artifacts(1)), "--preset", "baseline"]) as server:
        yield server


@pytest.fixture(scope="session")
def tuned_server(artifacts):
    """TP 2 with drafts 3/1/4, started as `sglang serve --mi300a tuned`."""
    command = [*STOCK_SERVE, "--model-path", str(artifacts(2)), "--tp-size", "2"]
    with Server([*command, "--mi300a", "tuned"], stock_environment()) as server:
        yield server


@pytest.fixture(scope="session")
def tuned_2_1_3_server(artifacts):
    """TP 1 with drafts 2/1/3, started as `python -m sglang.launch_server --mi300a tuned`."""
    command = [*STOCK_LAUNCH, "--model-path", str(artifacts(1)), "--mi300a", "tuned"]
    drafts = ["--speculative-num-steps", "2", "--speculative-num-draft-tokens", "3"]
    with Server([*command, *drafts], stock_environment()) as server:
        yield server
