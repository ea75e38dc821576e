"""Bytes arrive in parameters as torch itself would have copied them."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="parameters are torch's")

from sglang_mi300a import artifact_manifest  # noqa: E402
from sglang_mi300a.weights import artifact, filling  # noqa: E402
from sglang_mi300a.weights.loader_options import LoaderOptions  # noqa: E402
from sglang_mi300a.weights.parameter_sink import TORCH_DTYPES, ParameterSink  # noqa: E402
from sglang_mi300a.weights.reading import Ring  # noqa: E402
from sglang_mi300a.weights.steps import Stored  # noqa: E402

needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_device)]


def parameter(shape, dtype, device):
    return torch.nn.Parameter(torch.zeros(shape, dtype=dtype, device=device), requires_grad=False)


def random_bytes(size):
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stored", sorted(TORCH_DTYPES))
def test_bytes_of_the_same_type_are_kept_bit_for_bit(stored, device):
    target = parameter((3, 5, 7), TORCH_DTYPES[stored], device)
    sink = ParameterSink({"w": target}, {"w": Stored("w", stored, (3, 5, 7))})
    content = random_bytes(target.nbytes)
    item = target.element_size()
    for start, stop in ((0, 10 * item), (10 * item, 11 * item), (11 * item, len(content))):
        sink.write("w", start, content[start:stop])
    assert target.data.cpu().view(-1).view(torch.uint8).numpy().tobytes() == content.tobytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("stored", "held"), [("F32", torch.bfloat16), ("BF16", torch.float32), ("F16", torch.bfloat16)]
)
def test_another_float_type_is_converted_as_torch_converts(stored, held, device):
    target = parameter((100,), held, device)
    sink = ParameterSink({"w": target}, {"w": Stored("w", stored, (100,))})
    source = torch.randn(100, generator=torch.Generator().manual_seed(0)).to(TORCH_DTYPES[stored])
    sink.write("w", 0, source.view(torch.uint8).numpy())
    assert torch.equal(target.data.cpu(), source.to(held))


def test_bytes_may_start_anywhere_in_a_buffer():
    target = parameter((8,), torch.float32, "cpu")
    sink = ParameterSink({"w": target}, {"w": Stored("w", "F32", (8,))})
    buffer = np.zeros(64, dtype=np.uint8)
    content = np.arange(8, dtype=np.float32)
    for shift in range(4):
        buffer[shift : shift + 32] = content.view(np.uint8)
        sink.write("w", 0, buffer[shift : shift + 32])
        assert target.data.tolist() == content.tolist()


@needs_device
def test_a_new_thread_works_on_the_parameters_device():
    last = torch.cuda.device_count() - 1
    target = parameter((1000,), torch.uint8, f"cuda:{last}")
    sink = ParameterSink({"w": target}, {"w": Stored("w", "U8", (1000,))})
    seen = []

    def work():
        sink.start_thread()
        seen.append(torch.cuda.current_device())
        sink.write("w", 0, random_bytes(1000))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [last]
    assert target.data.cpu().numpy().tobytes() == random_bytes(1000).tobytes()


def ring_and_sink(device):
    target = parameter((1000,), torch.uint8, device)
    return Ring(2 * (128 << 10), 2), ParameterSink({"w": target}, {"w": Stored("w", "U8", (1000,))})


def test_on_a_cpu_nothing_is_pinned():
    ring, sink = ring_and_sink("cpu")
    with sink.pinned(ring.buffers):
        assert not any(torch.from_numpy(buffer).is_pinned() for buffer in ring.buffers)


@needs_device
def test_a_device_copies_from_pinned_buffers_while_it_loads_and_no_longer():
    ring, sink = ring_and_sink("cuda")
    for _ in range(2):  # a second load registers them again
        with sink.pinned(ring.buffers):
            assert all(torch.from_numpy(buffer).is_pinned() for buffer in ring.buffers)
        assert not any(torch.from_numpy(buffer).is_pinned() for buffer in ring.buffers)


@needs_device
def test_buffers_that_cannot_be_registered_are_copied_from_all_the_same():
    ring, sink = ring_and_sink("cuda")
    with sink.pinned(ring.buffers), sink.pinned(ring.buffers):  # twice is an error of the runtime
        sink.write("w", 0, random_bytes(1000))
    torch.cuda.synchronize()  # an error that stuck would show here
    assert torch.zeros(1, device="cuda").item() == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("straight", [False, True])
def test_an_artifact_arrives_whole(small_tp2, device, straight):
    """Through the real reader, ring and checksums; ``straight`` changes nothing where refused."""
    found = artifact.read(small_tp2)
    tensors = artifact.check_files(found, 1, "target")
    parameters = {t.name: parameter(t.shape, TORCH_DTYPES[t.dtype], device) for t in tensors}
    sink = ParameterSink(parameters, {t.name: Stored(t.name, t.dtype, t.shape) for t in tensors})
    if straight:
        assert sink.read_straight().passed == (device == "cpu")
    report = filling.from_artifact(found, tensors, sink, LoaderOptions(ring_bytes=1 << 20))
    assert report.is_straight == (straight and device == "cpu")
    for tensor in tensors:
        data = parameters[tensor.name].data.cpu().view(-1).view(torch.uint8).numpy()
        assert artifact_manifest.checksum(data) == tensor.xxh3_128
