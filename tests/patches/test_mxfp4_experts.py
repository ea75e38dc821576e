"""With its patch SGLang's own Triton runner takes Quark MXFP4 experts, in Triton's interpreter."""

import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from triton.backends.compiler import GPUTarget

from sglang_mi300a import mxfp4
from sglang_mi300a.patches import change
from tests.gfx942 import room
from tests.moe.kernels import running
from tests.moe.triton import interpreted
from tests.patches import mxfp4_experts, trees
from tests.patches.mxfp4_experts import Product

NAME = "mxfp4-decode-in-the-triton-experts"
KERNELS = "sglang/kernels/ops/moe/fused_moe_triton_kernels.py"
GFX942, SM90 = GPUTarget("hip", "gfx942", 64), GPUTarget("cuda", 90, 32)
HIDDEN, INNER, NUM_EXPERTS, TOP_K = 128, 64, 4, 2
FINITE = 252
"""The last scale byte under which every element is finite."""


def calls(pool, root):
    """Yield what calls a function in a pool's process, which imports the SGLang of a directory."""
    kernels = pool.submit(mxfp4_experts.use, str(root)).result()
    assert kernels == str(root / KERNELS)
    yield lambda function, *args, **kwargs: pool.submit(function, *args, **kwargs).result()
    pool.shutdown()


@pytest.fixture(scope="module")
def patched_root(tmp_path_factory):
    root = trees.importable(tmp_path_factory.mktemp("patched"))
    change.apply(trees.SERIES, trees.SERIES.named([NAME]), root)
    return root


@pytest.fixture(scope="module")
def stock():
    yield from calls(interpreted.start(), trees.INSTALLED)


@pytest.fixture(scope="module")
def patched(patched_root):
    yield from calls(interpreted.start(), patched_root)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("triton"))
    settings = {"TRITON_CACHE_DIR": cache, "TRITON_DISABLE_LINE_INFO": "1"}
    with mock.patch.dict(os.environ, settings):
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        pool.submit(os.getpid).result()
    yield from calls(pool, trees.INSTALLED)


