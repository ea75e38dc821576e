"""Every byte of a checkpoint goes to the ranks it belongs to, at any size."""

import sys
from collections import Counter
from math import prod
from pathlib import Path

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.layout import PLAIN
from sglang_mi300a.weights import model_sizes, plan, safetensors_header, shard, steps
from sglang_mi300a.weights.plan import Placement, Source
from tests.weights import checkpoints
from tests.weights.checkpoints import REAL_TEXT, SMALL_TEXT

GB = 10**9


def sources_of(text=SMALL_TEXT, **kinds):
    return {name: Source(*row) for name, row in checkpoints.shapes(text, **kinds).items()}


def sizes_of(text=SMALL_TEXT):
    return model_sizes.from_config(checkpoints.config(text), where="config.json")


def make(sources, *, tp=1, ep=1, rank=0, part="target", text=SMALL_TEXT, heads="replicated"):
    at = Placement(tp, ep, rank, heads)
    return plan.make(sizes_of(text), sources, at, part, text_only=True, where="model")


def takers(plans, sources):
    """Return how many ranks take each row of each source; a row cut by columns counts by share."""
    counts = {name: Counter() for name in sources}
    for each in plans:
        for parameter in each.parameters:
            for piece in parameter.pieces:
                width = plan.num_columns(sources[piece.source].shape)
                share = (piece.column_stop - piece.column_start) / width
                for row in range(piece.row_start, piece.row_stop):
                    counts[piece.source][row] += share
    return counts


