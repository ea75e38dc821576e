"""One process that interprets Triton kernels, for all tests here."""

import pytest

from tests.moe.triton import interpreted


@pytest.fixture(scope="session")
def interpreter():
    """Call a function of a module in a process in which Triton kernels are interpreted."""
    pool = interpreted.start()
    yield lambda function, *args, **kwargs: pool.submit(function, *args, **kwargs).result()
    pool.shutdown()
