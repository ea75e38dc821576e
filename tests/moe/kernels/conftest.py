"""A stand-in HIP runtime in this process; launches run the shipped code object's instructions."""

import pytest
import torch

from tests.launcher import standin


@pytest.fixture
def hip():
    """The stand-in runtime, as new."""
    if torch.version.hip is not None:
        pytest.skip("this torch has a HIP runtime of its own")
    with standin.fresh() as fresh:
        yield fresh
