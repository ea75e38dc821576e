"""A model is judged from its config.json before anything starts."""

import copy
import dataclasses
import json

import pytest

from sglang_mi300a import served_model
from sglang_mi300a.errors import UserError

CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": {
        "num_attention_heads": 32,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 64,
        "num_experts": 512,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
        "mtp_num_hidden_layers": 1,
    },
    "quantization_config": {
        "quant_method": "quark",
        "global_quant_config": {
            "weight": {"dtype": "fp4", "group_size": 32, "qscheme": "per_group"}
        },
    },
}


@pytest.fixture
def model_dir(tmp_path):
    def make(change=None, name="a model [x]"):
        config = copy.deepcopy(CONFIG)
        if change:
            change(config)
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(config))
        return path

    return make


def test_a_quark_mxfp4_qwen3_5_moe_is_ours_even_in_a_path_with_spaces_and_brackets(model_dir):
    model = served_model.read(model_dir())
    assert model.has_draft
    assert not model.is_artifact
    assert served_model.is_ours(model.config)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda c: c.update(architectures=["LlamaForCausalLM"]), "LlamaForCausalLM"),
        (lambda c: c.pop("architectures"), r"architectures \[\]"),
        (lambda c: c.pop("quantization_config"), "quantization_config null"),
        (lambda c: c["quantization_config"].update(quant_method="awq"), "awq"),
        (
            lambda c: c["quantization_config"]["global_quant_config"]["weight"].update(
                dtype="int4"
            ),
            "int4",
        ),
        (
            lambda c: c["quantization_config"]["global_quant_config"]["weight"].update(
                group_size=16
            ),
            '"group_size": 16',
        ),
    ],
)
def test_another_model_is_refused_with_what_was_found(model_dir, change, found):
    path = model_dir(change)
    with pytest.raises(UserError, match=found) as refused:
        served_model.read(path)
    assert refused.value.exit_code == 2
    assert not served_model.is_ours(json.loads((path / "config.json").read_text()))


def test_a_missing_directory_and_a_missing_or_broken_config_are_told_apart(tmp_path):
    with pytest.raises(UserError, match="no such directory"):
        served_model.read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="not readable"):
        served_model.read(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        served_model.read(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match="JSON but no object"):
        served_model.read(tmp_path)


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (4, 1), (8, 1), (4, 4), (4, 2), (8, 4)])
def test_the_real_models_sizes_split_over_these_ranks(model_dir, tp, ep):
    model = served_model.read(model_dir())
    assert served_model.check_parallel(model, tp, ep) is None


@pytest.mark.parametrize(
    ("tp", "ep", "found"),
    [
        (3, 1, "num_attention_heads 32 / 3"),
        (32, 1, "linear_num_key_heads 16 / 32"),
        (4, 3, "TP 4, EP 3"),
        (0, 1, "TP 0"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_by_number(model_dir, tp, ep, found):
    with pytest.raises(UserError, match=found):
        served_model.check_parallel(served_model.read(model_dir()), tp, ep)


def test_an_artifact_for_other_sizes_is_refused_with_both(model_dir):
    model = served_model.read(model_dir())
    model = dataclasses.replace(model, is_artifact=True, artifact_tp=8, artifact_ep=1)
    with pytest.raises(UserError, match="TP 8, EP 1; supported: TP 4, EP 1"):
        served_model.check_parallel(model, 4, 1)


def test_a_broken_manifest_is_refused(model_dir):
    path = model_dir()
    (path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="manifest.json"):
        served_model.read(path)
