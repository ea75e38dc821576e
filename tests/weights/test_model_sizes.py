"""The sizes of a model come from its config, or the config is refused by field."""

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import model_sizes
from tests.weights import checkpoints
from tests.weights.checkpoints import SMALL_TEXT


def read(config):
    return model_sizes.from_config(config, where="dir/config.json")


def test_the_output_gate_doubles_the_query_rows():
    gated = read(checkpoints.config(SMALL_TEXT))
    plain = read(checkpoints.config({**SMALL_TEXT, "attn_output_gate": False}))
    assert (gated.query_rows_per_head, plain.query_rows_per_head) == (64, 32)


def test_every_fourth_layer_attends():
    sizes = read(checkpoints.config(SMALL_TEXT))
    assert [sizes.is_full_attention(layer) for layer in range(4)] == [False, False, False, True]


def test_head_width_follows_from_the_rest_if_not_given():
    text = {name: value for name, value in SMALL_TEXT.items() if name != "head_dim"}
    assert read(checkpoints.config(text)).head_dim == 32


def test_the_digest_changes_with_a_size_and_with_nothing_else():
    config = checkpoints.config(SMALL_TEXT)
    reordered = dict(reversed(config.items()))
    assert read(config).digest() == read({**reordered, "note": 1}).digest()
    other = checkpoints.config({**SMALL_TEXT, "num_experts": 16})
    assert read(config).digest() != read(other).digest()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, r"\['LlamaForCausalLM'\]"),
        ({"text_config": None}, "without a text_config"),
        ({"text_config": {**SMALL_TEXT, "model_type": "qwen3_5_text"}}, "'qwen3_5_text'"),
        ({"text_config": {**SMALL_TEXT, "num_experts": 0}}, "num_experts = 0"),
        ({"text_config": {**SMALL_TEXT, "hidden_size": "128"}}, "hidden_size = '128'"),
        ({"text_config": {**SMALL_TEXT, "vocab_size": True}}, "vocab_size = True"),
        ({"text_config": {**SMALL_TEXT, "mtp_num_hidden_layers": 2}}, "0 or 1"),
        ({"vision_config": {"depth": 1}}, "vision_config.hidden_size = None"),
    ],
)
def test_what_is_wrong_is_named(change, words):
    with pytest.raises(UserError, match=words):
        read({**checkpoints.config(SMALL_TEXT), **change})
