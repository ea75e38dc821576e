"""A stand-in HIP runtime in this process, and the launcher on it, through either binding."""

import pytest
import torch

from sglang_mi300a import code_objects
from sglang_mi300a.launcher import binding, kernels, native_build, owners
from tests import repository
from tests.launcher import sample, standin

HOST = torch.device("cpu")


@pytest.fixture(scope="session")
def launcher_folder():
    """The folder of the launcher's core, and of the pybind11 module where it can be built."""
    with_pybind = native_build.can_build_pybind()
    native_build.build_launcher(repository.ROOT, with_pybind=with_pybind)
    return code_objects.compiled_folder("launcher")


@pytest.fixture(scope="session")
def mapped_standin(tmp_path_factory):
    """The stand-in runtime, mapped once: a process has one HIP runtime."""
    if torch.version.hip is not None:
        pytest.skip("this torch has a HIP runtime of its own")
    return standin.StandIn(standin.library(tmp_path_factory.mktemp("standin")))


@pytest.fixture
def hip(mapped_standin):
    """The stand-in runtime, as new; launches are executed as gfx942 machine code."""
    mapped_standin.reset()
    mapped_standin.execute_machine_code()
    kernels.observers.append(mapped_standin.note_buffers)
    yield mapped_standin
    kernels.observers.remove(mapped_standin.note_buffers)
    kernels._modules.clear()
    owners.release()
    assert mapped_standin.faults == []


@pytest.fixture(params=["ctypes", "pybind11"])
def through(request, hip, launcher_folder):
    """A binding to the launcher's core."""
    if request.param == "ctypes":
        return binding.open_binding(launcher_folder)
    if not native_build.can_build_pybind():
        pytest.skip("pybind11, or Python's headers, are not installed")
    return binding.pybind_module(launcher_folder)


@pytest.fixture
def module(through):
    """The sample kernels, loaded."""
    return kernels.load(sample.code(), HOST, through)
