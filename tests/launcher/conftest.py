"""A stand-in HIP runtime in this process, and the launcher on it, through either binding."""

import pytest

from sglang_mi300a import code_objects
from sglang_mi300a.launcher import binding, native_build
from tests import repository
from tests.launcher import sample

# torch is imported by the fixtures that need it: what needs none is tested without it, too.


@pytest.fixture(scope="session")
def launcher_folder():
    """The folder of the launcher's core, and of the pybind11 module where it can be built."""
    with_pybind = native_build.can_build_pybind()
    native_build.build_launcher(repository.ROOT, with_pybind=with_pybind)
    return code_objects.compiled_folder("launcher")


@pytest.fixture
def hip():
    """The stand-in runtime, as new; launches are executed as gfx942 machine code."""
    import torch

    from tests.launcher import standin

    if torch.version.hip is not None:
        pytest.skip("this torch has a HIP runtime of its own")
    with standin.fresh() as fresh:
        yield fresh


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
    import torch

    from sglang_mi300a.launcher import kernels

    return kernels.load(sample.code(), torch.device("cpu"), through)
