"""Stock transformers takes the checkpoints; an echo model's drafts get accepted in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_mi300a.accuracy import transformers_reference
from sglang_mi300a.accuracy.transformers_reference import TransformersReference
from sglang_mi300a.tiny_model import DENSE, MOE_BF16, MOE_MXFP4


@pytest.fixture(scope="module", autouse=True)
def _transformers() -> None:
    transformers_reference.let_transformers_import()


@pytest.mark.parametrize(
    ("name", "class_name"),
    [
        (DENSE, "Qwen3ForCausalLM"),
        (MOE_BF16, "Qwen3_5MoeForCausalLM"),
        ("twin", "Qwen3_5MoeForCausalLM"),
    ],
)
def test_the_text_class_finds_every_tensor_and_no_other(
    models: dict[str, Path], name: str, class_name: str
) -> None:
    from transformers import AutoModelForCausalLM

    model, told = AutoModelForCausalLM.from_pretrained(models[name], output_loading_info=True)
    assert type(model).__name__ == class_name
    assert not any(told.values()), told


def test_the_visual_class_finds_every_tensor_and_no_other(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    from transformers import Qwen3_5MoeForConditionalGeneration

    from sglang_mi300a.tiny_model import dequantised_twin

    twin = dequantised_twin(models["visual"], tmp_path / "twin")
    model, told = Qwen3_5MoeForConditionalGeneration.from_pretrained(twin, output_loading_info=True)
    assert not any(told.values()), told
    assert sum(name.startswith("model.visual.") for name in model.state_dict()) > 20


def test_echo_drafts_are_often_accepted_and_plain_ones_hardly_ever(
    models: dict[str, Path],
) -> None:
    # Near 0.6 an MTP step accepts none, one or two drafts of two in turn: each path is tested.
    assert 0.4 < share_of_accepted_drafts(models["echo"]) < 0.8
    assert share_of_accepted_drafts(models[MOE_MXFP4]) < 0.05


def share_of_accepted_drafts(folder: Path) -> float:
    """Return how often the MTP layer, run on the true tokens, guesses the next greedy token.

    The half of the MTP input that carries the target's hidden state is left out: an echo model
    gives it no weight, and a plain one's guesses are no better with it.
    """
    from transformers import AutoConfig
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

    tensors = transformers_reference.stacked_experts(
        transformers_reference.dequantised(transformers_reference.read_checkpoint(folder))
    )
    config = AutoConfig.from_pretrained(folder).get_text_config()
    config.layer_types = ["full_attention"]
    config._attn_implementation = "eager"
    layer = modeling.Qwen3_5MoeDecoderLayer(config, 0)
    layer.load_state_dict(below(tensors, "mtp.layers.0."))
    norms = {}
    for name in ("pre_fc_norm_embedding", "norm"):
        norms[name] = modeling.Qwen3_5MoeRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        norms[name].load_state_dict(below(tensors, f"mtp.{name}."))
    rotary = modeling.Qwen3_5MoeTextRotaryEmbedding(config)

    reference = TransformersReference(folder)
    accepted = drafts = 0
    for prompt in ([5, 300, 700], [900, 17, 41, 1000, 612], [260], [1100, 1101]):
        continuation = reference.continue_greedily(prompt, 48).tokens
        tokens = torch.tensor([*prompt, *continuation])
        with torch.inference_mode():
            embedded = tensors["model.language_model.embed_tokens.weight"].float()[tokens]
            token_half = tensors["mtp.fc.weight"].float()[:, : config.hidden_size]
            hidden = (norms["pre_fc_norm_embedding"](embedded) @ token_half.T)[None]
            positions = torch.arange(len(tokens))[None]
            later = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)[None, None]
            hidden = layer(
                hidden, position_embeddings=rotary(hidden, positions), attention_mask=later
            )
            logits = norms["norm"](hidden)[0] @ tensors["lm_head.weight"].float().T
        guesses = logits.argmax(dim=-1)[len(prompt) : -1]
        accepted += int((guesses == tokens[len(prompt) + 1 :]).sum())
        drafts += len(guesses)
    return accepted / drafts


def below(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): tensor.float()
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
