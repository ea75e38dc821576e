"""A served model whose expert layers run on the shipped code object, against the torch rung.

Each rank has a stand-in HIP runtime and interprets the machine code: E1. The model has the hidden
size that the kernels are made for, a bf16 draft, and shared experts that ride in the same launches.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import requests
import torch
from safetensors.torch import load_file, save_file

from sglang_mi300a import boot_report, settings
from sglang_mi300a.cli.server_process import Server
from sglang_mi300a.cpu_engine import recipe
from sglang_mi300a.tiny_model import TinySizes, make_tiny_model
from sglang_mi300a.weights.shard import shard_weights
from tests import repository
from tests.serving.conftest import SERVE

PLUGIN = Path(__file__).parent / "standin_plugin"
ONE_IN = 128
NUM_PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 8, 26, 6


def make_choices_clear(model):
    """Leave few tokens with a chance.

    The best two of 1,248 random logits lie so close that bfloat16 decides one position in eight.
    """
    index = json.loads((model / "model.safetensors.index.json").read_text())
    file = model / index["weight_map"]["lm_head.weight"]
    tensors = load_file(file)
    factor = torch.full((len(tensors["lm_head.weight"]), 1), 0.05).bfloat16()
    factor[::ONE_IN] = 1
    tensors["lm_head.weight"] *= factor
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    root = tmp_path_factory.mktemp("wide")
    sizes = TinySizes(
        hidden=4096, experts=4, experts_per_token=2, moe_intermediate=128, shared_intermediate=128
    )
    make_tiny_model(root / "model", kind="qwen3_5-moe-mxfp4", echo=True, sizes=sizes)
    make_choices_clear(root / "model")
    shard_weights(root / "model", root / "artifact", tp=1)
    return root / "artifact"


@pytest.fixture(scope="module")
def prompts():
    draw = np.random.default_rng(0)
    return [draw.integers(300, 1100, PROMPT_TOKENS).tolist() for _ in range(NUM_PROMPTS)]


def asked(server, prompt):
    """Return the two best (logprob, token) at each position of a prompt, and what follows it."""
    answer = requests.post(
        f"http://127.0.0.1:{server.port}/generate",
        json={
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 2,
        },
        timeout=600,
    ).json()
    rows = answer["meta_info"]["input_top_logprobs"][1:]
    return [[(float(p), int(token)) for p, token, *_ in row] for row in rows], answer["output_ids"]


def served(artifact, prompts, rung):
    """Return what a server says of each prompt, and its rank's report."""
    command = [*SERVE, "--model", artifact, "--preset", "tuned", "--dtype", "bfloat16"]
    command.append("--enable-fp32-lm-head")  # else logits differ by a sixteenth or not at all
    first = settings.python_path_with(recipe.standins_path())
    environment = {"PYTHONPATH": f"{PLUGIN}:{repository.ROOT}:{first}", "STANDIN_RUNG": rung}
    environment[settings.WARM_UP] = "0"  # interpreting it for every size would take long
    with Server([str(part) for part in command], environment) as server:
        answers = [asked(server, prompt) for prompt in prompts]
        (report,) = boot_report.read_all(server.run_dir).values()
    return answers, report


@pytest.mark.slow
def test_the_code_object_serves_the_tokens_of_the_torch_rung(artifact, prompts, capsys):
    torch_rung, _ = served(artifact, prompts, "torch")
    code_object, report = served(artifact, prompts, "hip")

    experts = report.facts["experts"]
    assert experts["rung"] == "hip"
    assert experts["target.shared_expert"] == {"together": 4}
    assert experts["draft.shared_expert"] == {"together": 1}
    assert experts["draft.bf16_experts"] == {"on hip": 1}
    assert report.seams["moe.draft_experts"].calls > 0

    pairs = [
        (a, b)
        for (ours, _), (theirs, _) in zip(code_object, torch_rung, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    ]
    assert len(pairs) >= 200
    largest = max(abs(p - q) for a, b in pairs for p, token in a for q, same in b if token == same)
    clear = [(a, b) for a, b in pairs if b[0][0] - b[1][0] > 4 * largest]
    parted = [
        next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
        for (_, a), (_, b) in zip(code_object, torch_rung, strict=True)
    ]
    with capsys.disabled():
        facts = {
            "positions": len(pairs),
            "largest difference": round(largest, 5),
            "excluded": len(pairs) - len(clear),
            "first divergence of each continuation": parted,
        }
        print(f"\ncode object against torch rung: {json.dumps(facts)}")
    assert 0 < largest < 0.25  # other arithmetic, and no more
    assert all(a[0][1] == b[0][1] for a, b in clear)
    assert len(pairs) - len(clear) <= len(pairs) // 10
