"""The loader's options are all known and of the right kind."""

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.weights.loader_options import LoaderOptions

MIB = 1 << 20


def test_what_is_not_given_has_its_default():
    assert LoaderOptions.from_mapping({}) == LoaderOptions()
    assert LoaderOptions.from_mapping({"threads": 2}) == LoaderOptions(threads=2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pattern": "x"}, "pattern; supported: verify, ring_bytes, threads, ignore_tensors"),
        ({"verify": "yes"}, "verify 'yes'; supported: full or sample or off"),
        ({"threads": 0}, "threads 0"),
        ({"threads": True}, "threads True"),
        ({"ring_bytes": "1"}, "ring_bytes '1'"),
        ({"ignore_tensors": "*.bias"}, "a list of patterns"),
        ({"read_into_parameters": 1}, "read_into_parameters 1; supported: true or false"),
    ],
)
def test_a_mistake_is_named(given, words):
    with pytest.raises(UserError, match=words):
        LoaderOptions.from_mapping(given)


def test_a_sample_holds_all_small_tensors_and_some_large_ones():
    options = LoaderOptions(verify="sample")
    assert all(options.verifies(index, MIB) for index in range(100))
    assert sum(options.verifies(index, 512 * MIB) for index in range(160)) == 10
    assert all(LoaderOptions().verifies(index, 512 * MIB) for index in range(100))
    assert not any(LoaderOptions(verify="off").verifies(index, 1) for index in range(100))
