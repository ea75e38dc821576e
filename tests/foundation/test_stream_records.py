"""The host library makes the records that NumPy makes; a foreign library is refused by name."""

import numpy as np
import pytest

from sglang_mi300a import code_objects, stream_layout, stream_records
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import native_build
from tests import repository
from tests.gfx942 import toolchain as products

# Projection, rows and K of an expert: those served, and small ones whose order has parts of one.
SHAPES = [
    *(("w13", 1024, 4096), ("w13", 512, 4096), ("w13", 256, 4096)),
    *(("w2", 4096, 512), ("w2", 4096, 256), ("w2", 4096, 128), ("w2", 4096, 1024)),
    *(("w13", 32, 512), ("w2", 32, 128), ("w2", 64, 1536), ("w2", 32, 384)),
]


@pytest.fixture(scope="module", autouse=True)
def library():
    """The built library; a build is a lookup where `make setup` has run."""
    path, _ = native_build.build_host(repository.ROOT)
    stream_records._function.cache_clear()
    return path


@pytest.fixture
def installed_in(tmp_path, monkeypatch):
    """A folder in whose place the package looks for the library."""
    monkeypatch.setattr(code_objects, "compiled_folder", lambda name: tmp_path / name)
    stream_records._function.cache_clear()
    (tmp_path / "host").mkdir()
    yield tmp_path / "host"
    stream_records._function.cache_clear()


def random_mxfp4(rows, k, seed=0):
    rng = np.random.default_rng([seed, rows, k])
    packed = rng.integers(0, 256, (rows, k // 2), dtype=np.uint8)
    return packed, rng.integers(0, 256, (rows, k // 32), dtype=np.uint8)


@pytest.mark.parametrize(("projection", "rows", "k"), SHAPES)
def test_native_code_and_numpy_write_the_same_bytes(projection, rows, k, monkeypatch):
    packed, scales = random_mxfp4(rows, k)
    calls = []
    write = stream_records.write
    monkeypatch.setattr(stream_records, "write", lambda *args: calls.append(write(*args)))
    native = stream_layout.split_mxfp4(projection, packed, scales)
    assert len(calls) == 1
    monkeypatch.setattr(stream_records, "is_built", lambda: False)
    by_numpy = stream_layout.split_mxfp4(projection, packed, scales)
    assert len(calls) == 1
    assert np.array_equal(native, by_numpy)


def test_rows_may_be_a_part_of_something_wider():
    packed, scales = random_mxfp4(64, 1024)
    wide = np.zeros((64, 700), np.uint8)
    wide[:, 100:612] = packed
    for column in range(2):
        part = wide[:, 100 + 256 * column :][:, :256]
        of_part = scales[:, 16 * column :][:, :16]
        assert not part.flags.c_contiguous
        expected = stream_layout.split_mxfp4("w2", part.copy(), of_part.copy())
        assert np.array_equal(stream_layout.split_mxfp4("w2", part, of_part), expected)


def test_a_package_without_native_code_takes_numpy(installed_in):
    assert not stream_records.is_built()
    packed, scales = random_mxfp4(32, 512)
    stream = stream_layout.split_mxfp4("w13", packed, scales)
    back = stream_layout.join_mxfp4("w13", stream, 32, 512)
    assert np.array_equal(back[0], packed)
    with pytest.raises(ValueError, match="was not built"):
        stream_records.write(*arguments())


def test_a_damaged_library_and_one_of_another_version_are_refused_by_name(installed_in, tmp_path):
    path = installed_in / native_build.HOST_FILE
    path.write_bytes(b"\x7fELF")
    with pytest.raises(UserError, match=rf"{path}: found .*install the package again"):
        stream_records.is_built()
    source = tmp_path / "other.c"
    source.write_text("void mi300a_stream_records_0(void) {}\n")
    products.run([products.tool("g++"), "-x", "c", "-shared", source, "-o", tmp_path / "new.so"])
    (tmp_path / "new.so").replace(path)
    with pytest.raises(UserError, match="mi300a_stream_records_1"):
        stream_records.is_built()


def arguments():
    codes = np.zeros((2, 1, 2, 3, 16, 64), np.uint8)
    scales = np.zeros((2, 1, 2, 3, 16, 4), np.uint8)
    return [codes, scales, ((1, 5),), np.zeros((12, 1088), np.uint8)]


WRONG = {
    "a part more": (0, np.zeros((1, 2, 1, 2, 3, 16, 64), np.uint8)),
    "rows of another width": (0, np.zeros((2, 1, 2, 3, 16, 32), np.uint8)),
    "codes of another type": (0, np.zeros((2, 1, 2, 3, 16, 64), np.int8)),
    "bytes of a row apart": (0, np.zeros((2, 1, 2, 3, 16, 128), np.uint8)[..., ::2]),
    "scales of fewer records": (1, np.zeros((2, 1, 2, 2, 16, 4), np.uint8)),
    "a move out of the word": (2, ((1, 64),)),
    "room for fewer records": (3, np.zeros((11, 1088), np.uint8)),
    "records that are apart": (3, np.zeros((24, 1088), np.uint8)[::2]),
    "records not to be written": (3, np.frombuffer(bytes(12 * 1088), np.uint8).reshape(12, 1088)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_nothing_is_read_or_written_out_of_bounds(wrong):
    stream_records.write(*arguments())
    given = arguments()
    at, value = WRONG[wrong]
    given[at] = value
    with pytest.raises(ValueError, match="not as write|64 bits"):
        stream_records.write(*given)


@pytest.mark.parametrize("optimised", ["-O1", "-O3"])
def test_no_sanitizer_complains_of_the_host_library(tmp_path, optimised):
    host = repository.ROOT / "csrc/host"
    driver = repository.ROOT / "tests/foundation/programs/drive_stream_records.cpp"
    sources = [driver, *(host / name for name in native_build.HOST_SOURCES)]
    flags = [
        *("-std=c++17", optimised, "-g", "-Wall", "-Wextra", "-Werror"),
        *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    ]
    key = [
        *("stream records", products.version("g++"), *flags),
        *(path.read_bytes() for path in (*sources, *sorted(host.glob("*.h")))),
    ]
    program = products.kept(
        ".driver",
        key,
        lambda out: products.run([products.tool("g++"), *flags, *sources, "-o", out]),
    )
    assert products.run([program]) == "0 bytes differ\n"
