"""The first rung through the launcher, on the stand-in runtime: decodes, graphs, refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import kernels, owners
from sglang_mi300a.launcher.failure import LauncherError
from sglang_mi300a.moe import hip_rung, launching, selftest
from sglang_mi300a.moe.hip_rung import HipRung
from sglang_mi300a.moe.kernels import signatures, workspace
from sglang_mi300a.moe.rungs import Experts, ExpertSizes
from tests.gfx942 import room
from tests.launcher import standin
from tests.moe.kernels import running

CPU = torch.device("cpu")
EXPERTS, INNER, TOP_K = 3, 128, 2
SIZES = ExpertSizes(EXPERTS, running.HIDDEN, INNER, TOP_K, "stream/1")


def experts(hip):
    """A layer of random weights on the runtime's memory."""
    weights = running.random_weights(EXPERTS, INNER)
    tensors = {
        f"{projection}_stream": hip.copy(
            torch.from_numpy(np.array(running.stream_of(weights, projection, "subnormals"))).view(
                EXPERTS, -1
            )
        )
        for projection in ("w13", "w2")
    }
    return weights, Experts("layers.0.mlp.experts", SIZES, tensors)


def batch_of(hip, num_tokens, seed=0):
    """Random tokens as the kernels' reference has them, and as tensors on the runtime's memory."""
    batch = running.random_batch(num_tokens, EXPERTS, TOP_K, "with padding", seed)
    hidden = torch.from_numpy(np.array(batch.hidden)).view(torch.bfloat16)
    ids, weights = torch.from_numpy(batch.ids), torch.from_numpy(batch.weights)
    return batch, (hip.copy(hidden), hip.copy(ids), hip.copy(weights))


def distance(out, weights, batch):
    return room.relative_l2(out.float().numpy(), running.expected(weights, batch))


@pytest.fixture
def rung():
    return HipRung(max_tokens=16)


@pytest.fixture
def layer(hip, rung):
    weights, loaded = experts(hip)
    return weights, rung.prepare(loaded)


def test_every_kernel_of_the_code_object_is_declared_and_fits():
    code = code_objects.load("moe")
    assert sorted(signatures.kernels()) == sorted(code.kernels)
    for name in signatures.kernels():
        assert len(signatures.signature(name).layout(code)) == len(code.kernel(name).arguments)


def test_the_rung_can_run_and_passes_the_self_test(hip, rung):
    assert rung.can_run(CPU, SIZES) is None
    with torch.device("meta"):  # a model is built with another default device
        test = selftest.run(rung, CPU, SIZES)
    assert test.passed, test.in_words()
    assert rung.facts(CPU) == {
        "decode": "subnormals",
        "code object": code_objects.load("moe").digest[:16],
    }


def test_a_layer_is_what_the_reference_says(hip, rung, layer):
    weights, prepared = layer
    batch, tensors = batch_of(hip, 5)
    assert distance(rung.apply(prepared, *tensors), weights, batch) < running.THREE_ROUNDINGS


def test_a_batch_longer_than_one_launch_is_run_in_parts(hip, rung, layer):
    weights, prepared = layer
    batch, tensors = batch_of(hip, 19)
    before = len(hip.launches)
    out = rung.apply(prepared, *tensors)
    assert len(hip.launches) - before == 2 * 4
    assert distance(out, weights, batch) < running.THREE_ROUNDINGS


def test_no_tokens_are_no_launch(hip, rung, layer):
    _, prepared = layer
    before = len(hip.launches)
    empty = torch.empty(0, running.HIDDEN, dtype=torch.bfloat16)
    ids, weights = torch.empty(0, TOP_K, dtype=torch.int32), torch.empty(0, TOP_K)
    assert rung.apply(prepared, empty, ids, weights).shape == (0, running.HIDDEN)
    assert len(hip.launches) == before


def test_a_matrix_unit_that_drops_subnormals_gets_the_other_decode(hip, rung, monkeypatch):
    original = hip_rung._is_exact
    monkeypatch.setattr(
        hip_rung, "_is_exact", lambda name, device: name == "bf8" and original(name, device)
    )
    weights, loaded = experts(hip)
    prepared = rung.prepare(loaded)
    assert prepared.weights == "bf8"
    assert [one.kernel for one in hip.launches][-2:] == ["moe_restripe_for_bf8"] * 2
    batch, tensors = batch_of(hip, 5)
    assert distance(rung.apply(prepared, *tensors), weights, batch) < running.THREE_ROUNDINGS


def test_a_device_on_which_no_decode_is_exact_is_refused(hip, rung, monkeypatch):
    monkeypatch.setattr(hip_rung, "_is_exact", lambda name, device: False)
    with pytest.raises(UserError, match="inexact weights by each decode"):
        rung.prepare(experts(hip)[1])
    assert "inexact weights" in selftest.run(rung, CPU, SIZES).in_words()


