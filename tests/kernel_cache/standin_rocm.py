"""A ROCm whose compiler keeps hipcc's contract in files, for AITER's own builder to call.

``hipcc`` takes any flag, preprocesses nothing, writes an object (with ninja's dependency file) for
``-c``, and links a minimal shared object otherwise; ``compiled`` lists the sources. ``c++`` does
the same, as AITER links with it.
"""

import sys
from pathlib import Path

from tests.kernel_cache import standin_aiter

COMPILER = f"""#!{sys.executable} -SE
import os, sys
arguments = sys.argv[1:]
if "--version" in arguments or "-dumpversion" in arguments or "-v" in arguments:
    print("clang version 19.0.0")
    sys.exit()
target = arguments[arguments.index("-o") + 1]
if target == "/dev/null":
    sys.exit()
if "-MF" in arguments:
    with open(arguments[arguments.index("-MF") + 1], "w") as out:
        out.write(target + ":\\n")
here = os.path.dirname(__file__)
if "-c" in arguments:
    with open(os.path.join(here, "../compiled"), "a") as log:
        print(os.path.basename(arguments[arguments.index("-c") + 1]), file=log)
with open(os.path.join(here, "../module.bytes"), "rb") as file:
    content = file.read()
with open(target, "wb") as out:
    out.write(b"object" if "-c" in arguments else content)
"""


def make(folder: Path) -> dict[str, str]:
    """Write a stand-in ROCm; return the environment that leads to it."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    (folder / "module.bytes").write_bytes(standin_aiter.shared_object(b"by hipcc"))
    for name in ("hipcc", "c++", "g++"):
        (programs / name).write_text(COMPILER)
    (programs / "hipconfig").write_text("#!/bin/sh\necho 7.0.51831-7c9236b16\n")
    for path in programs.iterdir():
        path.chmod(0o755)
    return {"ROCM_HOME": str(folder), "ROCM_PATH": str(folder), "CXX": str(programs / "c++")}
