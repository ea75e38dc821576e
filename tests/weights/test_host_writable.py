"""Files are read straight into a device's memory only where a probe showed that it works."""

import ctypes
import mmap

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="parameters are torch's")

from sglang_mi300a.errors import UserError  # noqa: E402
from sglang_mi300a.weights import host_writable  # noqa: E402
from sglang_mi300a.weights.host_writable import PROBE_BYTES, probe  # noqa: E402
from sglang_mi300a.weights.parameter_sink import ParameterSink  # noqa: E402
from sglang_mi300a.weights.reading import Files  # noqa: E402
from sglang_mi300a.weights.steps import Stored  # noqa: E402


class Unified:
    """A device whose memory is the host's too."""

    def allocate(self, size):
        memory = np.zeros(size, dtype=np.uint8)
        return memory, memory.ctypes.data

    def fill(self, memory, value):
        memory[:] = value

    def content(self, memory):
        return memory.tobytes()


class Separate(Unified):
    """A device whose memory has an address that faults when the host touches it."""

    def allocate(self, size):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        no_access = 0
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = libc.mmap(None, size, no_access, flags, -1, 0)
        assert address not in (None, ctypes.c_void_p(-1).value)
        return None, address

    def fill(self, memory, value):
        pass

    def content(self, memory):
        raise AssertionError("nothing was written")


class ReadOnly(Unified):
    """A device whose memory the host may read and not write."""

    def allocate(self, size):
        memory, address = Separate().allocate(size)
        self._address = address
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
        return memory, address

    def _protect(self, access):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(self._address), PROBE_BYTES, access) == 0

    def fill(self, memory, value):
        ctypes.memset(self._address, value, PROBE_BYTES)
        self._protect(mmap.PROT_READ)


class HalfMapped(Separate):
    """A device of whose memory the host sees the first page only."""

    def allocate(self, size):
        memory, address = super().allocate(size)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, access) == 0
        return memory, address


class ShadowedForHost(Unified):
    """A device that does not see what the host writes: the host has a copy."""

    def content(self, memory):
        return bytes([0xA5]) * len(memory)


class ShadowedForDevice(Unified):
    """A device whose own writes the host does not see."""

    def fill(self, memory, value):
        pass


@pytest.mark.parametrize(
    ("runtime", "passed", "why"),
    [
        (Unified, True, "see each other's writes"),
        (Separate, False, "not mapped for the host"),
        (ReadOnly, False, "not mapped for the host"),
        (HalfMapped, False, "not mapped for the host"),
        (ShadowedForHost, False, "the device does not see what the host wrote"),
        (ShadowedForDevice, False, "the host does not see what the device wrote"),
    ],
)
def test_the_probe_passes_where_both_see_the_same_memory_and_never_crashes(runtime, passed, why):
    verdict = probe(runtime())
    assert verdict.passed == passed
    assert why in verdict.why


def a_sink(dtype=torch.uint8, stored="U8"):
    target = torch.nn.Parameter(torch.zeros(100, dtype=dtype), requires_grad=False)
    return target, ParameterSink({"w": target}, {"w": Stored("w", stored, (100,))})


def test_straight_reads_are_off_until_the_probe_passed():
    _, sink = a_sink()
    assert not sink.is_straight
    assert sink.destination("w") is None
    assert not sink.read_straight(Separate()).passed
    assert not sink.is_straight
    assert sink.destination("w") is None


def test_a_destination_is_the_parameters_own_memory():
    target, sink = a_sink()
    assert sink.read_straight(Unified()).passed
    sink.destination("w")[:] = np.arange(100, dtype=np.uint8)
    assert target.tolist() == list(range(100))


def test_a_parameter_of_another_type_is_still_converted():
    _, sink = a_sink(torch.bfloat16, "F32")
    sink.read_straight()
    assert sink.is_straight
    assert sink.destination("w") is None


def test_a_parameter_in_host_memory_needs_no_probe():
    _, sink = a_sink()
    assert sink.read_straight().passed


def test_an_empty_parameter_has_an_empty_destination():
    assert host_writable.view(0, 0).size == 0


def test_memory_that_faults_after_all_is_a_named_error_not_a_crash(tmp_path):
    (tmp_path / "part").write_bytes(bytes(5000))
    _, address = Separate().allocate(PROBE_BYTES)
    with Files(direct=False) as files, pytest.raises(UserError, match="part: found .*Bad address"):
        files.read_into(tmp_path / "part", 0, host_writable.view(address, 5000))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_a_device_that_is_no_apu_is_not_read_into():
    target = torch.nn.Parameter(
        torch.zeros(100, dtype=torch.uint8, device="cuda"), requires_grad=False
    )
    sink = ParameterSink({"w": target}, {"w": Stored("w", "U8", (100,))})
    assert not sink.read_straight().passed
    assert not probe(sink_runtime(target.device)).passed


def sink_runtime(device):
    from sglang_mi300a.weights.parameter_sink import _Torch

    return _Torch(device)