REPLICATED = ("norm", "mlp.gate.", "shared_expert_gate", "mtp.fc")


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (4, 4)])
@pytest.mark.parametrize("experts", ["mxfp4", "bf16", "stacked"])
def test_ranks_together_take_everything(tp, ep, experts):
    """Split tensors once in all, replicated ones once a rank, KV heads once for each that share."""
    sources = sources_of(experts=experts, mtp_experts="stacked" if experts == "stacked" else "bf16")
    plans = [
        make(sources, tp=tp, ep=ep, rank=rank, part=part)
        for part in ("target", "draft")
        for rank in range(tp)
    ]
    for name, counts in takers(plans, sources).items():
        wanted = 1
        if any(mark in name for mark in REPLICATED):
            wanted = tp
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            wanted = max(1, tp // SMALL_TEXT["num_key_value_heads"])
        rows = plan.num_rows(sources[name].shape)
        assert counts == dict.fromkeys(range(rows), wanted), name


@pytest.mark.parametrize("heads", ["replicated", "padded"])
def test_pieces_fill_their_parameter_without_overlap(heads):
    sources = sources_of()
    for rank in range(4):
        for parameter in make(sources, tp=4, rank=rank, heads=heads).parameters:
            rows = [
                row
                for piece in parameter.pieces
                for row in range(
                    piece.destination_row,
                    piece.destination_row + piece.row_stop - piece.row_start,
                )
            ]
            assert rows == sorted(set(rows)), parameter.name
            whole = len(rows) == plan.num_rows(parameter.shape)
            assert parameter.is_filled == whole
            may_be_padded = ["embed_tokens", "lm_head"]
            if heads == "padded":
                may_be_padded += ["qkv_proj", "o_proj"]
            assert whole or any(word in parameter.name for word in may_be_padded), parameter.name


def test_vocabulary_padding_is_the_last_ranks():
    """200 tokens pad to 256: with 4 ranks of 64 rows, the last has 8 real ones."""
    sources = sources_of()
    embeddings = [make(sources, tp=4, rank=rank).parameters[0] for rank in range(4)]
    assert [p.shape for p in embeddings] == [(64, 128)] * 4
    assert [p.pieces[0].row_stop - p.pieces[0].row_start for p in embeddings] == [64, 64, 64, 8]


def test_padded_heads_leave_the_last_ranks_without_any():
    """Two KV heads over four ranks, as SGLang's CPU engine builds them: ranks 2 and 3 are zero."""
    sources = sources_of()
    for rank in range(4):
        found = {p.name: p for p in make(sources, tp=4, rank=rank, heads="padded").parameters}
        qkv, out = found["model.layers.3.qkv_proj.weight"], found["model.layers.3.o_proj.weight"]
        assert qkv.shape == (2 * 64 + 2 * 32, 128)
        assert out.shape == (128, 64)
        assert bool(qkv.pieces) == bool(out.pieces) == (rank < 2)


# -- the real model -------------------------------------------------------------------------------

REAL_TP4 = {
    "model.embed_tokens.weight": (62080, 4096),
    "lm_head.weight": (62080, 4096),
    "model.layers.0.linear_attn.in_proj_qkvz.weight": (5120, 4096),
    "model.layers.0.linear_attn.in_proj_ba.weight": (32, 4096),
    "model.layers.0.linear_attn.conv1d.weight": (3072, 1, 4),
    "model.layers.0.linear_attn.A_log": (16,),
    "model.layers.0.linear_attn.out_proj.weight": (4096, 2048),
    "model.layers.3.qkv_proj.weight": (4608, 4096),
    "model.layers.3.o_proj.weight": (4096, 2048),
    "model.layers.59.mlp.shared_expert.gate_up_proj.weight": (512, 4096),
    "model.layers.59.mlp.shared_expert.down_proj.weight": (4096, 256),
    "model.layers.59.mlp.gate.weight": (512, 4096),
    "model.layers.59.mlp.experts.w13_weight": (512, 512, 2048),
    "model.layers.59.mlp.experts.w13_weight_scale": (512, 512, 128),
    "model.layers.59.mlp.experts.w2_weight": (512, 4096, 128),
    "model.layers.59.mlp.experts.w2_weight_scale": (512, 4096, 8),
}
REAL_EP4 = {
    "model.layers.0.mlp.experts.w13_weight": (128, 2048, 2048),
    "model.layers.0.mlp.experts.w13_weight_scale": (128, 2048, 128),
    "model.layers.0.mlp.experts.w2_weight": (128, 4096, 512),
    "model.layers.0.mlp.experts.w2_weight_scale": (128, 4096, 32),
}
REAL_DRAFT = {
    "fc.weight": (4096, 8192),
    "model.layers.0.mlp.experts.w13_weight": (512, 512, 4096),
    "model.layers.0.mlp.experts.w2_weight": (512, 4096, 256),
}


@pytest.fixture(scope="module")
def real_sources():
    return sources_of(REAL_TEXT)


def test_the_real_model_on_four_ranks(real_sources):
    """Names, shapes, sizes and file offsets of all ranks of the 397B model, from headers alone."""
    assert len(real_sources) == 186_791
    plans = [make(real_sources, tp=4, rank=rank, text=REAL_TEXT) for rank in range(4)]
    drafts = [make(real_sources, tp=4, rank=r, part="draft", text=REAL_TEXT) for r in range(4)]
    for each in plans:
        found = {p.name: p.shape for p in each.parameters}
        assert {name: found[name] for name in REAL_TP4} == REAL_TP4
        assert len(found) == 978
        # 60 layers of 816 MiB experts and 5.12 GB of the rest: 56.5 GB, which is 52.6 GiB.
        experts = sum(p.size for p in each.parameters if p.num_local_experts)
        assert experts == 60 * 816 * 2**20
        assert sum(p.size for p in each.parameters) == pytest.approx(56.46 * GB, rel=1e-4)
    for each in drafts:
        found = {p.name: p.shape for p in each.parameters}
        assert {name: found[name] for name in REAL_DRAFT} == REAL_DRAFT
        assert sum(p.size for p in each.parameters) == pytest.approx(3.353 * GB, rel=1e-3)
    assert_files_are_dense(plans)
    assert_files_are_dense(drafts)
    assert not plan.unused(real_sources, [plans[0], drafts[0]], text_only=True)


def test_the_work_of_a_plan_grows_as_the_number_of_tensors():
    def calls(num_experts):
        text = {**REAL_TEXT, "num_hidden_layers": 4, "num_experts": num_experts}
        sources = sources_of(text)
        count = 0

        def counting(frame, event, argument):
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(counting)
        try:
            found = make(sources, tp=4, rank=1, text=text)
            unused = plan.unused(sources, [found], text_only=True)
        finally:
            sys.setprofile(None)
        assert all(name.startswith("mtp.") for name in unused)
        return count / len(sources)

    few, many = calls(32), calls(128)
    assert few > 1
    assert many < 1.1 * few


def assert_files_are_dense(plans):
    for spec in shard._split(plans[0].part, steps.groups(plans, PLAIN), shard.DEFAULT_PART_BYTES):
        head = safetensors_header.render((t.name, t.dtype, t.shape) for t in spec.tensors)
        size = len(head) + sum(t.size for t in spec.tensors)
        parsed = safetensors_header.parse(head[8:], size, Path("part"))
        assert parsed.data_start % 4096 == 0
        assert size - parsed.data_start <= shard.DEFAULT_PART_BYTES


def test_the_real_model_with_whole_experts(real_sources):
    found = {p.name: p for p in make(real_sources, tp=4, ep=4, rank=2, text=REAL_TEXT).parameters}
    assert {name: found[name].shape for name in REAL_EP4} == REAL_EP4
    first = found["model.layers.0.mlp.experts.w13_weight"].pieces[0]
    assert first.source == "model.language_model.layers.0.mlp.experts.256.gate_proj.weight"


# -- refusals -------------------------------------------------------------------------------------

LAYER_0 = "model.language_model.layers.0."


def test_a_missing_tensor_is_named():
    sources = sources_of()
    del sources[f"{LAYER_0}linear_attn.A_log"]
    with pytest.raises(UserError, match=r"no tensor .*layers.0.linear_attn.A_log.*\[8\].*random"):
        make(sources)


def test_a_missing_expert_is_named_on_every_rank():
    sources = sources_of()
    del sources[f"{LAYER_0}mlp.experts.7.up_proj.weight_scale"]
    for rank in range(2):
        with pytest.raises(UserError, match="experts.7.up_proj.weight_scale"):
            make(sources, tp=2, ep=2, rank=rank)


def test_a_wrong_shape_is_named_with_both():
    sources = sources_of()
    sources["lm_head.weight"] = Source("BF16", (199, 128))
    with pytest.raises(UserError, match=r"lm_head.weight: found shape \[199, 128\].*\[200, 128\]"):
        make(sources)


def test_a_quantised_tensor_where_the_model_has_none_is_named():
    sources = sources_of()
    name = f"{LAYER_0}mlp.shared_expert.gate_proj.weight"
    sources[name] = Source("U8", sources[name].shape)
    with pytest.raises(UserError, match="gate_proj.weight: found type U8.*BF16 or F16 or F32"):
        make(sources)


def test_parts_of_one_parameter_must_agree_in_type():
    sources = sources_of()
    name = f"{LAYER_0}linear_attn.in_proj_z.weight"
    sources[name] = Source("F32", sources[name].shape)
    with pytest.raises(UserError, match="in_proj_qkvz.weight: found sources of several types"):
        make(sources)


def test_a_doubled_prefix_is_recognised():
    sources = {
        name.replace("language_model.", "language_model.language_model."): source
        for name, source in sources_of().items()
    }
    with pytest.raises(UserError, match="0 usable prefixes.*nested the model once too often"):
        make(sources)


def test_a_text_only_export_may_drop_the_inner_prefix():
    sources = {
        name.replace("model.language_model.", "model."): source
        for name, source in sources_of().items()
    }
    assert len(make(sources).parameters) == len(make(sources_of()).parameters)


def test_a_tensor_that_nothing_uses_is_reported_unless_ignored():
    sources = sources_of()
    sources["model.language_model.layers.0.mlp.experts.0.gate_proj.bias"] = Source("BF16", (64,))
    sources["model.language_model.rotary_emb.inv_freq"] = Source("F32", (4,))
    sources["empty"] = Source("U8", (0, 32))
    plans = [make(sources), make(sources, part="draft")]
    (left,) = plan.unused(sources, plans, text_only=True)
    assert left.endswith("gate_proj.bias")
    assert plan.unused(sources, plans, text_only=True, ignore=["*.bias"]) == []


def test_the_draft_is_not_counted_as_unused_when_it_is_not_asked_for():
    sources = sources_of()
    assert plan.unused(sources, [make(sources)], text_only=True) == []
    assert plan.unused(sources, [make(sources, part="draft")], text_only=True) == []


def test_experts_stored_two_ways_are_refused():
    sources = {**sources_of(), **sources_of(experts="stacked")}
    with pytest.raises(UserError, match="experts stored one way"):
        make(sources)


@pytest.mark.parametrize(
    ("tp", "ep", "words"),
    [
        (3, 1, "num_attention_heads = 4 over 3"),
        (8, 1, "linear_num_key_heads = 4 over 8"),
        (16, 16, "num_experts = 8 over 16"),
        (4, 3, "EP a divisor of TP"),
        (0, 1, "positive"),
    ],
)
def test_ranks_that_do_not_divide_are_refused_with_the_sizes(tp, ep, words):
    with pytest.raises(UserError, match=words):
        make(sources_of(), tp=tp, ep=ep)


def test_an_mxfp4_block_is_never_cut():
    text = {**SMALL_TEXT, "moe_intermediate_size": 64}
    with pytest.raises(UserError, match="16 of 64 expert columns a rank.*multiple of 32"):
        make(sources_of(text), tp=4, text=text)


def test_steps_read_no_source_row_twice():
    sources = sources_of(experts="mxfp4", mtp_experts="stacked")
    for part in ("target", "draft"):
        plans = [make(sources, tp=4, ep=2, rank=rank, part=part) for rank in range(4)]
        seen = Counter()
        for group in steps.groups(plans, PLAIN):
            if group.is_expert_stack:
                reads = [chunk for step in steps.expert_steps(group) for chunk in step.reads]
            else:
                reads = list(steps.chunks(group, sources, 4096))
            for chunk in reads:
                rows = chunk.rows
                seen.update((rows.source, row) for row in range(rows.start, rows.stop))
        assert set(seen.values()) == {1}
        mine = {n: s for n, s in sources.items() if n.startswith("mtp.") == (part == "draft")}
        assert len(seen) == sum(plan.num_rows(source.shape) for source in mine.values())


def test_chunks_keep_to_their_bound():
    sources = sources_of()
    plans = [make(sources, tp=2, rank=rank) for rank in range(2)]
    for group in steps.groups(plans, PLAIN):
        if not group.is_expert_stack:
            for chunk in steps.chunks(group, sources, 1000):
                source = sources[chunk.rows.source]
                row = prod(source.shape[1:] or (1,)) * checkpoints.BYTES[source.dtype]
                assert chunk.rows.stop - chunk.rows.start <= max(1, 1000 // row)
