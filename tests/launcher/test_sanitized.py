"""The core under the address, undefined-behaviour and thread sanitizers."""

import os
import subprocess

import pytest

from sglang_mi300a.launcher import native_build
from tests import repository
from tests.gfx942 import toolchain as products
from tests.launcher import sample, standin

CORE = repository.ROOT / "csrc/launcher"
DRIVER = sample.CSRC / "drive_core.cpp"
FLAGS = ("-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer")


def driver(flags, library):
    """Return the driver, compiled together with the core's sources."""
    sources = [DRIVER, *(CORE / name for name in native_build.CORE_SOURCES)]
    read = [*sources, *sorted(CORE.glob("*.h")), standin.FOLDER / "standin.h"]
    key = ["driver", products.version("g++"), *flags, *FLAGS, *(path.read_bytes() for path in read)]

    def make(out):
        products.run(
            [products.tool("g++"), *FLAGS, *flags, *sources, "-o", out, library, "-ldl", "-pthread"]
        )

    return products.kept(".driver", key, make)


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_no_sanitizer_complains_of_the_core(tmp_path, sanitizers):
    flags = (f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    library = standin.library(tmp_path, flags=flags)
    image = tmp_path / "sample.co"
    image.write_bytes(sample.image())
    done = subprocess.run(
        [driver(flags, library), image],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert (done.returncode, done.stdout) == (0, "0 surprises\n")