def test_a_recorded_layer_is_replayed_with_other_tokens(hip, rung):
    weights, loaded = experts(hip)
    prepared = rung.prepare(loaded)
    rung._workspaces[CPU] = hip.empty((rung.workspace_bytes(CPU),), torch.uint8)
    _, (hidden, ids, router) = batch_of(hip, 5)
    out = hip.empty((5, running.HIDDEN), torch.bfloat16)
    arguments = (prepared.w13_stream, prepared.w2_stream, None, None, None)
    rung.apply(prepared, hidden, ids, router)  # loads
    with hip.capture() as graph:
        launching.expert_layer(
            hidden,
            ids,
            router,
            *arguments,
            rung._workspaces[CPU],
            out,
            "subnormals",
            INNER,
            16,
            0,
            0,
        )
    assert owners.kept_bytes() == rung.workspace_bytes(CPU)
    for seed in (1, 2):
        batch, others = batch_of(hip, 5, seed)
        for target, source in zip((hidden, ids, router), others, strict=True):
            target.copy_(source)
        graph.replay()
        assert distance(out, weights, batch) < running.THREE_ROUNDINGS


def test_the_operator_needs_no_memory_to_be_traced(hip, rung, layer):
    _, prepared = layer
    before = len(hip.launches)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(tensor) for tensor in batch_of(hip, 5)[1]]
        out = rung.apply(prepared, *fakes)
    assert (out.shape, out.dtype) == ((5, running.HIDDEN), torch.bfloat16)
    assert len(hip.launches) == before


# -- bad input ----------------------------------------------------------------------------------


def call(hip, rung, prepared, function=launching.expert_layer, **change):
    """Call the operator, or its body, with one argument changed."""
    _, (hidden, ids, router) = batch_of(hip, 5)
    arguments = {
        "hidden": hidden,
        "topk_ids": ids,
        "topk_weights": router,
        "w13_stream": prepared.w13_stream,
        "w2_stream": prepared.w2_stream,
        "shared_w13_stream": None,
        "shared_w2_stream": None,
        "shared_gate": None,
        "workspace": rung._workspaces[CPU],
        "out": torch.empty_like(hidden),
        "weights": "subnormals",
        "inner": INNER,
        "token_tile": 16,
        "gate_up_groups": 0,
        "down_groups": 0,
    }
    arguments |= {name: edit(arguments[name]) for name, edit in change.items()}
    before = len(hip.launches)
    with pytest.raises(UserError) as refused:
        function(**arguments)
    assert len(hip.launches) == before
    return str(refused.value)


def misaligned(tensor):
    flat = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:]
    return flat.view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": misaligned}, "argument activations: found address"),
        ({"hidden": lambda x: torch.stack([x, x], 2)[:, :, 0]}, "activations: found strides"),
        ({"hidden": lambda x: x.float()}, "activations: found torch.float32"),
        ({"hidden": lambda x: x[:, :2048].contiguous()}, "hidden size 2048; the kernels take 4096"),
        ({"topk_ids": lambda x: x.long()}, "topk_ids: found torch.int64"),
        (
            {"topk_ids": lambda x: x[:4]},
            "argument num_tokens: found 5; supported: 4, as in the shape",
        ),
        ({"w13_stream": lambda x: x[:2]}, "w2_stream: found 835584 bytes; supported: 557056 for 2"),
        ({"w2_stream": lambda x: x[:2]}, "w2_stream: found"),
        ({"w13_stream": lambda x: x[:, :-64].contiguous()}, "w13_stream: found"),
        (
            {"inner": lambda _: 64},
            "no down kernel for subnormals weights, a tile of 16 tokens and 64",
        ),
        ({"inner": lambda _: 256}, "w13_stream: found"),
        ({"token_tile": lambda _: 64}, "tile of 64 tokens"),
        ({"weights": lambda _: "int4"}, "weights: found int4; supported: subnormals, bf8, bf16"),
        ({"workspace": lambda x: x[:256]}, "workspace: found 256 bytes; supported: "),
    ],
)
def test_what_does_not_fit_is_refused_by_name_before_a_launch(hip, rung, layer, change, message):
    _, prepared = layer
    assert message in call(hip, rung, prepared, **change)


