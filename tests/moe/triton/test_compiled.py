"""What Triton makes of the kernels for gfx942, and that other devices' compilers take them."""

import re

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sglang_mi300a.moe import triton_kernels, triton_rung
from sglang_mi300a.moe.rungs import ExpertSizes

GFX942 = GPUTarget("hip", "gfx942", 64)
SERVED = ExpertSizes(num_experts=512, hidden=4096, inner=256, top_k=10, layout="stream/1")
LDS_BYTES = 65536

POINTERS = {
    "topk_ids": "*i32",
    "num_tokens": "i32",
    "hidden_states": "*bf16",
    "operands": "*bf16",
    "inner": "*bf16",
    "rows": "*bf16",
    "topk_weights": "*fp32",
    "out": "*bf16",
}
"""Types of what a launch is given; int32 pointers where not said."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(launch, target):
    """Return what Triton makes of a launch, without a device."""
    kernel = getattr(triton_kernels, launch.kernel)
    given, constants = kernel.arg_names[: len(launch.arguments)], dict(launch.constants)
    types = [POINTERS.get(name, "*i32") for name in launch.arguments]
    signature = dict(zip(given, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    assert set(signature) == set(kernel.arg_names)
    aligned = {
        (place,): [["tt.divisibility", 16]] for place, one in enumerate(types) if one[0] == "*"
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=target, options=dict(launch.options))


def launches(sizes, num_tokens=16, *, on_amd, keeps_subnormals=True):
    shape = triton_rung.launch_shape(num_tokens, sizes, on_amd=on_amd)
    found = triton_rung.launches(sizes, num_tokens, shape, keeps_subnormals=keeps_subnormals)
    return {one.kernel: one for one in found}


def note(assembly, name):
    """Return a number of the kernel's metadata."""
    (value,) = re.findall(rf"^\s*\.{name}:\s*(\d+)$", assembly, re.M)
    return int(value)


@pytest.mark.parametrize("kernel", ["count_pairs", "place_pairs", "gate_up", "down", "sum_slots"])
def test_a_kernel_fits_gfx942(kernel):
    result = compiled(launches(SERVED, on_amd=True)[kernel], GFX942)
    assembly = result.asm["amdgcn"]
    for spilled in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
        assert note(assembly, spilled) == 0
    assert note(assembly, "vgpr_count") <= 128
    assert result.metadata.shared <= LDS_BYTES
    assert "atomic" not in assembly


@pytest.mark.parametrize("kernel", ["gate_up", "down"])
def test_products_are_matrix_instructions_and_weights_come_sixteen_bytes_a_lane(kernel):
    launch = launches(SERVED, on_amd=True)[kernel]
    assembly = compiled(launch, GFX942).asm["amdgcn"]
    # A step is 128 rows by 16 tokens by 128 values; four waves; 16 x 16 x 16 an instruction. The
    # last step stands behind the loop.
    a_step = 128 * 16 * 128 // (4 * 16**3)
    assert assembly.count("v_mfma_f32_16x16x16_bf16") == 2 * a_step
    assert re.search(r"(buffer|global)_load_dwordx4", assembly)
    assert not re.search(r"v_(fma|mad)\w*_(bf16|f16)", assembly)


@pytest.mark.parametrize("weights", ["mxfp4", "bf16"])
@pytest.mark.parametrize("layout", ["stream/1", "plain/1"])
def test_every_stored_form_compiles_for_gfx942_without_spills(layout, weights):
    if (layout, weights) == ("stream/1", "mxfp4"):
        sizes = ExpertSizes(128, 4096, 1024, 10, layout, weights)
    else:
        sizes = ExpertSizes(512, 4096, 256, 10, layout, weights)
    for kernel in ("gate_up", "down"):
        assembly = compiled(launches(sizes, on_amd=True)[kernel], GFX942).asm["amdgcn"]
        assert note(assembly, "vgpr_spill_count") == 0
        assert "v_mfma_f32_16x16x16_bf16" in assembly


def test_a_matrix_unit_that_drops_subnormals_gets_none():
    """gfx90a is such a one: weights are multiplied before they become operands."""
    launch = launches(SERVED, on_amd=True, keeps_subnormals=False)["gate_up"]
    assert launch.constants["LIFT"]
    assert launch.constants["FACTOR"] == 1.0
    assembly = compiled(launch, GPUTarget("hip", "gfx90a", 64)).asm["amdgcn"]
    assert "v_mfma_f32_16x16x16bf16_1k" in assembly
    assert note(assembly, "vgpr_spill_count") == 0


@pytest.mark.parametrize("kernel", ["gate_up", "down"])
@pytest.mark.parametrize("num_tokens", [1, 337])
def test_an_nvidia_gpu_gets_bf16_matrix_instructions(kernel, num_tokens):
    launch = launches(SERVED, num_tokens, on_amd=False)[kernel]
    assembly = compiled(launch, GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in assembly
    assert "cp.async" in assembly
    assert "atom." not in assembly
