"""Weights by config.json alone are those that the cutting rule makes of a checkpoint."""

import json

import pytest

from sglang_mi300a import layout
from sglang_mi300a.artifact_manifest import size_bytes
from sglang_mi300a.pools import weight_sizes
from sglang_mi300a.weights import model_sizes, plan
from sglang_mi300a.weights.steps import groups
from tests.pools.plan import models
from tests.weights import checkpoints

REAL_CONFIG = json.loads((models.REAL / "config.json").read_text())


def by_the_cutting_rule(config, tp, ep):
    """Return bytes of target and draft, and of what is lent, on every rank."""
    shapes = checkpoints.shapes(config["text_config"])
    sources = {name: plan.Source(dtype, shape) for name, (dtype, shape) in shapes.items()}
    sizes = model_sizes.from_config(config, where="config.json")
    found = []
    for rank in (0, tp - 1):
        at = plan.Placement(tp, ep, rank)
        row = [
            sum(
                group.size
                for group in groups(
                    [plan.make(sizes, sources, at, part, text_only=True, where="")], layout.PLAIN
                )
            )
            for part in ("target", "draft")
        ]
        lent = plan.lent(sizes, at, "draft").values()
        found.append((*row, sum(size_bytes("BF16", shape) for shape in lent)))
    return found


def config_of(text):
    return {**REAL_CONFIG, "text_config": {**REAL_CONFIG["text_config"], **text}}


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (4, 1), (2, 2), (4, 4)])
def test_a_small_models_weights(tp, ep, tmp_path):
    config = config_of(checkpoints.SMALL_TEXT)
    (tmp_path / "config.json").write_text(json.dumps(config))
    dims = models.dims(tmp_path)
    ours = (
        weight_sizes.target_bytes(dims, tp),
        weight_sizes.draft_bytes(dims, tp),
        weight_sizes.lent_bytes(dims, tp),
    )
    assert by_the_cutting_rule(config, tp, ep) == [ours, ours]


def test_the_real_models_weights_on_four_ranks():
    dims = models.dims()
    ours = (
        weight_sizes.target_bytes(dims, 4),
        weight_sizes.draft_bytes(dims, 4),
        weight_sizes.lent_bytes(dims, 4),
    )
    assert by_the_cutting_rule(REAL_CONFIG, 4, 1)[0] == ours
    assert ours == (56_459_273_952, 3_353_396_224, 1_017_118_720)


def test_a_model_without_a_draft_layer_has_no_draft_bytes(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of({"mtp_num_hidden_layers": 0})))
    dims = models.dims(tmp_path)
    assert (weight_sizes.draft_bytes(dims, 4), weight_sizes.lent_bytes(dims, 4)) == (0, 0)