def test_weights_on_another_device_are_refused(hip, rung, layer):
    _, prepared = layer
    elsewhere = torch.empty(prepared.w13_stream.shape, dtype=torch.uint8, device="meta")
    said = call(hip, rung, prepared, launching._run, w13_stream=lambda _: elsewhere)
    assert "expert layer, w13_stream: found a tensor on meta; supported: on cpu" in said


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layout": "plain/1"}, "weights in layout plain/1, the kernels read stream/1"),
        ({"hidden": 2048}, "hidden size 2048; the kernels take 4096"),
        ({"inner": 192}, "384 rows; the kernel takes 32 times a power of two"),
        ({"inner": 64}, "64 neurons"),
        ({"num_experts": 1025}, "1025 local experts"),
        ({"activations": torch.float32}, "activations of torch.float32"),
        ({"weights": "bf16", "inner": 512, "num_experts": 512}, "4294967296 bytes of the gate_up"),
    ],
)
def test_sizes_without_a_kernel_are_a_reason_by_number(hip, rung, change, reason):
    assert reason in rung.can_run(CPU, replace(SIZES, **change))


def test_without_a_hip_runtime_the_reason_names_the_files(rung, monkeypatch):
    def no_runtime(code, device):
        raise UserError("HIP runtime", found="libamdhip64.so.7: no such file", allowed="", do="")

    monkeypatch.setattr(kernels, "load", no_runtime)
    assert rung.can_run(CPU, SIZES) == "HIP runtime: libamdhip64.so.7: no such file"


def test_a_code_object_for_another_device_is_a_reason(hip, rung):
    hip.fail_next("hipModuleLoadData", standin.NO_BINARY_FOR_GPU)
    assert "hipErrorNoBinaryForGpu" in rung.can_run(CPU, SIZES)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda image: image[: len(image) // 2], "SHA-256"),
        (None, "no such file"),
    ],
    ids=["truncated", "absent"],
)
def test_a_damaged_or_missing_code_object_is_a_reason(rung, tmp_path, monkeypatch, damage, found):
    source = code_objects.compiled_folder("code_objects")
    for path in source.glob("moe.*"):
        image = path.read_bytes()
        if path.suffix == ".json" or damage is not None:
            (tmp_path / path.name).write_bytes(damage(image) if path.suffix == ".co" else image)
    monkeypatch.setattr(code_objects, "compiled_folder", lambda name: tmp_path)
    assert found.lower() in rung.can_run(CPU, SIZES).lower()


def test_a_package_without_kernels_is_a_reason_that_names_the_wheel(rung, tmp_path, monkeypatch):
    monkeypatch.setattr(code_objects, "compiled_folder", lambda name: tmp_path)
    monkeypatch.setattr(code_objects, "source_tree", lambda: None)
    assert "install a wheel with kernels (its version has no +nokernels)" in rung.can_run(
        CPU, SIZES
    )


def test_an_error_code_of_hip_leaves_as_an_exception_and_the_self_test_drops_the_rung(hip, rung):
    assert rung.can_run(CPU, SIZES) is None
    hip.fail_next("hipModuleLaunchKernel", standin.LAUNCH_FAILURE)
    test = selftest.run(rung, CPU, SIZES)
    assert not test.passed
    assert "HIP error 719" in test.in_words()


def test_an_error_code_in_a_served_layer_is_never_a_result(hip, rung, layer):
    _, prepared = layer
    _, tensors = batch_of(hip, 5)
    hip.fail_next("hipModuleLaunchKernel", standin.LAUNCH_FAILURE)
    with pytest.raises(LauncherError, match="kernel moe_sort_pairs"):
        rung.apply(prepared, *tensors)


def test_the_workspace_is_a_formula_of_the_largest_batch(hip, rung, layer):
    sizes = {"top_k": TOP_K, "num_experts": EXPERTS, "hidden": running.HIDDEN, "inner": INNER}
    needed = [workspace.reserved_bytes(max_tokens=n, **sizes) for n in range(1, 17)]
    assert needed == sorted(needed)
    assert rung.workspace_bytes(CPU) == needed[-1]
    for weights in ("subnormals", "bf8", "bf16"):
        for tile in (16, 32):
            of_batch = running.layer_of(layer[0], batch_of(hip, 16)[0], weights, tile)
            for shared in (False, True):
                batch = replace(of_batch, shared_expert=shared)
                assert workspace.workspace_bytes(batch) <= needed[-1]


def test_the_workspace_of_the_served_model_is_known_before_anything_starts():
    served = {"top_k": 10, "num_experts": 512, "hidden": 4096, "inner": 256}
    rows = 8192 * 11 * 4096 * 2  # ten routed experts and the shared one
    needed = workspace.reserved_bytes(max_tokens=8192, **served)
    assert rows < needed < rows * 1.2
    assert workspace.launch_tokens(8192, 10) == 8192
    assert workspace.launch_tokens(-1, 10) == 8192
    assert workspace.launch_tokens(16384, 22) == (2**17 - 1) // 22
