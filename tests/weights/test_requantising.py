"""The draft's experts can be made MXFP4 while sharding; nothing else changes."""

import numpy as np
import pytest

from sglang_mi300a import artifact_manifest, layout, mxfp4
from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import artifact, checkpoint, requantising
from sglang_mi300a.weights.plan import Placement
from tests.weights import checkpoints
from tests.weights.checkpoints import SMALL_TEXT
from tests.weights.conftest import make_checkpoint, shard
from tests.weights.test_filling import Shuffled, loaded_from_artifact, loaded_from_checkpoint

HIDDEN, INTER = SMALL_TEXT["hidden_size"], SMALL_TEXT["moe_intermediate_size"]
EXPERTS = "model.layers.0.mlp.experts."


def finite(monkeypatch, change=lambda name, values: None):
    """Let checkpoints hold finite floats where they hold any bytes otherwise."""
    real = checkpoints.values

    def values(name, dtype, shape, seed):
        content = real(name, dtype, shape, seed)
        if dtype in ("BF16", "F16", "F32"):
            content[:, -1] &= 0xBE  # an exponent bit that NaN and infinity have
            change(name, content)
        return content

    monkeypatch.setattr(checkpoints, "values", values)


def draft_weights(model):
    """Return each draft expert's gate, up and down projection as float32, by expert."""
    found = checkpoint.read(model)

    def values(name):
        t = found.tensors[name]
        raw = np.fromfile(t.file, np.uint16, count=int(np.prod(t.shape)), offset=t.offset)
        return (raw.astype(np.uint32) << 16).view(np.float32).reshape(t.shape)

    at = "mtp.layers.0.mlp.experts."
    if f"{at}gate_up_proj" in found.tensors:
        gate_up, down = values(f"{at}gate_up_proj"), values(f"{at}down_proj")
        return [(g[:INTER], g[INTER:], d) for g, d in zip(gate_up, down, strict=True)]
    names = ("gate_proj", "up_proj", "down_proj")
    return [
        tuple(values(f"{at}{e}.{name}.weight") for name in names)
        for e in range(SMALL_TEXT["num_experts"])
    ]