def random_weights(num_experts=NUM_EXPERTS, hidden=HIDDEN, inner=INNER):
    """Return random experts: every code, scales of three octaves."""
    rng = np.random.default_rng([num_experts, hidden, inner])

    def matrix(rows, k):
        codes = rng.integers(0, 256, (num_experts, rows, k // 2), dtype=np.uint8)
        scale = rng.integers(116, 119, (num_experts, rows, k // mxfp4.BLOCK), dtype=np.uint8)
        return codes, scale

    return running.Weights(*matrix(2 * inner, hidden), *matrix(hidden, inner))


def random_batch(num_tokens, routing="uniform", num_experts=NUM_EXPERTS, hidden=HIDDEN):
    batch = running.random_batch(num_tokens, num_experts, TOP_K, routing)
    return replace(batch, hidden=batch.hidden[:, :hidden])


# -- stock ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_stock_cannot_load_such_experts_without_aiter(backend, stock):
    with pytest.raises(NameError, match="'e8m0_shuffle' is not defined"):
        stock(mxfp4_experts.layer, random_weights(), random_batch(1), backend)


def test_stock_takes_the_codes_for_int4(stock):
    weights, batch = random_weights(), random_batch(3)
    one = Product(batch.hidden, weights.w13, weights.w13_scale, batch.ids)
    assert room.relative_l2(room.from_bf16(stock(mxfp4_experts.product, one)), rows_of(one)) > 0.5


RUNNERS = [
    # FP4 matrix cores, AITER asked for, --moe-runner-backend; runner of stock, with the patch
    (True, True, "auto", "aiter", "aiter"),
    (True, False, "auto", "aiter", "aiter"),
    (True, True, "triton", None, None),
    (False, True, "auto", "aiter", "aiter"),
    (False, True, "aiter", "aiter", "aiter"),
    (False, False, "auto", "aiter", "triton"),
    (False, True, "triton", None, "triton"),
    (False, False, "triton", None, "triton"),
]


@pytest.mark.parametrize(("fp4_cores", "use_aiter", "backend", "before", "after"), RUNNERS)
def test_a_runner_changes_only_without_fp4_cores_and_away_from_aiter(
    fp4_cores, use_aiter, backend, before, after, stock, patched
):
    of = {"fp4_cores": fp4_cores, "use_aiter": use_aiter, "backend": backend}
    assert stock(mxfp4_experts.runner_of, **of) == before
    assert patched(mxfp4_experts.runner_of, **of) == after


# -- decode ---------------------------------------------------------------------------------------


def rows_of(one):
    """Return the float32 rows of a product with MXFP4 weights."""
    dense = mxfp4.dequantise(one.weight, one.scale)
    return np.einsum("mk,msrk->msr", room.from_bf16(one.hidden), dense[one.ids])


def decoded(patched, codes, scales):
    """Return the bf16 bits that the kernel multiplies with, one row of 32 codes a scale."""
    weight = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    unit = room.to_bf16(np.eye(mxfp4.BLOCK, dtype=np.float32))
    ids = np.zeros((mxfp4.BLOCK, 1), np.int32)
    one = Product(unit, weight[None], np.array(scales, np.uint8)[None, :, None], ids)
    return patched(mxfp4_experts.product, one)[:, 0].T, mxfp4.dequantise(weight, one.scale[0])


@pytest.mark.parametrize("shift", [0, 1])
def test_every_code_under_every_scale_is_exact_in_either_half_of_a_byte(shift, patched):
    scales = np.arange(FINITE + 1)
    codes = np.tile((np.arange(mxfp4.BLOCK) + shift) % 16, (len(scales), 1))
    got, want = decoded(patched, codes, scales)
    # A sum with the zeros of the other elements has no minus zero.
    assert np.array_equal(got, room.to_bf16(want + 0.0))


def test_the_largest_scale_is_exact_as_far_as_values_are_finite(patched):
    codes = np.tile(np.r_[0:4, 8:12], (2, 4))
    got, want = decoded(patched, codes, [253, 254])
    assert np.isfinite(want).all()
    assert np.array_equal(got, room.to_bf16(want + 0.0))


def test_a_scale_that_is_no_number_gives_none(patched):
    got, want = decoded(patched, np.tile(np.arange(16), (1, 2)), [mxfp4.SCALE_NAN])
    assert np.isnan(want).all()
    assert np.isnan(room.from_bf16(got)).all()


# -- products and layers --------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.parametrize("num_tokens", [1, 21])
def test_both_products_are_as_close_as_one_rounding_allows(num_tokens, tile, patched):
    weights, batch = random_weights(), random_batch(num_tokens)
    inner = room.to_bf16(room.from_bf16(batch.hidden[:, :INNER]) * 0.1)
    for one in (
        Product(batch.hidden, weights.w13, weights.w13_scale, batch.ids, tile=tile),
        Product(inner, weights.w2, weights.w2_scale, batch.ids, tile=tile),
    ):
        got = room.from_bf16(patched(mxfp4_experts.product, one))
        assert room.relative_l2(got, rows_of(one)) < running.ONE_ROUNDING


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "hidden", "inner"),
    [(1, 4, 128, 64), (7, 4, 256, 128), (33, 8, 128, 64)],
)
def test_a_layer_agrees_with_the_reference(num_tokens, num_experts, hidden, inner, patched):
    weights = random_weights(num_experts, hidden, inner)
    batch = random_batch(num_tokens, "uniform", num_experts, hidden)
    got = room.from_bf16(patched(mxfp4_experts.layer, weights, batch))
    assert room.relative_l2(got, running.expected(weights, batch)) < 5e-3


def test_experts_of_another_rank_contribute_nothing(patched):
    weights, batch = random_weights(), random_batch(6, "with padding")
    assert (batch.ids < 0).any()
    got = room.from_bf16(patched(mxfp4_experts.layer, weights, batch, "triton"))
    assert room.relative_l2(got, running.expected(weights, batch)) < 5e-3


@pytest.mark.parametrize("name", ["w13", "w13_scale", "w2", "w2_scale"])
def test_a_code_and_a_scale_show_in_the_tokens_of_their_expert(name, patched):
    weights, batch = random_weights(), random_batch(5)
    changed = getattr(weights, name).copy()
    changed[batch.ids[1, 0], 5, 1] ^= 0xF0 if "scale" not in name else 0x03
    spoilt = replace(weights, **{name: changed})
    clean = patched(mxfp4_experts.layer, weights, batch)
    got = patched(mxfp4_experts.layer, spoilt, batch)
    differs = [not np.array_equal(*rows) for rows in zip(got, clean, strict=True)]
    assert differs == (batch.ids == batch.ids[1, 0]).any(axis=1).tolist()
    assert room.relative_l2(room.from_bf16(got), running.expected(spoilt, batch)) < 5e-3


# -- what is not MXFP4 ----------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "has_zero"), [(4, False), (4, True), (8, False), (8, True)])
def test_int4_and_int8_give_the_same_bits_with_and_without_the_patch(
    bits, has_zero, stock, patched
):
    rng = np.random.default_rng([bits, has_zero])
    batch = random_batch(9, "with padding")
    rows, groups = 96, 2
    scale = rng.uniform(0.01, 0.1, (NUM_EXPERTS, rows, groups)).astype(np.float32)
    one = Product(
        batch.hidden,
        rng.integers(0, 256, (NUM_EXPERTS, rows, HIDDEN * bits // 8), dtype=np.uint8),
        room.to_bf16(scale),
        batch.ids,
        rng.integers(0, 256, (NUM_EXPERTS, rows * bits // 8, groups), dtype=np.uint8)
        if has_zero
        else None,
        bits,
    )
    got = patched(mxfp4_experts.product, one)
    assert np.isfinite(room.from_bf16(got)).all()
    assert np.array_equal(got, stock(mxfp4_experts.product, one))


# -- compiled -------------------------------------------------------------------------------------


def test_the_kernel_compiles_for_gfx942_without_spills(compiler, patched_root):
    assembly = compiler(mxfp4_experts.compiled, str(patched_root / KERNELS), GFX942)
    for spilled in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
        assert re.findall(rf"\.{spilled}:\s*(\d+)$", assembly, re.M) == ["0"]
    assert "v_mfma_f32_16x16x16_bf16" in assembly


def test_an_nvidia_gpu_decodes_with_subnormals_kept(compiler, patched_root):
    assembly = compiler(mxfp4_experts.compiled, str(patched_root / KERNELS), SM90)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in assembly
    assert "mul.f32" in assembly
    assert ".ftz" not in assembly


@pytest.mark.parametrize("target", [GFX942, SM90], ids=["gfx942", "sm90"])
@pytest.mark.parametrize("bits", [4, 8])
def test_int4_and_int8_are_compiled_to_the_same_instructions(bits, target, compiler, patched_root):
    files = (trees.INSTALLED / KERNELS, patched_root / KERNELS)
    before, after = (
        compiler(mxfp4_experts.compiled, str(file), target, bits, "*bf16") for file in files
    )
    assert before == after
