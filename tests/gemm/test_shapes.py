"""The grid holds every dense product of a model with the rows SGLang gives it, and no other."""

import json
from collections import Counter

import pytest

from sglang_mi300a import graph_phases, served_model
from sglang_mi300a.cli import gemm_grid
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import linear_shapes, row_counts, shape_grid
from sglang_mi300a.gemm.row_counts import Batches
from sglang_mi300a.weights import model_sizes, plan
from tests.gemm import stock_functions as stock
from tests.pools.plan import models
from tests.weights import checkpoints

REAL_CONFIG = json.loads((models.REAL / "config.json").read_text())
NO_GEMM = ("embed_tokens", "experts", "conv1d", "shared_expert_gate", "norm", "patch_embed", "pos_")
"""Two-dimensional parameters that no dense product reads."""


def weights_by_the_cutting_rule(config, tp, ep, part):
    """Return how often each (N, K) stands among one rank's weights."""
    shapes = checkpoints.shapes(config["text_config"])
    sources = {name: plan.Source(dtype, shape) for name, (dtype, shape) in shapes.items()}
    sizes = model_sizes.from_config(config, where="config.json")
    at = plan.Placement(tp, ep, 0)
    parameters = plan.make(sizes, sources, at, part, text_only=True, where="").parameters
    found = {p.name: p.shape for p in parameters} | plan.lent(sizes, at, part)
    return Counter(
        shape
        for name, shape in found.items()
        if len(shape) == 2 and not any(word in name for word in NO_GEMM)
    )


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (4, 1), (2, 2), (4, 4)])
@pytest.mark.parametrize("small", [True, False])
def test_the_products_are_those_whose_weights_a_rank_holds(tp, ep, small, tmp_path):
    text = {**REAL_CONFIG["text_config"], **(checkpoints.SMALL_TEXT if small else {})}
    config = {**REAL_CONFIG, "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = linear_shapes.of_text_model(models.dims(tmp_path), tp, with_draft=True)
    for part, uses in (("target", "num_in_target"), ("draft", "num_in_draft")):
        ours = Counter()
        for shape in shapes:
            ours[shape.n, shape.k] += getattr(shape, uses)
        assert +ours == weights_by_the_cutting_rule(config, tp, ep, part)


def test_the_launches_of_a_pass_are_the_345_and_the_head_that_were_published():
    shapes = linear_shapes.of_text_model(models.dims(), 4, with_draft=True)
    assert sum(shape.num_in_target for shape in shapes) == 345 + 1


def test_a_shared_expert_that_rides_with_the_routed_ones_is_no_dense_product(monkeypatch):
    model = served_model.read(models.REAL)
    shapes = [(p.n, p.k) for p in gemm_grid.of_preset(model, "tuned", 4).products]
    assert (4096, 256) not in shapes
    assert (512, 4096) in shapes  # the router
    # At EP 4 a rank's routed experts are whole and the shared one is not: it stays apart.
    by_experts = gemm_grid.of_preset(model, "tuned", 4, ep=4)
    assert (4096, 256) in [(p.n, p.k) for p in by_experts.products]
    monkeypatch.setenv("SGLANG_MI300A_SHARED_EXPERT", "apart")
    apart = gemm_grid.of_preset(model, "tuned", 4)
    assert (4096, 256) in [(p.n, p.k) for p in apart.products]


def test_without_drafts_there_is_no_draft_product():
    shapes = linear_shapes.of_text_model(models.dims(), 4, with_draft=False)
    assert "fc" not in [shape.name for shape in shapes]
    assert not any(shape.num_in_draft for shape in shapes)


@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("largest", [1, 7, 30, 48, 96, 250, 256, 300, 512, 700])
def test_decode_batches_are_stocks_own(largest, drafts, padded):
    ours = graph_phases.batch_sizes_up_to(largest, drafts=drafts, padded=padded)
    assert ours == stock.decode_batch_sizes(largest, drafts=drafts, padded=padded)


@pytest.mark.parametrize("requests", [1, 8, 30, 47, 48, 49, 96, 128, 600])
def test_captured_batches_are_those_of_stocks_graph_runner(requests):
    for drafts in (True, False):
        sizes = stock.decode_batch_sizes(512, drafts=drafts)
        ours = graph_phases.captured_batch_sizes(sizes, requests)
        assert ours == stock.captured_batch_sizes(sizes, requests)
        fields = {"speculative_algorithm": "NEXTN" if drafts else None}
        assert ours == graph_phases.decode_batch_sizes(
            fields, max_running_requests=requests, memory_bytes=128 * 10**9, tp=4
        )


@pytest.mark.parametrize("largest", [4, 100, 512, 1024, 2000, 4096, 8192, 16384])
def test_captured_prefills_are_stocks_own(largest):
    assert graph_phases.token_counts_up_to(largest) == stock.prefill_token_counts(largest)


@pytest.mark.parametrize(("topk", "draft_tokens"), [(1, 4), (1, 3), (2, 6)])
def test_a_requests_rows_in_each_phase_of_mtp_are_stocks_own(topk, draft_tokens):
    batches = Batches((1, 5), draft_tokens, topk, (), 1)
    widths = {
        phase: stock.rows_of_a_request(phase, topk=topk, draft_tokens=draft_tokens)
        for phase in ("target_verify", "draft_decode", "draft_extend")
    }
    floor = set(row_counts.prefill_buckets(1))
    target = linear_shapes.LinearShape("target", 8, 8, "tokens", 1, 0)
    draft = linear_shapes.LinearShape("draft", 8, 8, "tokens", 0, 1)
    head = linear_shapes.LinearShape("head", 8, 8, "sampled", 0, 1)
    verify = {size * widths["target_verify"] for size in (1, 5)}
    step = {size * widths["draft_decode"] for size in (1, 5)}
    extend = {size * widths["draft_extend"] for size in (1, 5)}
    assert set(row_counts.row_counts(target, batches)) == floor | verify
    assert set(row_counts.row_counts(draft, batches)) == floor | step | extend
    # The draft's extension samples the one selected position of a request.
    assert set(row_counts.row_counts(head, batches)) == floor | step | {1, 5}


def test_the_grid_of_the_published_runs_comes_out():
    """49 row counts: 36 of decode, draft and verification at 48 requests, 13 of prefill."""
    grid = gemm_grid.of_preset(
        served_model.read(models.REAL), "tuned", 4,
        given={"max_running_requests": 48, "chunked_prefill_size": 1024},
    )  # fmt: skip
    head = next(product for product in grid.products if product.names == ("lm_head",))
    published = [*range(1, 9), *range(10, 33, 2), 40, 44, 48, *range(56, 129, 8), 160, 176, 192]
    assert list(head.m) == [*published, *range(256, 1025, 64)]


@pytest.mark.parametrize("chunk", [1, 16, 100, 128, 129, 1000, 1024, 8192])
def test_every_prefill_has_a_bucket_that_wastes_less_than_a_tile(chunk):
    buckets = row_counts.prefill_buckets(chunk)
    assert buckets == sorted(set(buckets))
    for rows in range(1, chunk + 1):
        bucket = row_counts.bucket_for(rows, buckets)
        assert 0 <= bucket - rows < (16 if rows <= 128 else 64)


def test_more_rows_than_any_bucket_are_left_as_they_are():
    assert row_counts.bucket_for(9000, [64, 128]) == 9000


def test_prefill_graphs_that_are_asked_for_are_in_the_grid():
    model = served_model.read(models.REAL)
    given = {
        "cuda_graph_config": {"prefill": {"backend": "breakable", "bs": [100, 300]}},
        "chunked_prefill_size": 512,
    }
    grid = gemm_grid.of_preset(model, "tuned", 4, given=given)
    by_name = {name: product for product in grid.products for name in product.names}
    assert {100, 300} <= set(by_name["self_attn.qkv_proj"].m)
    assert 100 not in by_name["lm_head"].m  # it samples requests, not tokens


def test_a_visual_tower_is_listed_and_never_tuned():
    vision = {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "spatial_merge_size": 2,
        "out_hidden_size": 4096,
    }  # fmt: skip
    towers = linear_shapes.of_visual_tower(vision, 4)
    assert {(one.n, one.k) for one in towers} == {
        (864, 1152), (1152, 288), (1076, 1152), (1152, 1076), (1152, 4608), (4096, 1152),
    }  # fmt: skip
    grid = shape_grid.grid_of([], Batches((1,), 0, 0, (), 64), 4, towers)
    assert grid.num_cells == 0
    assert "not tuned" in shape_grid.as_text(grid, "")


def test_an_unsplittable_model_is_refused():
    with pytest.raises(UserError, match="do not divide"):
        served_model.check_parallel(served_model.read(models.REAL), 3, 1)


@pytest.mark.parametrize(
    ("values", "text"),
    [([1, 2, 3, 5], "1-3, 5"), ([4, 8, 12], "4-12 by 4"), ([1, 9], "1, 9"), ([], ""), ([7], "7")],
)
def test_ranges_are_folded(values, text):
    assert shape_grid.folded(values) == text