@pytest.mark.parametrize("stored", ["bf16", "stacked"])
@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_a_rank_gets_its_share_of_the_quantised_expert(tmp_path, monkeypatch, stored, tp, ep):
    """Quantising what a rank takes is taking from what was quantised whole."""
    finite(monkeypatch)
    model = make_checkpoint(tmp_path / "m", mtp_experts=stored)
    shard(model, tmp_path / "out", tp=tp, ep=ep, draft_experts="mxfp4")
    experts = [[mxfp4.quantise(w) for w in each] for each in draft_weights(model)]
    share = INTER * ep // tp
    for rank in range(tp):
        content, _ = loaded_from_artifact(tmp_path / "out", rank, "draft")
        at = Placement(tp, ep, rank)
        local = [e for e in range(len(experts)) if e // (len(experts) // ep) == at.ep_rank]
        rows = slice(at.moe_tp_rank * share, (at.moe_tp_rank + 1) * share)
        for kind, packed in (("weight", 2), ("weight_scale", 32)):
            index = 0 if kind == "weight" else 1
            columns = slice(rows.start // packed, rows.stop // packed)
            w13 = [
                np.concatenate([experts[e][0][index][rows], experts[e][1][index][rows]])
                for e in local
            ]
            w2 = [experts[e][2][index][:, columns] for e in local]
            for name, wanted in (("w13", w13), ("w2", w2)):
                found = content[f"{EXPERTS}{name}_{kind}"]
                assert np.array_equal(found, np.concatenate(wanted).reshape(-1)), (rank, name)


def test_only_the_drafts_experts_change_and_the_manifest_says_so(tmp_path, monkeypatch):
    finite(monkeypatch)
    model = make_checkpoint(tmp_path / "m")
    shard(model, tmp_path / "plain", tp=2)
    shard(model, tmp_path / "small", tp=2, draft_experts="mxfp4")
    plain, small = (artifact_manifest.read(tmp_path / name) for name in ("plain", "small"))
    assert (plain.draft_requantised, small.draft_requantised) == (False, True)

    def others(manifest):
        return {
            (t.rank, t.part, t.name): (t.dtype, t.shape, t.xxh3_128)
            for t in manifest.tensors
            if not (t.part == "draft" and EXPERTS in t.name)
        }

    assert others(plain) == others(small)
    assert plain.source_data_xxh3_128 == small.source_data_xxh3_128
    assert plain.copied == small.copied
    size = {
        name: sum(t.size for t in manifest.tensors if t.part == "draft" and EXPERTS in t.name)
        for name, manifest in (("plain", plain), ("small", small))
    }
    assert size["small"] * 32 == size["plain"] * (16 + 1) // 2  # 17 bytes for 32 values of two
    assert artifact.verify(artifact.read(tmp_path / "small")).problems == ()


def test_a_draft_that_is_mxfp4_already_is_taken_as_it_is(tmp_path):
    """Precision is the stored type's, whatever a tensor is called and whatever was asked for."""
    model = make_checkpoint(tmp_path / "m", mtp_experts="mxfp4")
    shard(model, tmp_path / "asked", tp=2, draft_experts="mxfp4")
    shard(model, tmp_path / "plain", tp=2)
    asked, plain = (artifact_manifest.read(tmp_path / name) for name in ("asked", "plain"))
    assert asked == plain
    assert not asked.draft_requantised
    experts = {t.name.removeprefix(EXPERTS): t.dtype for t in plain.of_rank(0, "draft")}
    assert experts["w13_weight"] == experts["w13_weight_scale"] == experts["w2_weight"] == "U8"


def test_a_kernels_layout_is_applied_to_what_was_quantised(tmp_path, monkeypatch):
    finite(monkeypatch)
    monkeypatch.setitem(layout._LAYOUTS, Shuffled.id, Shuffled)
    model = make_checkpoint(tmp_path / "m")
    shard(model, tmp_path / "plain", tp=1, draft_experts="mxfp4")
    shard(model, tmp_path / "out", tp=1, draft_experts="mxfp4", layout=Shuffled.id)
    plain, _ = loaded_from_artifact(tmp_path / "plain", 0, "draft")
    found, _ = loaded_from_artifact(tmp_path / "out", 0, "draft")
    name = f"{EXPERTS}w2_"
    stream = found[f"{name}stream"].reshape(8, -1)
    size = plain[f"{name}weight"].size // 8
    weights = stream[:, :size].reshape(8, HIDDEN, -1)[:, ::-1].reshape(-1)
    assert np.array_equal(weights, plain[f"{name}weight"])


def test_the_loader_reads_a_draft_as_the_checkpoint_stores_it(tmp_path, monkeypatch):
    """Only shard-weights re-quantises: straight from the checkpoint floats stay floats."""
    finite(monkeypatch)
    model = make_checkpoint(tmp_path / "m")
    content, _ = loaded_from_checkpoint(model, Placement(1, 1, 0), "draft")
    assert f"{EXPERTS}w13_weight_scale" not in content


@pytest.mark.parametrize("options", [{"draft": False}, {}])
def test_a_draft_that_is_not_made_cannot_be_quantised(tmp_path, options):
    model = make_checkpoint(tmp_path / "m", mtp=bool(options))
    with pytest.raises(UserError, match="--draft-experts mxfp4: found no draft to make"):
        shard(model, tmp_path / "out", tp=1, draft_experts="mxfp4", **options)
    assert not (tmp_path / "out").exists()


def test_a_weight_that_is_no_number_is_refused(tmp_path, monkeypatch):
    def spoil(name, content):
        if name == "mtp.layers.0.mlp.experts.3.up_proj.weight":
            content[5] = (0xC0, 0x7F)

    finite(monkeypatch, spoil)
    model = make_checkpoint(tmp_path / "m")
    with pytest.raises(UserError, match="draft experts, w13_weight: found .*not finite"):
        shard(model, tmp_path / "out", tp=1, draft_experts="mxfp4")
    assert not artifact_manifest.is_artifact(tmp_path / "out")


def test_a_block_of_32_is_never_cut(tmp_path, monkeypatch):
    finite(monkeypatch)
    text = {**SMALL_TEXT, "moe_intermediate_size": 64}
    model = make_checkpoint(tmp_path / "m", text=text, experts="bf16")
    with pytest.raises(UserError, match="w2_weight: found 16 columns a rank.*multiple of 32"):
        shard(model, tmp_path / "out", tp=4, draft_experts="mxfp4")


@pytest.mark.parametrize(("dtype", "kind"), [("F16", np.float16), ("F32", np.float32)])
def test_other_floats_are_quantised_from_their_own_values(dtype, kind):
    values = np.random.default_rng(1).normal(size=(4, 64)).astype(kind)
    storage = requantising.AsMxfp4(layout.PLAIN, {"w2_weight": dtype})
    made = storage.apply({"w2_weight": values.view(np.uint8)})
    packed, scales = mxfp4.quantise(values)
    assert np.array_equal(made["w2_weight"], packed)
    assert np.array_equal(made["w2_weight_scale"], scales)
